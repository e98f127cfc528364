"""``status.devices`` of a claim: what drivers report about allocated devices (KEP-4817)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any, Final

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, GoStruct, declarative, duplicate, invalid, quote, too_long, too_many
from dra_kit.resource.validation.fields.conditions import validate_conditions
from dra_kit.resource.validation.fields.formats import device_name, driver_name, pool_name, share_id
from dra_kit.resource.validation.fields.opaque import validate_object

IPS_MAX: Final = 16
INTERFACE_NAME_MAX_LENGTH: Final = 256
HARDWARE_ADDRESS_MAX_LENGTH: Final = 128


def validate_device_statuses(
    statuses: Sequence[v1.AllocatedDeviceStatus],
    results: Sequence[v1.DeviceRequestAllocationResult],
    path: str = "status.devices",
) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for ``status.devices``.

    Args:
        statuses: the entries of all drivers. The size of ``data`` is that of its compact JSON unless it knows the
            text that it was read from (``resource.opaque``): the API server counts white space.
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
            errors += declarative([duplicate(where, _written(status))])
        seen.add(key)
    return errors


def _written(status: v1.AllocatedDeviceStatus) -> GoStruct:
    """Return an entry as the API server writes it: ``conditions`` also where there are none."""
    written: dict[str, Any] = {"driver": "", "pool": "", "device": "", **status.to_json()}
    identity = {name: written.pop(name) for name in ("driver", "pool", "device", "shareID") if name in written}
    conditions = written.pop("conditions", None)
    return GoStruct(identity | {"conditions": conditions} | written)


def _validate_status(status: v1.AllocatedDeviceStatus, path: str) -> list[FieldError]:
    errors = driver_name(status.driver, f"{path}.driver")
    errors += pool_name(status.pool, f"{path}.pool")
    errors += device_name(status.device, f"{path}.device")
    if status.share_id is not None:
        errors += share_id(status.share_id, f"{path}.shareID")
    errors += validate_conditions(status.conditions, f"{path}.conditions")
    if status.data is not None:
        errors += validate_object(status.data, f"{path}.data")
    if status.network_data is not None:
        errors += _validate_network_data(status.network_data, f"{path}.networkData")
    return errors


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
    """Check an address with its prefix length, such as ``10.9.8.7/24``, in the one spelling that is canonical."""
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
