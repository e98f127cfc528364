"""``metav1.Condition`` (k8s.io/apimachinery 0.37 ``pkg/apis/meta/v1/validation``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, duplicate, invalid, required, too_long, too_many, unsupported

CONDITIONS_MAX: Final = 8
_STATUSES: Final = ("False", "True", "Unknown")
_REASON_MAX_LENGTH: Final = 1024
_MESSAGE_MAX_LENGTH: Final = 32 * 1024


def validate_conditions(conditions: Sequence[v1.Condition], path: str) -> list[FieldError]:
    """Check at most eight conditions, one of each type."""
    errors = [too_many(path, len(conditions), CONDITIONS_MAX)] if len(conditions) > CONDITIONS_MAX else []
    seen: set[str] = set()
    for i, condition in enumerate(conditions):
        where = f"{path}[{i}]"
        if condition.type in seen:
            errors.append(duplicate(where, condition.type))
        seen.add(condition.type)
        errors += _validate_condition(condition, where)
    return errors


def _validate_condition(condition: v1.Condition, path: str) -> list[FieldError]:
    errors = []
    if not condition.type:
        errors.append(required(f"{path}.type", "is required"))
    else:
        errors += [invalid(f"{path}.type", condition.type, text) for text in names.label_key(condition.type)]
    if not condition.status:
        errors.append(required(f"{path}.status"))
    elif condition.status not in _STATUSES:
        errors.append(unsupported(f"{path}.status", condition.status, _STATUSES))
    if condition.observed_generation is not None and condition.observed_generation < 0:
        detail = "must be greater than or equal to zero"
        errors.append(invalid(f"{path}.observedGeneration", condition.observed_generation, detail))
    if condition.last_transition_time is None:
        errors.append(required(f"{path}.lastTransitionTime"))
    if not condition.reason:
        errors.append(required(f"{path}.reason"))
    else:
        errors += [
            invalid(f"{path}.reason", condition.reason, text) for text in names.condition_reason(condition.reason)
        ]
        if names.byte_length(condition.reason) > _REASON_MAX_LENGTH:
            errors.append(too_long(f"{path}.reason", condition.reason, _REASON_MAX_LENGTH))
    if names.byte_length(condition.message) > _MESSAGE_MAX_LENGTH:
        errors.append(too_long(f"{path}.message", condition.message, _MESSAGE_MAX_LENGTH))
    return errors
