"""Opaque configuration in claims, classes and allocations."""

from __future__ import annotations

from typing import Any

from dra_kit.resource import opaque, v1
from dra_kit.resource.fielderror import FieldError, invalid, required, too_long
from dra_kit.resource.validation.fields.formats import declared_driver_name


def validate_opaque(
    configuration: v1.OpaqueDeviceConfiguration | None, path: str, *, stored: bool = False
) -> list[FieldError]:
    """Check ``opaque`` of one entry; ``path`` is that of the entry.

    Args:
        configuration: what is there.
        path: of the entry.
        stored: whether it was stored before, maybe when less was checked: its size does not count then.
    """
    if configuration is None:
        return [required(f"{path}.opaque")]
    where = f"{path}.opaque"
    errors = _validate_parameters(configuration.parameters, f"{where}.parameters", stored=stored)
    return errors + declared_driver_name(configuration.driver, f"{where}.driver")


def _validate_parameters(parameters: Any, path: str, *, stored: bool) -> list[FieldError]:
    if parameters is None:
        return [required(path)]
    return validate_object(parameters, path, stored=stored)


def validate_object(value: Any, path: str, *, stored: bool = False) -> list[FieldError]:
    """Check a JSON object of at most 10 KiB."""
    if not stored and opaque.size(value) > opaque.MAX_LENGTH:
        return [too_long(path, value, opaque.MAX_LENGTH)]
    return [] if isinstance(value, dict) else [invalid(path, "<value omitted>", "must be a valid JSON object")]
