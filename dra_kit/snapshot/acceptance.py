"""What an API server says of objects from files: whether it has stored them like this, and whether it would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dra_kit.errors import ConfigurationError, Invalid
from dra_kit.kubernetes.release import FeatureGates
from dra_kit.kubernetes.resource.conversion import V1, errors_in_version
from dra_kit.kubernetes.resource.new_object import ManifestKind, check_new_object
from dra_kit.kubernetes.resource.schema.decode import TypeMismatch, decode, zero
from dra_kit.kubernetes.resource.schema.table import LIST, MAP, item_type, struct
from dra_kit.kubernetes.values.json import Object

_MODELLED: Final = frozenset({"DeviceClass", "DeviceTaintRule", "ResourceClaim", "ResourceSlice"})
"""Kinds of resource.k8s.io that become models all at once, which look at their fields."""

_READ: Final = {
    "Event": ("metadata", "regarding", "involvedObject", "reason", "note", "message"),
    "Node": ("metadata", "spec", "status"),
    "Pod": ("metadata", "spec", "status"),
    "ResourceClaimTemplate": ("metadata", "spec"),
}
"""What is read as JSON of the other kinds, and what of resource.k8s.io has to be converted."""

_UNREAD: Final = frozenset({"creationTimestamp", "deletionTimestamp", "managedFields"})
"""Of the metadata; deletionTimestamp is there or not."""


def refuse_invalid(kind: ManifestKind, obj: Object, gates: FeatureGates, api_version: str, where: str) -> None:
    """Raise what an API server answers to a new object that breaks its rules.

    Args:
        kind: of the object.
        obj: as :func:`dra_kit.kubernetes.resource.new_object.complete_new_object` gives it.
        gates: of the API server.
        api_version: of the object as it was sent.
        where: file and document.

    Raises:
        Invalid: with the fields that are wrong.
    """
    name = obj["metadata"].get("name") or obj["metadata"].get("generateName") or "without a name"
    errors = errors_in_version(check_new_object(obj, kind, gates).errors, api_version)
    if errors:
        texts = {str(error): (error.path, error.body) for error in errors}
        raise Invalid(
            f"{where}: the API server would refuse {kind.name} {name}: {'; '.join(texts)}; dra-kit lint shows where",
            status=422,
            reason="Invalid",
            causes=tuple(texts.values()),
        )


def as_stored(kind: ManifestKind, document: Object, where: str) -> Object:
    """Return a saved object, in which all that is read later has the shape that the API gives it.

    Args:
        kind: of the object.
        document: as it was saved.
        where: file and document.

    Raises:
        ConfigurationError: no API server stores such an object.
    """
    name = document["metadata"].get("name")
    if not isinstance(name, str) or not name:
        raise _damaged(kind, "", where, "it has no metadata.name")
    namespace = document["metadata"].get("namespace") or "default"
    if not isinstance(namespace, str):
        raise _damaged(kind, name, where, "its metadata.namespace is no text")
    if kind.namespaced:
        document = {**document, "metadata": {**document["metadata"], "namespace": namespace}}
    if kind.name in _MODELLED and document["apiVersion"] == V1:
        return document
    known = struct(kind.types[str(document["apiVersion"])])
    fields = known.fields if known is not None else {}
    read: Object = {}
    for field in _READ.get(kind.name, ("metadata", "spec")):
        if field not in fields:
            continue
        value = document.get(field)
        if field == "metadata":
            value = {key: item for key, item in document["metadata"].items() if key not in _UNREAD}
        try:
            read[field] = zero(fields[field].type) if value is None else decode(value, fields[field].type)
        except TypeMismatch as error:
            raise _damaged(kind, name, where, f"{field}: {error}") from None
        if field == "spec":
            for path in _missing(read[field], fields[field].type, field):
                raise _damaged(kind, name, where, f"it has no {path}")
    unread = {key: item for key, item in document["metadata"].items() if key in _UNREAD}
    return {**document, **read, "metadata": {**unread, **read["metadata"]}}


def _missing(value: Any, type_name: str, path: str) -> Iterator[str]:
    """Yield the fields that the API requires and that are empty."""
    if type_name.startswith(LIST):
        for index, item in enumerate(value):
            yield from _missing(item, item_type(type_name), f"{path}[{index}]")
    elif type_name.startswith(MAP):
        for key, item in value.items():
            yield from _missing(item, item_type(type_name), f"{path}.{key}")
    elif (known := struct(type_name)) is not None:
        for name, field in known.fields.items():
            item = value.get(name)
            if field.required and item in (None, "", []):
                yield f"{path}.{name}"
            elif item is not None:
                yield from _missing(item, field.type, f"{path}.{name}")


def _damaged(kind: ManifestKind, name: str, where: str, cause: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: {' '.join(filter(None, (kind.name, name)))} is damaged: {cause}; save it again, "
        "with dra-kit snapshot or kubectl get -o yaml"
    )
