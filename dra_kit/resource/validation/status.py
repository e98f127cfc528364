"""``status.devices`` of a claim: what drivers report about allocated devices (KEP-4817)."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from typing import Final

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import (
    FieldError,
    GoStruct,
    duplicate,
    invalid,
    quote,
    required,
    too_long,
    too_many,
    unsupported,
)
from dra_kit.resource.validation.formats import driver_name, pool_name

CONDITIONS_MAX: Final = 8
DATA_MAX_LENGTH: Final = 10 * 1024
IPS_MAX: Final = 16
INTERFACE_NAME_MAX_LENGTH: Final = 256
HARDWARE_ADDRESS_MAX_LENGTH: Final = 128

_CONDITION_STATUSES: Final = ("False", "True", "Unknown")
_REASON_MAX_LENGTH: Final = 1024
_MESSAGE_MAX_LENGTH: Final = 32 * 1024
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def validate_device_statuses(
    statuses: Sequence[v1.AllocatedDeviceStatus],
    results: Sequence[v1.DeviceRequestAllocationResult],
    path: str = "status.devices",
) -> list[FieldError]:
    """All rules of the API server (Kubernetes 1.37) for ``status.devices``.

    Args:
        statuses: the entries of all drivers. The size of ``data`` is that of its compact JSON, which is what
            must be sent: the API server counts white space.
        results: ``status.allocation.devices.results`` of the claim; every entry must belong to one.
        path: where the list is.
    """
    allocated = {(result.driver, result.pool, result.device, result.share_id or "") for result in results}
    errors = []
    seen: set[tuple[str, str, str, str]] = set()
    for i, status in enumerate(statuses):
        where = f"{path}[{i}]"
        key = (status.driver, status.pool, status.device, status.share_id or "")
        errors += _validate_status(status, where)
        if key not in allocated:
            shown = GoStruct(zip(("Driver", "Pool", "Device", "ShareID"), key, strict=True))
            errors.append(invalid(where, shown, "must be an allocated device in the claim"))
        if key in seen:
            errors.append(duplicate(where, status))
        seen.add(key)
    return errors


def _validate_status(status: v1.AllocatedDeviceStatus, path: str) -> list[FieldError]:
    errors = driver_name(status.driver, f"{path}.driver")
    errors += pool_name(status.pool, f"{path}.pool")
    device, share_id = status.device, status.share_id
    errors += [invalid(f"{path}.device", device, text) for text in names.dns_label(device, unit="characters")]
    if share_id is not None and not _UUID.fullmatch(share_id):
        errors.append(invalid(f"{path}.shareID", share_id, "must be a lowercase UUID in 8-4-4-4-12 format"))
    errors += _validate_conditions(status.conditions, f"{path}.conditions")
    errors += _validate_data(status.data, f"{path}.data")
    if status.network_data is not None:
        errors += _validate_network_data(status.network_data, f"{path}.networkData")
    return errors


def _validate_conditions(conditions: Sequence[v1.Condition], path: str) -> list[FieldError]:
    if len(conditions) > CONDITIONS_MAX:
        return [too_many(path, len(conditions), CONDITIONS_MAX)]
    errors = []
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
        errors.append(required(f"{path}.type"))
    else:
        errors += [invalid(f"{path}.type", condition.type, text) for text in names.label_key(condition.type)]
    if not condition.status:
        errors.append(required(f"{path}.status"))
    elif condition.status not in _CONDITION_STATUSES:
        errors.append(unsupported(f"{path}.status", condition.status, _CONDITION_STATUSES))
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


def _validate_data(data: object, path: str) -> list[FieldError]:
    if data is None:
        return []
    encoded = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    if names.byte_length(encoded) > DATA_MAX_LENGTH:
        return [too_long(path, data, DATA_MAX_LENGTH)]
    if not isinstance(data, dict):
        return [invalid(path, "<value omitted>", "must be a valid JSON object")]
    return []


def _validate_network_data(data: v1.NetworkDeviceData, path: str) -> list[FieldError]:
    errors = []
    if names.byte_length(data.interface_name) > INTERFACE_NAME_MAX_LENGTH:
        errors.append(too_long(f"{path}.interfaceName", data.interface_name, INTERFACE_NAME_MAX_LENGTH))
    if names.byte_length(data.hardware_address) > HARDWARE_ADDRESS_MAX_LENGTH:
        errors.append(too_long(f"{path}.hardwareAddress", data.hardware_address, HARDWARE_ADDRESS_MAX_LENGTH))
    if len(data.ips) > IPS_MAX:
        return [*errors, too_many(f"{path}.ips", len(data.ips), IPS_MAX)]
    for i, address in enumerate(data.ips):
        where = f"{path}.ips[{i}]"
        errors += _validate_interface_address(address, where)
        if address in data.ips[:i]:
            errors.append(duplicate(where, address))
    return errors


def _validate_interface_address(address: str, path: str) -> list[FieldError]:
    """An address with its prefix length, such as ``10.9.8.7/24``, in the one spelling that is canonical."""
    canonical = _canonical_interface(address)
    if canonical is None:
        detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"
        return [invalid(path, address, detail)]
    if canonical != address:
        return [invalid(path, address, f"must be in canonical form ({quote(canonical)})")]
    return []


def _canonical_interface(address: str) -> str | None:
    host, _, prefix = address.partition("/")
    if "%" in host or not re.fullmatch(r"\d+", prefix, re.ASCII):
        return None
    # the API server reads leading zeros as decimal and then objects to the spelling; ipaddress refuses them
    host = host if ":" in host else re.sub(r"\b0+(?=\d)", "", host)
    try:
        interface = ipaddress.ip_interface(f"{host}/{int(prefix)}")
    except ValueError:
        return None
    if isinstance(interface, ipaddress.IPv6Interface) and (mapped := interface.ip.ipv4_mapped) is not None:
        return f"{mapped}/{max(interface.network.prefixlen - 96, 0)}"
    return str(interface)
