"""Rules for ResourceSlices and pools, DeviceTaintRules and ResourcePoolStatusRequests.

``devices.py`` has the rules for one device. What limits the devices of a slice belongs to :func:`max_devices`, which
validation uses and :func:`split_devices`, by which pools are published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    GoStruct,
    check_length,
    duplicate,
    go_quote,
    invalid,
    mark_declarative,
    not_found,
    required,
    too_many,
)
from dra_kit.kubernetes.resource.names import (
    declared_driver_name,
    declared_pool_name,
    driver_name,
    full_name,
    label_errors,
    pool_name,
)
from dra_kit.kubernetes.resource.v1 import ResourcePoolStatusRequest
from dra_kit.kubernetes.resource.validation.devices import (
    SliceLimits,
    slice_limits,
    uses_advanced_features,
    validate_all_consumed,
    validate_counter_sets,
    validate_device_fields,
    validate_device_nodes,
    validate_partition_type,
)
from dra_kit.kubernetes.resource.validation.fields import (
    check_limit,
    entries_within,
    find_duplicates,
    validate_conditions,
    validate_node_name,
    validate_node_selector,
    validate_one_term,
    validate_skipped_operations,
    validate_taint,
)

_SCOPES: Final = "`nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection`"


def validate_slice(
    resource_slice: v1.ResourceSlice,
    release: Release,
    *,
    old: v1.ResourceSlice | None = None,
    devices_valid: bool = False,
) -> list[FieldError]:
    """Check all rules of the API server for the spec of one slice, in its paths and texts.

    Every gated field is validated as if its feature gate were on: what a server drops, it drops before.

    Args:
        resource_slice: the slice; its metadata is not looked at.
        release: of the API server.
        old: what the slice replaces: driver, pool and node stay. Unchanged devices are not looked at again; before
            1.38, unchanged capacities and taints of a device.
        devices_valid: each device has been found valid by itself, for this slice's choice of nodes.
    """
    spec = resource_slice.spec
    errors = driver_name(spec.driver, "spec.driver")
    errors += _validate_pool_struct(spec.pool)
    errors += _validate_immutable(spec, old.spec) if old else []
    errors += _validate_scope(spec)
    if not release.has(Change.SLICES_HAVE_DEVICES_OR_COUNTERS):
        errors += _validate_own_counters(spec)
    # an empty list that is written out counts as set
    elif {"devices", "shared_counters"} <= spec.model_fields_set:
        only_one = invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
        errors.append(replace(only_one, counted=("sharedCounters", "devices")))
    if devices_valid:
        errors += _validate_devices(spec.devices, lambda *_: [], release)
    else:
        errors += _validate_changed(spec, old.spec if old else None, release)
    errors += validate_all_consumed(spec.devices, "spec.devices", release)
    errors += validate_counter_sets(spec.shared_counters, "spec.sharedCounters", release)
    errors += _validate_partition_type(spec, release)
    return errors + validate_skipped_operations(spec.skip_node_operations, "spec.skipNodeOperations")


def _validate_own_counters(spec: v1.ResourceSliceSpec) -> list[FieldError]:
    """Check that devices consume counters of their own slice, as before Kubernetes 1.35."""
    known = {counter_set.name: counter_set.counters for counter_set in spec.shared_counters}
    errors = []
    for i, device in enumerate(spec.devices):
        for j, consumed in enumerate(device.consumes_counters):
            path = f"spec.devices[{i}].consumesCounters[{j}]"
            if consumed.counter_set not in known:
                text = "must reference a counterSet defined in the ResourceSlice sharedCounters"
                errors.append(invalid(f"{path}.counterSet", consumed.counter_set, text))
                continue
            text = "must reference a counter defined in the ResourceSlice sharedCounters"
            missing = [name for name in consumed.counters if name not in known[consumed.counter_set]]
            errors += [invalid(f"{path}.counters", name, text) for name in missing]
    return errors


def max_devices(devices: tuple[v1.Device, ...], limits: SliceLimits) -> int:
    """Return how many devices a slice with these devices may hold."""
    return limits.advanced_devices if any(map(uses_advanced_features, devices)) else limits.devices


def split_devices(devices: Sequence[v1.Device], limits: SliceLimits) -> list[tuple[v1.Device, ...]]:
    """Return devices in slices that may hold them, in order: each is filled before the next one begins."""
    slices: list[list[v1.Device]] = []
    limit = 0
    for device in devices:
        new_limit = max_devices((device,), limits)
        if slices and len(slices[-1]) < min(limit, new_limit):
            slices[-1].append(device)
            limit = min(limit, new_limit)
        else:
            slices.append([device])
            limit = new_limit
    return [tuple(item) for item in slices]


def _validate_pool_struct(pool: v1.ResourcePool) -> list[FieldError]:
    errors = pool_name(pool.name, "spec.pool.name")
    if pool.resource_slice_count <= 0:
        where = "spec.pool.resourceSliceCount"
        errors.append(invalid(where, pool.resource_slice_count, "must be greater than zero"))
    if pool.generation < 0:
        errors.append(invalid("spec.pool.generation", pool.generation, "must be greater than or equal to zero"))
    return errors


def _validate_immutable(spec: v1.ResourceSliceSpec, old: v1.ResourceSliceSpec) -> list[FieldError]:
    fields = (
        ("spec.pool.name", spec.pool.name, old.pool.name),
        ("spec.driver", spec.driver, old.driver),
        ("spec.nodeName", spec.node_name, old.node_name),
    )
    return [invalid(path, value, "field is immutable") for path, value, before in fields if value != before]


def _validate_scope(spec: v1.ResourceSliceSpec) -> list[FieldError]:
    errors, present = [], []
    if spec.node_name == "":
        errors.append(invalid("spec.nodeName", "", "must be either unset or set to a non-empty string"))
    elif spec.node_name is not None:
        present.append("`nodeName`")
        errors += validate_node_name(spec.node_name, "spec.nodeName")
    if spec.node_selector is not None:
        present.append("`nodeSelector`")
        errors += validate_node_selector(spec.node_selector, "spec.nodeSelector")
        errors += validate_one_term(spec.node_selector, "spec.nodeSelector")
    for name, flag in (("allNodes", spec.all_nodes), ("perDeviceNodeSelection", spec.per_device_node_selection)):
        if flag:
            present.append(f"`{name}`")
        elif flag is not None:
            errors.append(invalid(f"spec.{name}", value=False, detail="must be either unset or set to true"))
    detail = f"exactly one of {_SCOPES} is required"
    if not present:
        errors.append(required("spec", detail))
    elif len(present) > 1:
        errors.append(invalid("spec", f"{{{', '.join(present)}}}", f"{detail}, but multiple fields are set"))
    return errors


def _validate_devices(
    devices: Sequence[v1.Device], check: Callable[[v1.Device, str], list[FieldError]], release: Release
) -> list[FieldError]:
    """Check the number of devices, each device, and that their names differ."""
    limit = max_devices(tuple(devices), slice_limits(release.version))
    errors = [too_many("spec.devices", len(devices), limit)] if len(devices) > limit else []
    seen: set[str] = set()
    for path, device in entries_within(devices, limit, "spec.devices", release):
        errors += check(device, path)
        if device.name in seen:
            errors.append(duplicate(path, device.name, key="name"))
        seen.add(device.name)
    return errors


def _validate_changed(
    spec: v1.ResourceSliceSpec, old: v1.ResourceSliceSpec | None, release: Release
) -> list[FieldError]:
    """Check the devices of a slice, as far as they are not those that it had before."""
    selection = spec.per_device_node_selection is True
    replaced = {device.name: device for device in (old.devices if old else ())}
    if release.has(Change.DEVICE_LISTS_ARE_ONE_UNIT):
        if old is not None and spec.devices == old.devices:
            if spec.per_device_node_selection == old.per_device_node_selection:
                return []
            check = partial(validate_device_nodes, per_device_node_selection=selection, release=release)
            return [error for i, device in enumerate(spec.devices) for error in check(device, f"spec.devices[{i}]")]
        replaced = {}

    def validate(device: v1.Device, path: str) -> list[FieldError]:
        return validate_device_fields(
            device, path, release, per_device_node_selection=selection, old=replaced.get(device.name)
        )

    return _validate_devices(spec.devices, validate, release)


def _validate_partition_type(spec: v1.ResourceSliceSpec, release: Release) -> list[FieldError]:
    name = spec.partition_type_attribute
    if name is None:
        return []
    malformed = mark_declarative(full_name(name, "spec.partitionTypeAttribute", release))
    errors = list(malformed)
    if not any(device.consumes_counters for device in spec.devices):
        detail = "may only be set on a slice which declares devices that consume counters"
        errors.append(invalid("spec.partitionTypeAttribute", name, detail))
    for i, device in enumerate(() if malformed else spec.devices):
        errors += validate_partition_type(device, name, spec.driver, f"spec.devices[{i}].attributes")
    return errors


def validate_pool(slices: Sequence[v1.ResourceSlice]) -> list[FieldError]:
    """Check unique names of devices and counter sets, and counter references, across all slices of a pool.

    A pool that breaks one of these rules is accepted by the API server and ignored by the scheduler
    (k8s.io/dynamic-resource-allocation 0.37, ``resourceslice/validation.go``). Paths begin with ``slices[i].``.
    """
    errors = []
    sets: dict[str, v1.CounterSet] = {}
    for i, resource_slice in enumerate(slices):
        for j, counter_set in enumerate(resource_slice.spec.shared_counters):
            if counter_set.name in sets:
                path = f"slices[{i}].spec.sharedCounters[{j}].name"
                errors.append(_repeated("counter sets", path, counter_set.name, resource_slice.spec.pool.name))
            sets[counter_set.name] = counter_set
    names: set[str] = set()
    for i, resource_slice in enumerate(slices):
        for j, device in enumerate(resource_slice.spec.devices):
            path = f"slices[{i}].spec.devices[{j}]"
            if device.name in names:
                errors.append(_repeated("devices", f"{path}.name", device.name, resource_slice.spec.pool.name))
            names.add(device.name)
            errors += _validate_references(device, sets, f"{path}.consumesCounters")
    return errors


def _repeated(what: str, path: str, name: str, pool: str) -> FieldError:
    rule = f"{what} must be unique in"
    return replace(duplicate(path, name, f"{rule} pool {go_quote(pool)}"), author_detail=f"{rule} a pool")


def _validate_references(device: v1.Device, sets: Mapping[str, v1.CounterSet], path: str) -> list[FieldError]:
    errors = []
    for i, entry in enumerate(device.consumes_counters):
        counter_set = sets.get(entry.counter_set)
        if counter_set is None:
            detail = f"the pool has no such counter set, but device {go_quote(device.name)} refers to it"
            errors.append(not_found(f"{path}[{i}].counterSet", entry.counter_set, detail))
            continue
        for name in entry.counters:
            if name not in counter_set.counters:
                owner = f"counter set {go_quote(counter_set.name)}"
                detail = f"{owner} has no such counter, but device {go_quote(device.name)} refers to it"
                errors.append(not_found(f"{path}[{i}].counters[{name}]", name, detail))
    return errors


LIMIT_MAX: Final = 1000
_IMMUTABLE: Final = "field is immutable"
_REQUEST_CONDITIONS_MAX: Final = 10
_SUMMARY_MAX: Final = 32
_VALIDATION_ERROR_MAX: Final = 256


def validate_pool_status_request(request: ResourcePoolStatusRequest, release: Release) -> list[FieldError]:
    """Check all rules of the API server for a new request; a driver may have 253 bytes here."""
    spec = request.spec
    errors = declared_driver_name(spec.driver, "spec.driver", max_length=None)
    if spec.pool_name is not None:
        errors += declared_pool_name(spec.pool_name, "spec.poolName")
    if spec.limit is not None and spec.limit < 1:
        errors.append(invalid("spec.limit", spec.limit, "must be greater than or equal to 1"))
    elif spec.limit is not None and spec.limit > LIMIT_MAX:
        errors.append(invalid("spec.limit", spec.limit, f"must be less than or equal to {LIMIT_MAX}"))
    if spec.default_partition_type_attribute is not None:
        errors += full_name(spec.default_partition_type_attribute, "spec.defaultPartitionTypeAttribute", release)
    return mark_declarative(errors)


def validate_pool_status_request_update(
    request: ResourcePoolStatusRequest, old: ResourcePoolStatusRequest
) -> list[FieldError]:
    """Check that a request is unchanged."""
    if request.spec == old.spec:
        return []
    return mark_declarative([invalid("spec", None, _IMMUTABLE)])


def validate_pool_status(status: Any, old: Any, release: Release) -> list[FieldError]:
    """Check that a request is answered once, and the answer."""
    if old:
        return [invalid("status", status, _IMMUTABLE)] if status != old else []
    if status is None:
        return []
    pools, conditions = status.get("pools") or (), status.get("conditions") or ()
    errors = _count(status, "poolCount", "status", needed=True)
    errors += check_limit(pools, LIMIT_MAX, "status.pools")
    for path, pool in entries_within(pools, LIMIT_MAX, "status.pools", release):
        errors += _pool_status(pool, path, release)
    parsed = [v1.Condition.model_validate(item) for item in conditions]
    errors += validate_conditions(parsed, "status.conditions", release, limit=_REQUEST_CONDITIONS_MAX)
    return mark_declarative(errors)


def _pool_status(pool: Any, path: str, release: Release) -> list[FieldError]:
    errors = declared_driver_name(pool.get("driver", ""), f"{path}.driver", max_length=None)
    name = pool.get("poolName", "")
    errors += declared_pool_name(name, f"{path}.poolName") if name else [required(f"{path}.poolName")]
    errors += (
        _count(pool, "generation", path, needed=True) if pool.get("generation") else [required(f"{path}.generation")]
    )
    errors += _count(pool, "resourceSliceCount", path, least=1)
    for field in ("totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices"):
        errors += _count(pool, field, path)
    if (node := pool.get("nodeName")) is not None:
        errors += validate_node_name(node, f"{path}.nodeName")
    errors += check_length(pool.get("validationError") or "", _VALIDATION_ERROR_MAX, f"{path}.validationError")
    return (
        errors
        + _partition_summary(pool.get("partitionSummary") or (), f"{path}.partitionSummary")
        + (
            _shareable_summary(pool["shareableSummary"], f"{path}.shareableSummary", release)
            if pool.get("shareableSummary") is not None
            else []
        )
    )


def _partition_summary(entries: Any, path: str) -> list[FieldError]:
    errors = check_limit(entries, _SUMMARY_MAX, path)
    if errors:
        return errors
    fields = ("attribute", "type", "total", "allocatable")
    shown = [GoStruct({name: entry[name] for name in fields if name in entry}) for entry in entries]
    errors = find_duplicates(shown, lambda item: (item.get("attribute", ""), item.get("type", "")), path)
    for i, entry in enumerate(entries):
        errors += [required(f"{path}[{i}].{field}") for field in ("attribute", "type") if not entry.get(field)]
        for field in ("total", "allocatable"):
            errors += _count(entry, field, f"{path}[{i}]", needed=True)
    return errors


def _shareable_summary(summary: Any, path: str, release: Release) -> list[FieldError]:
    errors = _count(summary, "fullyAvailableDevices", path, needed=True)
    errors += _count(summary, "partiallyAvailableDevices", path, needed=True)
    capacities = summary.get("capacity") or ()
    errors += check_limit(capacities, _SUMMARY_MAX, f"{path}.capacity")
    for where, capacity in entries_within(capacities, _SUMMARY_MAX, f"{path}.capacity", release):
        fields = ("name", "total", "consumed", "available")
        errors += [required(f"{where}.{field}") for field in fields if capacity.get(field) in {None, ""}]
    return errors


def _count(holder: Any, field: str, path: str, *, least: int = 0, needed: bool = False) -> list[FieldError]:
    value = holder.get(field)
    if value is None:
        return [required(f"{path}.{field}")] if needed else []
    return [] if value >= least else [invalid(f"{path}.{field}", value, f"must be greater than or equal to {least}")]


def validate_taint_rule(
    rule: v1.DeviceTaintRule, release: Release, old: v1.DeviceTaintRule | None = None
) -> list[FieldError]:
    """Check the rules of the API server for the spec of a rule, in its paths and texts.

    The class and the expressions that 1.34 knows are left to ``claims.validate_selected_content``, which needs CEL.

    Args:
        rule: the rule.
        release: of the API server.
        old: what it replaces; an effect that stays may be one that this release does not know.
    """
    errors = []
    selector = rule.spec.device_selector
    if selector is not None:
        path = "spec.deviceSelector"
        errors += driver_name(selector.driver, f"{path}.driver") if selector.driver is not None else []
        errors += pool_name(selector.pool, f"{path}.pool") if selector.pool is not None else []
        errors += label_errors(selector.device, f"{path}.device") if selector.device is not None else []
    taint = rule.spec.taint
    effect_stays = old is not None and taint.effect != "" and taint.effect == old.spec.taint.effect
    return errors + validate_taint(taint, "spec.taint", release, check_effect=not effect_stays)


def taint_rule_warnings(rule: v1.DeviceTaintRule, release: Release) -> list[str]:
    """Return the API server's warnings about a rule."""
    selector = rule.spec.device_selector
    if selector is None or not release.has(Change.EMPTY_SELECTORS_WARN):
        return []
    if any(part is not None for part in (selector.driver, selector.pool, selector.device)):
        return []
    return ["spec.deviceSelector: an empty selector matches every device from every driver in the cluster"]


def validate_taint_rule_status(conditions: Sequence[v1.Condition], release: Release) -> list[FieldError]:
    """Check ``status.conditions`` of a rule."""
    return validate_conditions(conditions, "status.conditions", release)
