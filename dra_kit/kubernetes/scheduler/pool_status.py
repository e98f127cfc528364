"""The status of pools that a ResourcePoolStatusRequest asks for (KEP-5677).

Source: Kubernetes 1.37 ``pkg/controller/resourcepoolstatusrequest``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.resource.matching import taint_rule_covers, taint_rule_may_cover
from dra_kit.kubernetes.resource.v1 import DeviceTaintSelector
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import Quantity

_DEFAULT_LIMIT: Final = 100
_SUMMARY_MAX: Final = 32  # partition types, and capacities of shareable devices
_ERROR_MAX: Final = 256  # bytes of validationError
_UNAVAILABLE: Final = frozenset({"NoSchedule", "NoExecute"})
_Counters: TypeAlias = dict[tuple[str, str], Quantity]  # by counter set and counter


class PoolStatusReport(Struct, frozen=True):
    """What a request receives.

    Attributes:
        status: of the request, without the time of its condition.
        incomplete: slices of a pool are missing; the controller then waits instead of reporting.
    """

    status: dict[str, Any]
    incomplete: bool


class _Usage(Struct):
    """What claims use of a pool; administrators' access does not count."""

    devices: set[str] = field(default_factory=set)
    capacity: dict[str, Quantity] = field(default_factory=dict)


class _Device(Struct, frozen=True):
    """A device of a release with its attribute for grouping, if it has one, and the value of that."""

    document: ObjectView
    attribute: str
    partition: str | None
    version: KubernetesVersion

    @property
    def costs(self) -> Sequence[ObjectView]:
        return self.document.get("consumesCounters") or ()


def report_pools(
    request: ObjectView,
    slices: Iterable[ObjectView],
    claims: Iterable[ObjectView],
    rules: Iterable[ObjectView],
    version: KubernetesVersion,
) -> PoolStatusReport:
    """Return the status that a request receives.

    Args:
        request: a ResourcePoolStatusRequest.
        slices: all ResourceSlices.
        claims: all ResourceClaims.
        rules: all DeviceTaintRules.
        version: the release of the controller.
    """
    driver, wanted = request["spec"]["driver"], request["spec"].get("poolName")
    found: dict[str, list[ObjectView]] = defaultdict(list)
    for item in slices:
        name = item["spec"]["pool"]["name"]
        if item["spec"]["driver"] == driver and wanted in {None, "", name}:
            found[name].append(item["spec"])
    usage, selectors = _usage(claims, version), _selectors_of_unavailable(rules)
    fallback = request["spec"].get("defaultPartitionTypeAttribute")
    limit = request["spec"].get("limit", _DEFAULT_LIMIT)
    pools = [
        _Pool(driver, name, found[name], usage.get((driver, name)) or _Usage(), fallback, version=version)
        for name in sorted(found)[:limit]
    ]
    reported = [pool.status(selectors) for pool in pools]
    flawed = sum("validationError" in pool for pool in reported)
    message = f"Calculated status for {len(reported)} pools" + (f" ({flawed} incomplete)" if flawed else "")
    condition = {"type": "Complete", "status": "True", "reason": "CalculationComplete", "message": message}
    status: dict[str, Any] = {"poolCount": len(found), "conditions": [condition]}
    if reported:
        status["pools"] = reported
    return PoolStatusReport(status, any("resourceSliceCount" not in pool for pool in reported))


def _selectors_of_unavailable(rules: Iterable[ObjectView]) -> list[DeviceTaintSelector]:
    """Return the selectors of rules whose taints keep pods off a device."""
    specs = (rule["spec"] for rule in rules)
    return [
        DeviceTaintSelector.model_validate(spec["deviceSelector"])
        for spec in specs
        if spec.get("deviceSelector") is not None and spec["taint"].get("effect") in _UNAVAILABLE
    ]


def _usage(claims: Iterable[ObjectView], version: KubernetesVersion) -> Mapping[tuple[str, str], _Usage]:
    found: dict[tuple[str, str], _Usage] = defaultdict(_Usage)
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            if result.get("adminAccess"):
                continue
            used = found[result["driver"], result["pool"]]
            used.devices.add(result["device"])
            for name, amount in (result.get("consumedCapacity") or {}).items():
                used.capacity[name] = used.capacity.get(name, Quantity(0, version)) + Quantity(amount, version)
    return found


class _Pool:
    def __init__(
        self,
        driver: str,
        name: str,
        specs: Sequence[ObjectView],
        usage: _Usage,
        fallback: str | None,
        *,
        version: KubernetesVersion,
    ) -> None:
        self._version = version
        self._driver = driver
        self._name = name
        self._id = f"{driver}/{name}"
        self._usage = usage
        self._generation = max(spec["pool"].get("generation", 0) for spec in specs)
        self._specs = [spec for spec in specs if spec["pool"].get("generation", 0) == self._generation]
        self._counters: _Counters = {
            (counters["name"], counter): Quantity(value["value"], version)
            for spec in self._specs
            for counters in spec.get("sharedCounters") or ()
            for counter, value in counters["counters"].items()
        }
        declared = any(spec.get("partitionTypeAttribute") and spec.get("devices") for spec in self._specs)
        self._devices = [
            self._device(device, spec.get("partitionTypeAttribute") or ("" if declared else fallback or ""))
            for spec in self._specs
            for device in spec.get("devices") or ()
        ]

    def _device(self, document: ObjectView, attribute: str) -> _Device:
        """Return a device; the names of its attributes may lack the driver's domain."""
        attributes = document.get("attributes") or {}
        value = attributes.get(attribute)
        if value is None and attribute.startswith(f"{self._driver}/"):
            value = attributes.get(attribute.removeprefix(f"{self._driver}/"))
        return _Device(document, attribute, (value or {}).get("string"), self._version)

    def status(self, unavailable_devices: Iterable[DeviceTaintSelector]) -> dict[str, Any]:
        """Return the entry of the pool."""
        status: dict[str, Any] = {"driver": self._driver, "poolName": self._name, "generation": self._generation}
        nodes = {spec.get("nodeName") or "" for spec in self._specs}
        if len(nodes) == 1 and nodes != {""}:
            (status["nodeName"],) = nodes
        expected = self._specs[0]["pool"]["resourceSliceCount"]
        if len(self._specs) < expected:
            return status | {"validationError": _shortened(
                f"PoolIncomplete: pool {self._id} is incomplete: observed {len(self._specs)}/{expected} slices at "
                f"generation {self._generation}"
            )}  # fmt: skip
        selectors = [item for item in unavailable_devices if taint_rule_may_cover(item, self._driver, self._name)]
        unavailable = sum(self._is_unavailable(device.document, selectors) for device in self._devices)
        allocated = len(self._usage.devices)
        status |= {
            "resourceSliceCount": len(self._specs),
            "totalDevices": len(self._devices),
            "allocatedDevices": allocated,
            "availableDevices": max(0, len(self._devices) - allocated - unavailable),
            "unavailableDevices": unavailable,
        }
        partitions, problem = self._partitions()
        shareable, other_problem = self._shareable()
        problem = problem or other_problem
        if partitions and not problem:
            status["partitionSummary"] = partitions
        if shareable is not None:
            status["shareableSummary"] = shareable
        return status | ({"validationError": _shortened(problem)} if problem else {})

    def _is_unavailable(self, device: ObjectView, selectors: Iterable[DeviceTaintSelector]) -> bool:
        device_id = self._driver, self._name, device["name"]
        return any(taint.get("effect") in _UNAVAILABLE for taint in device.get("taints") or ()) or any(
            taint_rule_covers(selector, device_id) for selector in selectors
        )

    def _partitions(self) -> tuple[list[dict[str, Any]], str]:
        """Return how many partitions of each type exist, and fit on their own beside what is in use; or a problem."""
        if not any(device.attribute for device in self._devices):
            return [], ""
        if not self._counters:
            text = f"pool {self._id} declares partitionTypeAttribute but publishes no sharedCounters"
            return [], f"PartitionTypeMissing: {text}"
        groups: dict[tuple[str, str], list[_Device]] = defaultdict(list)
        for device in self._devices:
            if not device.costs or not device.attribute:
                continue
            if device.partition is None:
                name, attribute = go_quote(device.document["name"]), go_quote(device.attribute)
                text = f"device {name} in pool {self._id} does not carry partition type attribute {attribute}"
                return [], f"PartitionTypeMissing: {text}"
            group = groups[device.attribute, device.partition]
            group.append(device)
            if _costs_text(device) != _costs_text(group[0]):
                text = f"devices of partition type {go_quote(device.partition)} in pool {self._id}"
                return [], f"PartitionCostMismatch: {text} consume different counters"
        if len(groups) > _SUMMARY_MAX:
            text = f"pool {self._id} has {len(groups)} partition types, exceeding the maximum of {_SUMMARY_MAX}"
            return [], f"PartitionSummaryOverCap: {text}"
        free = dict(self._counters)
        for device in self._devices:
            if device.document["name"] in self._usage.devices:
                _deduct(device, free)
        return [
            {"attribute": attribute, "type": kind, "total": len(group), "allocatable": self._fitting(group, dict(free))}
            for (attribute, kind), group in sorted(groups.items())
        ], ""

    def _fitting(self, devices: Iterable[_Device], free: _Counters) -> int:
        """Return how many devices that are not in use fit into counters, which become less."""
        number = 0
        for device in devices:
            unused = device.document["name"] not in self._usage.devices
            if unused and all(key in free and free[key] >= amount for key, amount in _costs(device).items()):
                number += 1
                _deduct(device, free)
        return number

    def _shareable(self) -> tuple[dict[str, Any] | None, str]:
        """Return the capacity of devices that several claims can share, if there are any; or a problem."""
        shared = [each.document for each in self._devices if each.document.get("allowMultipleAllocations")]
        if not shared:
            return None, ""
        total: dict[str, Quantity] = {}
        zero = Quantity(0, self._version)
        for device in shared:
            for name, capacity in (device.get("capacity") or {}).items():
                total[name] = total.get(name, zero) + Quantity(capacity["value"], self._version)
        if len(total) > _SUMMARY_MAX:
            text = f"pool {self._id} has {len(total)} shareable capacity keys, exceeding the maximum of {_SUMMARY_MAX}"
            return None, f"ShareableSummaryOverCap: {text}"
        capacities = []
        for name, amount in sorted(total.items()):
            consumed = self._usage.capacity.get(name, zero)
            left = amount - consumed
            capacities.append(
                {
                    "name": name,
                    "total": str(amount),
                    "consumed": str(consumed),
                    "available": "0" if left.sign < 0 else str(left),
                }
            )
        used = sum(device["name"] in self._usage.devices for device in shared)
        summary: dict[str, Any] = {"fullyAvailableDevices": len(shared) - used, "partiallyAvailableDevices": used}
        return summary | ({"capacity": capacities} if capacities else {}), ""


def _costs(device: _Device) -> _Counters:
    return {
        (entry["counterSet"], name): Quantity(value["value"], device.version)
        for entry in device.costs
        for name, value in entry["counters"].items()
    }


def _costs_text(device: _Device) -> list[str]:
    return sorted(f"{counters}/{name}={amount}" for (counters, name), amount in _costs(device).items())


def _deduct(device: _Device, free: _Counters) -> None:
    for key, amount in _costs(device).items():
        if key in free:
            free[key] -= amount


def _shortened(text: str) -> str:
    return text.encode()[:_ERROR_MAX].decode(errors="ignore")
