"""Conversion between v1 and the beta versions of resource.k8s.io; fields that are dropped if a feature gate is off."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dra_kit.kubernetes.release import GATES, SUPPORTED, Change, GateHistory, KubernetesVersion, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError, GoStruct, declarative_last
from dra_kit.kubernetes.values.json import Object

V1: Final = "resource.k8s.io/v1"
V1BETA1: Final = "resource.k8s.io/v1beta1"
OUTSIDE_EXACTLY: Final = ("name", "exactly", "firstAvailable")
"""Fields of a v1 request outside of ``exactly``."""
_DEVICE_FIELD: Final = re.compile(r"^(spec\.devices\[\d+\])\.(?!name$)")
_REQUEST_FIELD: Final = re.compile(r"^((?:spec\.)+devices\.requests\[\d+\])\.exactly\b")


def to_v1(obj: Object, kind: str, api_version: str) -> Object:
    """Return an object of any version with the content of v1; its ``apiVersion`` and ``obj`` stay unchanged."""
    return _TO_V1[kind](obj) if api_version == V1BETA1 and kind in _TO_V1 else obj


def from_v1(obj: Object, kind: str, api_version: str) -> Object:
    """Return the reverse of :func:`to_v1`."""
    return _FROM_V1[kind](obj) if api_version == V1BETA1 and kind in _FROM_V1 else obj


def errors_in_version(errors: Iterable[FieldError], api_version: str, release: Release) -> list[FieldError]:
    """Return errors of a v1 object as a release reports them to a client that sent a version of it.

    Those of hand-written rules come first. Before 1.37, all rules were.
    """
    placed = (_placed(error, release) for error in errors)
    if not release.has(Change.RULES_ARE_DECLARED):
        return [error if error.repeated is None else replace(error, value=error.repeated) for error in placed]
    return declarative_last(error_in(error, api_version) for error in placed)


def _placed(error: FieldError, release: Release) -> FieldError:
    """Return an error with the path that a release gives it."""
    if not error.below:
        return error
    if error.kind is ErrorKind.DUPLICATE:
        whole = release.has(Change.DUPLICATES_ARE_WHOLE_ITEMS)
    else:
        whole = release.has(Change.KEYS_ARE_ERRORS_OF_THEIR_MAP)
    return error if whole else replace(error, path=error.path + error.below)


def error_in(error: FieldError, api_version: str) -> FieldError:
    """Return an error of a v1 object as the API server returns it to a client that sent another version.

    Only errors of declarative rules use the field names of that version (measured on kube-apiserver 1.37.1).
    """
    if api_version != V1BETA1 or not error.declarative:
        return error
    path = _DEVICE_FIELD.sub(r"\1.basic.", error.path)
    path = _REQUEST_FIELD.sub(r"\1", path)
    value = error.value
    if isinstance(value, v1.DeviceRequest):
        value = GoStruct(_request_from_v1(value.to_json()))
    return replace(error, path=path, value=value)


def _slice_to_v1(obj: Object) -> Object:
    """Convert a slice: unwrap devices, and remove empty node scopes."""
    spec = dict(obj.get("spec") or {})
    for scope in ("nodeName", "allNodes"):
        if not spec.get(scope):
            spec.pop(scope, None)
    if spec.get("devices"):
        spec["devices"] = [
            {"name": device.get("name", ""), **(device.get("basic") or {})} for device in spec["devices"]
        ]
    return {**obj, "spec": spec}


def _slice_from_v1(obj: Object) -> Object:
    spec = dict(obj["spec"])
    if spec.get("devices"):
        spec["devices"] = [
            {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
            for device in spec["devices"]
        ]
    return {**obj, "spec": spec}


def _request_to_v1(request: Object) -> Object:
    """Convert a request: move the fields that describe devices to ``exactly``, if any is set."""
    exactly = {key: value for key, value in request.items() if key not in OUTSIDE_EXACTLY}
    converted: Object = {key: request[key] for key in ("name", "firstAvailable") if key in request}
    if any(map(_is_set, exactly.values())):
        converted["exactly"] = exactly
    return converted


def _is_set(value: Any) -> bool:
    """Return whether a field of a v1beta1 request counts as set: an empty list and ``adminAccess: false`` do."""
    return isinstance(value, bool | list | dict) or bool(value)


def _request_from_v1(request: Object) -> Object:
    exactly = {"deviceClassName": "", **(request.get("exactly") or {})}
    name = {"name": request["name"]} if "name" in request else {}
    return name | exactly | {key: value for key, value in request.items() if key not in ("name", "exactly")}


def _requests(spec: Object, convert: Callable[[Object], Object]) -> Object:
    devices = spec.get("devices") or {}
    if not devices.get("requests"):
        return spec
    return {**spec, "devices": {**devices, "requests": [convert(request) for request in devices["requests"]]}}


def _claim(obj: Object, *, convert: Callable[[Object], Object]) -> Object:
    return {**obj, "spec": _requests(obj.get("spec") or {}, convert)}


def _template(obj: Object, *, convert: Callable[[Object], Object]) -> Object:
    return {**obj, "spec": _claim(obj.get("spec") or {}, convert=convert)}


_TO_V1: Final[Mapping[str, Callable[[Object], Object]]] = {
    "ResourceSlice": _slice_to_v1,
    "ResourceClaim": partial(_claim, convert=_request_to_v1),
    "ResourceClaimTemplate": partial(_template, convert=_request_to_v1),
}
_FROM_V1: Final[Mapping[str, Callable[[Object], Object]]] = {
    "ResourceSlice": _slice_from_v1,
    "ResourceClaim": partial(_claim, convert=_request_from_v1),
    "ResourceClaimTemplate": partial(_template, convert=_request_from_v1),
}


_EACH: Final = "*"
_DEVICES: Final = "spec.devices.*"
_RESULTS: Final = "status.allocation.devices.results.*"
_ALLOCATED_AT: Final = "status.allocation.allocationTimestamp"
_EXACTLY: Final = "devices.requests.*.exactly"
_ALTERNATIVES: Final = "devices.requests.*.firstAvailable.*"


def _of_requests(field: str) -> tuple[str, ...]:
    """Return the paths of a field of exact requests and subrequests, in claims and templates."""
    return _of_claims(f"{_EXACTLY}.{field}", f"{_ALTERNATIVES}.{field}")


def _of_claims(*paths: str) -> tuple[str, ...]:
    """Return the paths of fields of a claim's spec, in claims and templates."""
    return tuple(f"{spec}.{path}" for spec in ("spec", "spec.spec") for path in paths)


_TOLERATIONS: Final = _of_requests("tolerations")
_DISTINCT: Final = _of_claims("devices.constraints.*.distinctAttribute")
GATED_FIELDS: Final[Sequence[tuple[tuple[str, ...], tuple[str, ...]]]] = (
    (("DRADeviceTaints",), (f"{_DEVICES}.taints", *_TOLERATIONS)),
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
        *_DISTINCT, *_of_requests("capacity"),
        *(f"{_RESULTS}.{name}" for name in ("shareID", "consumedCapacity")), "status.devices.*.shareID",
    )),
    (("DRADeviceCompatibilityGroups",), (f"{_DEVICES}.consumesCounters.*.compatibilityGroups",)),
    (("DRANodeAllocatableResources",), (
        f"{_DEVICES}.nodeAllocatableResources", f"{_DEVICES}.nodeAllocatableResourceMappings",
    )),
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


def drop_disabled_fields(obj: Object, old: Object | None, release: Release) -> Object:
    """Return an object without the fields of disabled features, except features that the old object uses.

    Args:
        obj: object of resource.k8s.io in v1; it is not changed.
        old: the stored object that it replaces, without empty lists and maps.
        release: of the API server.
    """
    kept = _stored_without_gates(release)
    for needed, paths in GATED_FIELDS:
        if all(gate in release for gate in needed):
            continue
        ways = [path.split(".") for path in paths]
        if "DRADeviceBindingConditions" in needed and not release.has(Change.ALLOCATION_TIMES_STAY):
            ways.append(_ALLOCATED_AT.split("."))
        if old is None or not any(_uses(old, way) for way in ways):  # also a feature whose fields are all kept
            for way in ways:
                obj = obj if ".".join(way) in kept else _without(obj, way)
    return obj


def _stored_without_gates(release: Release) -> tuple[str, ...]:
    """Return the fields that are stored without their gates, too; without these, they have no effect."""
    return () if release.has(Change.CLAIMS_LOSE_ALL_DISABLED_FIELDS) else (*_DISTINCT, *_TOLERATIONS)


def compares_distinct_values(version: KubernetesVersion) -> bool:
    """Return whether ``distinctAttribute`` has an effect in a release, if its allocator knows it at all."""
    return version.has(Change.DISTINCT_VALUES_COMPARED)


def history_of_field(path: str, gate: str) -> GateHistory:
    """Return the history of a gate, from the first release on in which a field that needs it has an effect."""
    if not path.endswith("distinctAttribute"):
        return GATES[gate]
    return GATES[gate]._replace(known=next(each.minor for each in SUPPORTED if compares_distinct_values(each)))


def ignored_fields(obj: Object, release: Release) -> Iterator[tuple[str, Object]]:
    """Yield each gate without which fields are stored, but have no effect, and the object without these fields.

    The gate may be on, for fields that have an effect in a later release only.

    Args:
        obj: stored object of resource.k8s.io in v1; it is not changed.
        release: of the API server.
    """
    kept = _stored_without_gates(release)
    early = () if compares_distinct_values(release.version) else _DISTINCT
    for needed, paths in GATED_FIELDS:
        for gate in needed:
            rest = obj
            for path in (path for path in paths if path in (kept if gate not in release else early)):
                rest = _without(rest, path.split("."))
            if rest is not obj:
                yield gate, rest


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
