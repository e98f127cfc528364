"""ObjectMeta: what the server sets, keeps and checks for every kind.

Source: k8s.io/apimachinery 0.37 ``pkg/api/validation/objectmeta.go`` and k8s.io/apiserver 0.37 ``pkg/registry/rest``.
"""

from __future__ import annotations

import secrets
import uuid
from typing import Any, Final

from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, go_quote, invalid
from dra_kit.kubernetes.resource.validation.fields import validate_object_meta
from dra_kit.kubernetes.values.json import Object

_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
_SUFFIX_LENGTH: Final = 5
_GENERATE_NAME_MAX: Final = 63 - _SUFFIX_LENGTH
IMMUTABLE: Final = "field is immutable"


def generated_name(prefix: str) -> str:
    """Return ``prefix`` (cut to 58 bytes) and five random characters."""
    suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(_SUFFIX_LENGTH))
    return prefix[:_GENERATE_NAME_MAX] + suffix


def deduplicate_owners(obj: Object) -> list[str]:
    """Leave of owners that are named twice one; return the warning about it."""
    metadata = obj["metadata"]
    distinct: list[Any] = []
    repeated: dict[str, None] = {}
    for owner in metadata.get("ownerReferences") or ():
        if owner in distinct:
            repeated[str(owner.get("uid") or "")] = None
        else:
            distinct.append(owner)
    if not repeated:
        return []
    metadata["ownerReferences"] = distinct
    warning = (
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may "
        "reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
    )
    return [warning + ",".join(repeated)]


def fill_for_create(obj: Object, kind: Kind, now: str) -> None:
    """Set what only the server sets."""
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
    """Take from the old object what no client can change."""
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
    """Check the metadata of new and changed objects."""
    return validate_object_meta(obj["metadata"], namespaced=kind.namespaced, name_problems=kind.strategy.name_problems)


def validate_update(obj: Object, old: Object) -> list[FieldError]:
    """Check changed metadata: identity stays, and nobody blocks a deletion that has begun."""
    metadata, before = obj["metadata"], old["metadata"]
    errors: list[FieldError] = []
    if "deletionTimestamp" in before:
        added = [item for item in metadata.get("finalizers") or [] if item not in (before.get("finalizers") or [])]
        if added:
            found = f"[]string{{{', '.join(map(go_quote, added))}}}"  # as Go prints it
            detail = f"no new finalizers can be added if the object is being deleted, found new finalizers {found}"
            errors.append(forbidden("metadata.finalizers", detail))
    identity = ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds")
    changed = [name for name in identity if metadata.get(name) != before.get(name)]
    return errors + [invalid(f"metadata.{name}", metadata.get(name), IMMUTABLE) for name in changed]
