"""Taints and the tolerations of requests (KEP-5055)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, declarative, invalid, required, unsupported

EFFECTS: Final = ("NoExecute", "NoSchedule", "None")
_OPERATORS: Final = ("Equal", "Exists")


def validate_taint(taint: v1.DeviceTaint, path: str, *, check_effect: bool = True) -> list[FieldError]:
    """Check a taint in a slice or rule."""
    errors = [invalid(f"{path}.key", taint.key, text) for text in names.label_key(taint.key)]
    errors += [invalid(f"{path}.value", taint.value, text) for text in names.label_value(taint.value)]
    return errors + (declarative(_validate_effect(taint.effect, f"{path}.effect")) if check_effect else [])


def _validate_effect(effect: str, path: str) -> list[FieldError]:
    if not effect:
        return [required(path)]
    return [] if effect in EFFECTS else [unsupported(path, effect, EFFECTS)]


def validate_tolerations(tolerations: Sequence[v1.DeviceToleration], path: str) -> list[FieldError]:
    """Return tolerations of a request or result; how many there are is not limited (Kubernetes 1.37)."""
    errors = []
    for i, toleration in enumerate(tolerations):
        errors += _validate_toleration(toleration, f"{path}[{i}]")
    return errors


def _validate_toleration(toleration: v1.DeviceToleration, path: str) -> list[FieldError]:
    key, operator, value, effect = toleration.key, toleration.operator, toleration.value, toleration.effect
    errors = []
    if key:
        errors += declarative(invalid(f"{path}.key", key, text) for text in names.label_key(key))
    if operator == "Exists" and value:
        errors.append(invalid(f"{path}.value", value, "must be empty for operator `Exists`"))
    elif operator == "Equal":
        errors += [invalid(f"{path}.value", value, text) for text in names.label_value(value)]
    elif operator not in _OPERATORS:
        errors += declarative([unsupported(f"{path}.operator", operator, _OPERATORS)])
    if effect and effect not in EFFECTS:
        errors += declarative([unsupported(f"{path}.effect", effect, EFFECTS)])
    return errors
