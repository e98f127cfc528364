"""Binding conditions of devices and of allocation results (KEP-5007)."""

from __future__ import annotations

from typing import Final

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, invalid
from dra_kit.resource.validation.fields.lists import limited, over_limit, repeated_names

BINDING_CONDITIONS_MAX: Final = 4
"""Entries of ``bindingConditions``, and of ``bindingFailureConditions``."""


def validate_binding(holder: v1.Device | v1.DeviceRequestAllocationResult, path: str) -> list[FieldError]:
    """Check both lists of a device or result; ``path`` is that of the device or result."""
    conditions, failures = holder.binding_conditions, holder.binding_failure_conditions
    errors = _validate_list(conditions, f"{path}.bindingConditions")
    errors += _validate_list(failures, f"{path}.bindingFailureConditions")
    for i, condition in enumerate(failures):
        if condition in conditions:
            detail = "bindingFailureConditions must not overlap with bindingConditions"
            errors.append(invalid(f"{path}.bindingFailureConditions[{i}]", condition, detail))
    present = {"bindingConditions": conditions, "bindingFailureConditions": failures}
    if bool(conditions) != bool(failures):
        missing, other = sorted(present, key=lambda name: len(present[name]))
        field = "binding_conditions" if missing == "bindingConditions" else "binding_failure_conditions"
        shown: list[str] | None = [] if field in holder.model_fields_set else None
        errors.append(invalid(f"{path}.{missing}", shown, f"{missing} are required to use {other}"))
    return errors


def _validate_list(conditions: tuple[str, ...], path: str) -> list[FieldError]:
    """Check a list; repetitions are reported even of one that is too long."""
    errors = over_limit(conditions, BINDING_CONDITIONS_MAX, path)
    for where, condition in limited(conditions, BINDING_CONDITIONS_MAX, path):
        errors += [invalid(where, condition, text) for text in names.label_key(condition)]
    return errors + repeated_names(conditions, path)
