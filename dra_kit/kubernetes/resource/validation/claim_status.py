"""Rules for the status of a ResourceClaim: allocation, consumers, and device status."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any, Final

from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import request_names
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    GoStruct,
    check_length,
    duplicate,
    forbidden,
    go_quote,
    invalid,
    mark_declarative,
    required,
    too_many,
)
from dra_kit.kubernetes.resource.names import (
    declared_driver_name,
    declared_pool_name,
    driver_name,
    label_errors,
    pool_name,
    share_id,
)
from dra_kit.kubernetes.resource.validation.fields import (
    check_limit,
    entries_within,
    find_duplicates,
    require_one_of,
    validate_amounts,
    validate_binding,
    validate_conditions,
    validate_node_selector,
    validate_object,
    validate_opaque,
    validate_reference,
    validate_request_references,
    validate_skipped_operations,
    validate_tolerations,
)

IPS_MAX: Final = 16
INTERFACE_NAME_MAX_LENGTH: Final = 256
HARDWARE_ADDRESS_MAX_LENGTH: Final = 128


def validate_device_statuses(
    statuses: Sequence[v1.AllocatedDeviceStatus],
    results: Sequence[v1.DeviceRequestAllocationResult],
    release: Release,
) -> list[FieldError]:
    """Check all rules of the API server for ``status.devices``.

    Args:
        statuses: the entries of all drivers. The size of ``data`` is that of its compact JSON unless it knows the
            text that it was read from (``resource.opaque``): the API server counts white space.
        results: ``status.allocation.devices.results`` of the claim; every entry must belong to one.
        release: of the API server.
    """
    allocated = {(result.driver, result.pool, result.device, result.share_id or "") for result in results}
    errors = []
    seen: set[tuple[str, str, str, str]] = set()
    for i, status in enumerate(statuses):
        where = f"status.devices[{i}]"
        key = (status.driver, status.pool, status.device, status.share_id or "")
        errors += _validate_status(status, where, release)
        if key not in allocated:
            shown = GoStruct(zip(("Driver", "Pool", "Device", "ShareID"), key, strict=True))
            errors.append(invalid(where, shown, "must be an allocated device in the claim"))
        if key in seen:
            hidden = GoStruct(Driver={}, Pool={}, Device={}, ShareID={})  # so does Go write its interned strings
            errors += mark_declarative([duplicate(where, _written(status), key="deviceID", repeated=hidden)])
        seen.add(key)
    return errors


def _written(status: v1.AllocatedDeviceStatus) -> GoStruct:
    """Return an entry as the API server writes it, always with ``conditions``."""
    written: dict[str, Any] = {"driver": "", "pool": "", "device": "", **status.to_json()}
    identity = {name: written.pop(name) for name in ("driver", "pool", "device", "shareID") if name in written}
    conditions = written.pop("conditions", None)
    return GoStruct(identity | {"conditions": conditions} | written)


def _validate_status(status: v1.AllocatedDeviceStatus, path: str, release: Release) -> list[FieldError]:
    errors = driver_name(status.driver, f"{path}.driver")
    errors += pool_name(status.pool, f"{path}.pool")
    errors += label_errors(status.device, f"{path}.device")
    if status.share_id is not None:
        errors += share_id(status.share_id, f"{path}.shareID")
    errors += validate_conditions(status.conditions, f"{path}.conditions", release)
    if status.data is not None:
        errors += validate_object(status.data, f"{path}.data")
    if status.network_data is not None:
        errors += _validate_network_data(status.network_data, f"{path}.networkData", release)
    return errors


def _validate_network_data(data: v1.NetworkDeviceData, path: str, release: Release) -> list[FieldError]:
    errors = check_length(data.interface_name, INTERFACE_NAME_MAX_LENGTH, f"{path}.interfaceName")
    errors += check_length(data.hardware_address, HARDWARE_ADDRESS_MAX_LENGTH, f"{path}.hardwareAddress")
    if len(data.ips) > IPS_MAX:
        errors.append(too_many(f"{path}.ips", len(data.ips), IPS_MAX))
    seen: set[str] = set()
    for where, address in entries_within(data.ips, IPS_MAX, f"{path}.ips", release):
        errors += _validate_interface_address(address, where)
        if address in seen:
            errors.append(duplicate(where, address))
        seen.add(address)
    return errors


def _validate_interface_address(address: str, path: str) -> list[FieldError]:
    """Check an address with prefix length, such as ``10.9.8.7/24``, in canonical form."""
    canonical = _canonical_interface(address)
    if canonical is None:
        detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"
        return [invalid(path, address, detail)]
    if canonical != address:
        return [invalid(path, address, f"must be in canonical form ({go_quote(canonical)})")]
    return []


def _canonical_interface(address: str) -> str | None:
    host, _, prefix = address.partition("/")
    if "%" in host or not re.fullmatch(r"\d+", prefix, re.ASCII):
        return None
    # the API server accepts leading zeros as decimal and then rejects the form; ipaddress rejects them
    host = host if ":" in host else re.sub(r"\b0+(?=\d)", "", host)
    try:
        interface = ipaddress.ip_interface(f"{host}/{int(prefix)}")
    except ValueError:
        return None
    if isinstance(interface, ipaddress.IPv6Interface) and (mapped := interface.ip.ipv4_mapped) is not None:
        return f"{mapped}/{max(interface.network.prefixlen - 96, 0)}"
    return str(interface)


RESULTS_MAX: Final = 32
"""Devices of one claim."""
ALLOCATION_CONFIGS_MAX: Final = 64
_SOURCES: Final = ("FromClaim", "FromClass")


def validate_allocation(allocation: v1.AllocationResult, known: frozenset[str], release: Release) -> list[FieldError]:
    """Check a new allocation."""
    results, where = allocation.devices.results, "status.allocation.devices.results"
    errors = check_limit(results, RESULTS_MAX, where)
    for below, result in entries_within(results, RESULTS_MAX, where, release):
        errors += _validate_result(result, known, below, release)
    entries, where = allocation.devices.config, "status.allocation.devices.config"
    errors += check_limit(entries, ALLOCATION_CONFIGS_MAX, where)
    for below, entry in entries_within(entries, ALLOCATION_CONFIGS_MAX, where, release):
        errors += mark_declarative(require_one_of(entry.source, _SOURCES, f"{below}.source"))
        errors += validate_request_references(entry.requests, known, f"{below}.requests", release)
        errors += validate_opaque(entry.opaque, below)
    if allocation.node_selector is not None:
        errors += validate_node_selector(allocation.node_selector, "status.allocation.nodeSelector")
    return errors


def _validate_result(
    result: v1.DeviceRequestAllocationResult, known: frozenset[str], path: str, release: Release
) -> list[FieldError]:
    errors = validate_reference(result.request, known, f"{path}.request")
    errors += label_errors(result.device, f"{path}.device")
    errors += declared_driver_name(result.driver, f"{path}.driver")
    where = f"{path}.pool"
    errors += declared_pool_name(result.pool, where) if result.pool else mark_declarative([required(where)])
    if release.has(Change.RESULTS_HAVE_VALID_TOLERATIONS):
        errors += mark_declarative(validate_tolerations(result.tolerations, f"{path}.tolerations", release))
    errors += validate_binding(result, path, release)
    if result.share_id is not None:
        errors += share_id(result.share_id, f"{path}.shareID")
    errors += validate_amounts(result.consumed_capacity, f"{path}.consumedCapacity", release)
    return errors + validate_skipped_operations(result.skip_node_operations, f"{path}.skipNodeOperations")


CONSUMERS_MAX: Final = 256


def validate_claim_status(
    claim: v1.ResourceClaim,
    devices: Sequence[v1.AllocatedDeviceStatus],
    old: v1.ResourceClaimStatus,
    release: Release,
) -> list[FieldError]:
    """Check all rules of the API server for a write of the status of a claim.

    An allocation is looked at only when it is new: afterwards it does not change until it is removed.
    """
    status = claim.status
    errors = _validate_consumers(status.reserved_for, release)
    results = status.allocation.devices.results if status.allocation else ()
    errors += validate_device_statuses(devices, results, release)
    if status.reserved_for and status.allocation is None:
        errors.append(forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
    elif claim.metadata.deletion_timestamp is not None:
        known = {consumer.uid for consumer in old.reserved_for}
        if any(consumer.uid not in known for consumer in status.reserved_for):
            detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
            errors.append(forbidden("status.reservedFor", detail))
    if status.allocation is not None and old.allocation is None:
        errors += validate_allocation(status.allocation, request_names(claim.spec.devices.requests), release)
    elif status.allocation is not None and status.allocation != old.allocation:
        errors += mark_declarative([invalid("status.allocation", None, "field cannot be modified once set")])
    return errors


def _validate_consumers(consumers: Sequence[v1.ResourceClaimConsumerReference], release: Release) -> list[FieldError]:
    path = "status.reservedFor"
    errors = check_limit(consumers, CONSUMERS_MAX, path)
    entries = [*entries_within(consumers, CONSUMERS_MAX, path, release)]
    errors += find_duplicates((consumer for _, consumer in entries), lambda consumer: consumer.uid, path, "uid")
    for where, consumer in entries:
        needed = {"resource": consumer.resource, "name": consumer.name, "uid": consumer.uid}
        errors += [required(f"{where}.{name}") for name, value in needed.items() if not value]
    return errors
