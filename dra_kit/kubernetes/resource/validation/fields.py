"""ObjectMeta: the rules that hold for every kind; of names each kind has its own.

Source: k8s.io/apimachinery 0.37 ``pkg/api/validation/objectmeta.go``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_kit.resource import names
from dra_kit.resource.fielderror import (
    NOT_NEGATIVE,
    FieldError,
    GoStruct,
    forbidden,
    invalid,
    required,
    too_long,
)
from dra_kit.values.json import Object

_ANNOTATIONS_MAX: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = {"orphan", "foregroundDeletion", "kubernetes"}


def subdomain_problems(name: str) -> list[str]:
    """Return what is wrong with the name of an object of most kinds."""
    return names.dns_subdomain(name, unit="characters")


def validate_object_meta(
    metadata: Object,
    *,
    namespaced: bool,
    name_problems: Callable[[str], list[str]] = subdomain_problems,
    prefix_problems: Callable[[str], list[str]] | None = None,
) -> list[FieldError]:
    """Return what is wrong with the metadata of an object.

    Args:
        metadata: values of the right types.
        namespaced: whether objects of the kind live in namespaces.
        name_problems: the kind's rule for names, in the API server's words.
        prefix_problems: its rule for what generated names begin with; without it that for names.
    """
    errors: list[FieldError] = []
    prefix, name = metadata.get("generateName"), metadata.get("name")
    if prefix:
        masked = f"{prefix[:-1]}a" if prefix.endswith("-") else prefix
        errors += [
            invalid("metadata.generateName", prefix, text) for text in (prefix_problems or name_problems)(masked)
        ]
    if name:
        errors += [invalid("metadata.name", name, text) for text in name_problems(name)]
    elif not prefix:
        errors.append(required("metadata.name", "name or generateName is required"))
    namespace = metadata.get("namespace")
    if namespace and not namespaced:
        errors.append(forbidden("metadata.namespace", "not allowed on this type"))
    elif namespace:
        errors += [invalid("metadata.namespace", namespace, text) for text in names.dns_label(namespace)]
    elif namespaced:
        errors.append(required("metadata.namespace"))
    if metadata.get("generation", 0) < 0:
        errors.append(invalid("metadata.generation", metadata["generation"], NOT_NEGATIVE))
    return [*errors, *_labels(metadata), *_annotations(metadata), *_owners(metadata), *_finalizers(metadata)]


def _labels(metadata: Object) -> list[FieldError]:
    errors = []
    for key, value in sorted((metadata.get("labels") or {}).items()):
        errors += [invalid("metadata.labels", key, text) for text in names.label_key(key)]
        errors += [invalid("metadata.labels", value, text) for text in names.label_value(value)]
    return errors


def _annotations(metadata: Object) -> list[FieldError]:
    annotations = metadata.get("annotations") or {}
    errors = []
    for key in sorted(annotations):
        errors += [invalid("metadata.annotations", key, text) for text in names.label_key(key.lower())]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _ANNOTATIONS_MAX:
        errors.append(too_long("metadata.annotations", "", _ANNOTATIONS_MAX))
    return errors


def _owners(metadata: Object) -> list[FieldError]:
    errors: list[FieldError] = []
    owners = metadata.get("ownerReferences") or []
    controllers = []
    for i, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{i}]"
        missing = [name for name in ("apiVersion", "kind", "name", "uid") if not owner.get(name)]
        errors += [required(f"{path}.{name}", "must not be empty") for name in missing]
        if (owner.get("apiVersion") or "").count("/") > 1:
            detail = "must be <group>/<version> or <version>"
            errors.append(invalid(f"{path}.apiVersion", owner["apiVersion"], detail))
        if (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event"):
            errors.append(invalid(path, _owner(owner), "/v1, Kind=Event is disallowed from being an owner"))
        if owner.get("controller"):
            controllers.append(owner)
    if len(controllers) > 1:
        detail = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0].get('kind')}/{controllers[0].get('name')} and "
            f"{controllers[1].get('kind')}/{controllers[1].get('name')}"
        )
        errors.append(invalid("metadata.ownerReferences", [_owner(owner) for owner in owners], detail))
    return errors


def _owner(owner: Mapping[str, Any]) -> Any:
    order = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
    return GoStruct({name: owner[name] for name in order if name in owner})


def _finalizers(metadata: Object) -> list[FieldError]:
    finalizers = metadata.get("finalizers") or []
    errors: list[FieldError] = []
    for i, finalizer in enumerate(finalizers):
        errors += [invalid("metadata.finalizers", finalizer, text) for text in names.label_key(finalizer)]
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(invalid(f"metadata.finalizers[{i}]", finalizer, detail))
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        errors.append(invalid("metadata.finalizers", finalizers, detail))
    return errors
