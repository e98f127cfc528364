"""The allocation in the status of a claim."""

from __future__ import annotations

from typing import Final

from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError, declarative, required, unsupported
from dra_kit.resource.validation.claims.claims import validate_references
from dra_kit.resource.validation.claims.requests import validate_reference
from dra_kit.resource.validation.fields.binding import validate_binding
from dra_kit.resource.validation.fields.formats import declared_driver_name, declared_pool_name, device_name, share_id
from dra_kit.resource.validation.fields.lists import limited, over_limit
from dra_kit.resource.validation.fields.opaque import validate_opaque
from dra_kit.resource.validation.fields.tolerations import validate_tolerations
from dra_kit.resource.validation.slices.nodes import validate_node_selector
from dra_kit.resource.validation.slices.operations import validate_skipped_operations

RESULTS_MAX: Final = 32
"""Devices of one claim."""

CONFIGS_MAX: Final = 64
_SOURCES: Final = ("FromClaim", "FromClass")


def validate_allocation(
    allocation: v1.AllocationResult, known: frozenset[str], path: str = "status.allocation"
) -> list[FieldError]:
    """Check a new allocation.

    Args:
        allocation: the result.
        known: names of the claim's requests, ``request_names``.
        path: where it is.
    """
    results, where = allocation.devices.results, f"{path}.devices.results"
    errors = over_limit(results, RESULTS_MAX, where)
    for below, result in limited(results, RESULTS_MAX, where):
        errors += _validate_result(result, known, below)
    entries, where = allocation.devices.config, f"{path}.devices.config"
    errors += over_limit(entries, CONFIGS_MAX, where)
    for below, entry in limited(entries, CONFIGS_MAX, where):
        errors += declarative(_validate_source(entry.source, f"{below}.source"))
        errors += validate_references(entry.requests, known, f"{below}.requests")
        errors += validate_opaque(entry.opaque, below)
    if allocation.node_selector is not None:
        errors += validate_node_selector(allocation.node_selector, f"{path}.nodeSelector")
    return errors


def _validate_source(source: str, path: str) -> list[FieldError]:
    if not source:
        return [required(path)]
    return [] if source in _SOURCES else [unsupported(path, source, _SOURCES)]


def _validate_result(result: v1.DeviceRequestAllocationResult, known: frozenset[str], path: str) -> list[FieldError]:
    errors = validate_reference(result.request, known, f"{path}.request")
    errors += device_name(result.device, f"{path}.device")
    errors += declared_driver_name(result.driver, f"{path}.driver")
    where = f"{path}.pool"
    errors += declared_pool_name(result.pool, where) if result.pool else declarative([required(where)])
    errors += declarative(validate_tolerations(result.tolerations, f"{path}.tolerations"))
    errors += validate_binding(result, path)
    if result.share_id is not None:
        errors += share_id(result.share_id, f"{path}.shareID")
    return errors + validate_skipped_operations(result.skip_node_operations, f"{path}.skipNodeOperations")
