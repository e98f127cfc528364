"""ObjectMeta: what the server sets, keeps and checks for every kind.

Source: k8s.io/apimachinery 0.37 ``pkg/api/validation/objectmeta.go`` and k8s.io/apiserver 0.37 ``pkg/registry/rest``.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from typing import Any, Final

from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.kinds.strategy import Object
from dra_kit.resource import names
from dra_kit.resource.fielderror import FieldError, GoStruct, forbidden, invalid, quote, required, too_long

_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
_SUFFIX_LENGTH: Final = 5
_GENERATE_NAME_MAX: Final = 63 - _SUFFIX_LENGTH
_ANNOTATIONS_MAX: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = {"orphan", "foregroundDeletion", "kubernetes"}
IMMUTABLE: Final = "field is immutable"


def generated_name(prefix: str) -> str:
    """``prefix`` (cut to 58 bytes) and five random characters."""
    suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(_SUFFIX_LENGTH))
    return prefix[:_GENERATE_NAME_MAX] + suffix


def deduplicate_owners(obj: Object) -> list[str]:
    """Leaves of owners that are named twice one; returns the warning about it."""
    metadata = obj["metadata"]
    kept: list[Any] = []
    repeated: dict[str, None] = {}
    for owner in metadata.get("ownerReferences") or ():
        if owner in kept:
            repeated[str(owner.get("uid") or "")] = None
        else:
            kept.append(owner)
    if not repeated:
        return []
    metadata["ownerReferences"] = kept
    warning = (
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may "
        "reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
    )
    return [warning + ",".join(repeated)]


def fill_for_create(obj: Object, kind: Kind, now: str) -> None:
    """Sets what only the server sets."""
    metadata = obj["metadata"]
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
        metadata.pop(name, None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now
    if kind.generation:
        metadata["generation"] = 1
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"])


def fill_for_update(obj: Object, old: Object) -> None:
    """Takes from the old object what no client can change."""
    metadata, before = obj["metadata"], old["metadata"]
    for name in ("generation", "selfLink", "creationTimestamp"):
        _take(metadata, before, name)
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        if name in before:
            _take(metadata, before, name)
    if not metadata.get("uid"):
        _take(metadata, before, "uid")


def _take(metadata: Object, before: Object, name: str) -> None:
    if name in before:
        metadata[name] = before[name]
    else:
        metadata.pop(name, None)


def validate(obj: Object, kind: Kind) -> list[FieldError]:
    """The rules for metadata of new and changed objects."""
    metadata = obj["metadata"]
    errors: list[FieldError] = []
    generate_name = metadata.get("generateName")
    if generate_name:
        masked = f"{generate_name[:-1]}a" if generate_name.endswith("-") else generate_name
        errors += [
            invalid("metadata.generateName", generate_name, text) for text in kind.strategy.name_problems(masked)
        ]
    name = metadata.get("name")
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    else:
        errors += [invalid("metadata.name", name, text) for text in kind.strategy.name_problems(name)]
    if kind.namespaced:
        if not metadata.get("namespace"):
            errors.append(required("metadata.namespace"))
        else:
            errors += [
                invalid("metadata.namespace", metadata["namespace"], text)
                for text in names.dns_label(metadata["namespace"])
            ]
    elif metadata.get("namespace"):
        errors.append(forbidden("metadata.namespace", "not allowed on this type"))
    return errors + _labels(metadata) + _annotations(metadata) + _owners(metadata) + _finalizers(metadata)


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


def validate_update(obj: Object, old: Object) -> list[FieldError]:
    """The rules for changed metadata: identity stays, and nobody blocks a deletion that has begun."""
    metadata, before = obj["metadata"], old["metadata"]
    errors: list[FieldError] = []
    if "deletionTimestamp" in before:
        added = [item for item in metadata.get("finalizers") or [] if item not in (before.get("finalizers") or [])]
        if added:
            found = f"[]string{{{', '.join(map(quote, added))}}}"  # as Go prints it
            detail = f"no new finalizers can be added if the object is being deleted, found new finalizers {found}"
            errors.append(forbidden("metadata.finalizers", detail))
    identity = ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds")
    changed = [name for name in identity if metadata.get(name) != before.get(name)]
    return errors + [invalid(f"metadata.{name}", metadata.get(name), IMMUTABLE) for name in changed]
