"""Fields that the API server drops because a feature gate is off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from dra_kit.kubernetes.release import FeatureGates
from dra_kit.kubernetes.values.json import Object

_EACH: Final = "*"
_DEVICES: Final = "spec.devices.*"
_RESULTS: Final = "status.allocation.devices.results.*"
_EXACTLY: Final = "devices.requests.*.exactly"
_ALTERNATIVES: Final = "devices.requests.*.firstAvailable.*"


def _of_requests(field: str) -> tuple[str, ...]:
    """Return the paths of a field of exact requests and subrequests, in claims and templates."""
    return _of_claims(f"{_EXACTLY}.{field}", f"{_ALTERNATIVES}.{field}")


def _of_claims(*paths: str) -> tuple[str, ...]:
    """Return the paths of fields of a claim's spec, in claims and templates."""
    return tuple(f"{spec}.{path}" for spec in ("spec", "spec.spec") for path in paths)


GATED_FIELDS: Final[Sequence[tuple[tuple[str, ...], tuple[str, ...]]]] = (
    (("DRADeviceTaints",), (f"{_DEVICES}.taints", *_of_requests("tolerations"))),
    (("DRAPartitionableDevices",), (
        "spec.sharedCounters", "spec.perDeviceNodeSelection",
        *(f"{_DEVICES}.{name}" for name in ("consumesCounters", "nodeName", "nodeSelector", "allNodes")),
    )),
    (("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"), (
        *(f"{_DEVICES}.{name}" for name in ("bindingConditions", "bindingFailureConditions", "bindsToNode")),
        *(f"{_RESULTS}.{name}" for name in ("bindingConditions", "bindingFailureConditions")),
    )),
    (("DRAConsumableCapacity",), (
        f"{_DEVICES}.allowMultipleAllocations", f"{_DEVICES}.capacity.*.requestPolicy",
        *_of_claims("devices.constraints.*.distinctAttribute"), *_of_requests("capacity"),
        *(f"{_RESULTS}.{name}" for name in ("shareID", "consumedCapacity")), "status.devices.*.shareID",
    )),
    (("DRADeviceCompatibilityGroups",), (f"{_DEVICES}.consumesCounters.*.compatibilityGroups",)),
    (("DRANodeAllocatableResources",), (f"{_DEVICES}.nodeAllocatableResources",)),
    (("DRAListTypeAttributes",), tuple(
        f"{_DEVICES}.attributes.*.{name}" for name in ("ints", "bools", "strings", "versions")
    )),
    (("DRAPartitionableDevicesType",), ("spec.partitionTypeAttribute", "spec.defaultPartitionTypeAttribute")),
    (("DRAOptionalNodeOperations",), ("spec.skipNodeOperations", f"{_RESULTS}.skipNodeOperations")),
    (("DRADerivedAttributes",), _of_requests("derivedAttributes")),
    (("DRAPrioritizedList",), _of_claims("devices.requests.*.firstAvailable")),
    (("DRAAdminAccess",), (
        *_of_claims(f"{_EXACTLY}.adminAccess"), f"{_RESULTS}.adminAccess",
    )),
    (("DRAResourceClaimDeviceStatus",), ("status.devices",)),
    (("DRAExtendedResource",), ("spec.extendedResourceName",)),
)  # fmt: skip
"""Required gates, and the fields of all kinds that depend on them; different kinds have different paths."""


def drop_disabled_fields(obj: Object, old: Object | None, gates: FeatureGates) -> Object:
    """Return an object without the fields of disabled features, except features that the old object uses.

    Args:
        obj: object of resource.k8s.io in v1; it is not changed.
        old: the stored object that it replaces, without empty lists and maps.
        gates: of the API server.
    """
    for needed, paths in GATED_FIELDS:
        if all(gate in gates for gate in needed):
            continue
        ways = [path.split(".") for path in paths]
        if old is None or not any(_uses(old, way) for way in ways):
            for way in ways:
                obj = _without(obj, way)
    return obj


def _uses(value: Any, way: Sequence[str]) -> bool:
    if not way:
        return value is not None and value != []  # an empty struct counts
    return any(_uses(item, way[1:]) for _, item in _entries(value, way[0]))


def _without(value: Any, way: Sequence[str]) -> Any:
    """Return the value without a field; containers on the path are copied."""
    step, rest = way[0], way[1:]
    if not rest:
        return {key: item for key, item in value.items() if key != step} if _has(value, step) else value
    changed = {key: _without(item, rest) for key, item in _entries(value, step)}
    if not any(changed[key] is not item for key, item in _entries(value, step)):
        return value
    if isinstance(value, dict):
        return {**value, **changed}
    return [changed[i] for i in range(len(value))]


def _has(value: Any, key: str) -> bool:
    return isinstance(value, dict) and key in value


def _entries(value: Any, step: str) -> Iterator[tuple[Any, Any]]:
    if step == _EACH and isinstance(value, list):
        yield from enumerate(value)
    elif step == _EACH and isinstance(value, dict):
        yield from value.items()
    elif _has(value, step):
        yield step, value[step]
