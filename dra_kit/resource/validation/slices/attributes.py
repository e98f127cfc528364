"""The attributes of a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, GoStruct, declarative, invalid, required, too_long
from dra_kit.resource.validation.fields.formats import key_path, qualified_name
from dra_kit.values.semver import Version

ATTRIBUTES_AND_CAPACITIES_MAX: Final = 32
ATTRIBUTE_VALUES_MAX: Final = 48
STRING_MAX_LENGTH: Final = 64
"""Bytes of a string or version, in lists too."""

_SCALARS: Final = {"int_": "int", "bool_": "bool", "string": "string", "version": "version"}
_LISTS: Final = ("ints", "bools", "strings", "versions")
_MEMBERS: Final = ", ".join(f"`{name}`" for name in (*_SCALARS.values(), *_LISTS))


def validate_attributes(attributes: Mapping[str, v1.DeviceAttribute], path: str) -> list[FieldError]:
    """Check keys and values; ``path`` is that of the map."""
    errors = []
    for key, attribute in attributes.items():
        errors += qualified_name(key, path)
        errors += _validate_attribute(attribute, key_path(path, key))
    return errors


def validate_counts(device: v1.Device, path: str) -> list[FieldError]:
    """Check how many attributes, capacities and attribute values a device has."""
    errors = []
    entries = len(device.attributes) + len(device.capacity)
    if entries > ATTRIBUTES_AND_CAPACITIES_MAX:
        detail = f"the total number of attributes and capacities must not exceed {ATTRIBUTES_AND_CAPACITIES_MAX}"
        errors.append(replace(invalid(path, entries, detail), counted=("attributes", "capacity")))
    values = sum(count_values(attribute) for attribute in device.attributes.values())
    if values > ATTRIBUTE_VALUES_MAX:
        detail = f"the total number of attribute values must not exceed {ATTRIBUTE_VALUES_MAX}"
        errors.append(replace(invalid(path, values, detail), counted=("attributes",)))
    return errors


def count_values(attribute: v1.DeviceAttribute) -> int:
    """Count values: each scalar and each item of a list is one."""
    scalars = sum(getattr(attribute, name) is not None for name in _SCALARS)
    return scalars + sum(len(getattr(attribute, name) or ()) for name in _LISTS)


def has_list(attribute: v1.DeviceAttribute) -> bool:
    """Return whether the attribute has a list value (KEP-5491)."""
    return any(getattr(attribute, name) is not None for name in _LISTS)


def validate_partition_type(device: v1.Device, attribute_name: str, driver: str, path: str) -> list[FieldError]:
    """Check that a device that consumes counters has ``partitionTypeAttribute`` as a string (KEP-5677)."""
    if not device.consumes_counters:
        return []
    domain, _, identifier = attribute_name.partition("/")
    attribute = device.attributes.get(attribute_name)
    if attribute is None and domain == driver:
        attribute = device.attributes.get(identifier)
    where = key_path(path, attribute_name)
    if attribute is None:
        detail = "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set"
        return [required(where, detail)]
    if attribute.string is None:
        detail = "must be a string value because `partitionTypeAttribute` names this attribute"
        return [invalid(where, _go_attribute(attribute), detail)]
    return []


def _validate_attribute(attribute: v1.DeviceAttribute, path: str) -> list[FieldError]:
    empty = (name for name in _LISTS if getattr(attribute, name) == ())
    errors = [invalid(f"{path}.{name}", [], "must not be empty if specified") for name in empty]
    if attribute.string is not None:
        errors += _validate_string(attribute.string, f"{path}.string")
    if attribute.version is not None:
        errors += _validate_version(attribute.version, f"{path}.version")
    for i, item in enumerate(attribute.strings or ()):
        errors += _validate_string(item, f"{path}.strings[{i}]")
    for i, item in enumerate(attribute.versions or ()):
        errors += _validate_version(item, f"{path}.versions[{i}]")
    present = [shown for name, shown in _SCALARS.items() if getattr(attribute, name) is not None]
    present += [name for name in _LISTS if getattr(attribute, name)]
    if not present:
        errors += declarative([invalid(path, "", f"must specify one of: {_MEMBERS}")])
    elif len(present) > 1:
        detail = f"must specify exactly one of: {_MEMBERS}"
        errors += declarative([invalid(path, f"{{{', '.join(present)}}}", detail)])
    elif sum(getattr(attribute, name) is not None for name in (*_SCALARS, *_LISTS)) > 1:
        # an empty list beside a value: only the hand-written rule counts it
        errors.append(invalid(path, _go_attribute(attribute), "exactly one value must be specified"))
    return errors


def _validate_string(text: str, path: str) -> list[FieldError]:
    return [too_long(path, text, STRING_MAX_LENGTH)] if names.byte_length(text) > STRING_MAX_LENGTH else []


def _validate_version(text: str, path: str) -> list[FieldError]:
    errors = []
    try:
        Version(text)
    except ValueError:
        errors.append(invalid(path, text, "must be a string compatible with semver.org spec 2.0.0"))
    return errors + _validate_string(text, path)


def _go_attribute(attribute: v1.DeviceAttribute) -> GoStruct:
    scalars = {f"{shown.title()}Value": getattr(attribute, name) for name, shown in _SCALARS.items()}
    return GoStruct(scalars | {f"{name[:-1].title()}Values": getattr(attribute, name) for name in _LISTS})
