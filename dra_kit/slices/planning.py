"""The pure plan of ResourceSlices: which slices to delete, update and create, from desired and stored pools."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace as replace_fields

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import Change, KubernetesVersion, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import APIModel, ObjectMeta, OwnerReference
from dra_kit.kubernetes.resource.conversion import GATED_FIELDS, drop_disabled_fields
from dra_kit.kubernetes.resource.field_errors import FieldError
from dra_kit.kubernetes.resource.validation.devices import SliceLimits, slice_limits
from dra_kit.kubernetes.resource.validation.fields import taint_effects
from dra_kit.kubernetes.resource.validation.slices import max_devices, split_devices, validate_slice

_FIRST_GENERATION = 1


def plan(
    desired: DesiredSlices,
    existing: Sequence[v1.ResourceSlice],
    *,
    version: KubernetesVersion,
    accepted: Mapping[str, AcceptedSlice] | None = None,
) -> SlicePlan:
    """Return what must be written so that the API server holds ``desired``; pure.

    A reader takes the slices of a pool's highest generation and waits until it has as many as
    ``resourceSliceCount`` says. Therefore a single slice may be changed in place, while a larger change writes all
    slices of the pool with a higher generation.

    Args:
        desired: all pools that the publisher is responsible for.
        existing: the stored slices in the publisher's scope. Those of other drivers are ignored; those of this
            driver which do not belong to a desired pool are deleted.
        version: the release of the API server, whose limits the slices have.
        accepted: the last write of each slice by slice name, if known. A slice whose stored form resulted from exactly
            this content is not changed, although the API server dropped fields from it.

    Raises:
        ConfigurationError: two pools have the same name, or counter sets do not fit (see ``pack``).
    """
    names = [pool.name for pool in desired.pools]
    for name in names:
        if names.count(name) > 1:
            message = f"driver {desired.driver!r} has two pools named {name!r}; give each pool a unique name"
            raise ConfigurationError(message, code="duplicate-pool")
    ours = [item for item in existing if item.spec.driver == desired.driver]
    deletes = [item for item in ours if item.spec.pool.name not in names and not _is_being_deleted(item)]
    updates: list[v1.ResourceSlice] = []
    creates: list[v1.ResourceSlice] = []
    for pool in desired.pools:
        stored = [item for item in ours if item.spec.pool.name == pool.name]
        contents = pack(with_fitting_taints(pool, version), version)
        part = _PoolPlanner(desired, pool, contents, stored, accepted or {}).plan()
        deletes += part.deletes
        updates += part.updates
        creates += part.creates
    return SlicePlan(tuple(deletes), tuple(updates), tuple(creates))


class _PoolPlanner:
    """Plans one pool; ``stored`` are all its slices."""

    def __init__(
        self,
        desired: DesiredSlices,
        pool: DesiredPool,
        contents: tuple[SliceContent, ...],
        stored: list[v1.ResourceSlice],
        accepted: Mapping[str, AcceptedSlice],
    ) -> None:
        self._desired = desired
        self._pool = pool
        self._contents = contents
        self._stored = stored
        self._accepted = accepted
        self._highest = max((item.spec.pool.generation for item in stored), default=_FIRST_GENERATION)
        self._taint_times = _taint_times(stored)

    def plan(self) -> SlicePlan:
        current = self._current()
        retained = {id(item) for item in current.values()}
        deletes = tuple(item for item in self._stored if id(item) not in retained and not _is_being_deleted(item))
        count = len(self._contents)
        changed = {i for i in range(count) if not self._is_current(i, current.get(i))}
        generation = self._highest
        resized = any(item.spec.pool.resource_slice_count != count for item in current.values())
        if self._stored and (len(current) < count or len(changed) > 1 or resized):
            generation += 1
            changed = set(range(count))
        updates = tuple(self._update(i, current[i], generation) for i in sorted(changed & current.keys()))
        creates = tuple(self._create(i, generation) for i in sorted(changed - current.keys()))
        return SlicePlan(deletes, updates, creates)

    def _current(self) -> dict[int, v1.ResourceSlice]:
        """Return the stored slices that can stay, by index; all others are obsolete."""
        current: dict[int, v1.ResourceSlice] = {}
        for item in sorted(self._stored, key=lambda item: item.metadata.name):
            index = parse_index(item.metadata.name, len(self._contents))
            # spec.nodeName is immutable
            usable = item.spec.pool.generation == self._highest and item.spec.node_name == self._pool.node_name
            if index is not None and usable and not _is_being_deleted(item):
                current.setdefault(index, item)
        return current

    def _is_current(self, index: int, item: v1.ResourceSlice | None) -> bool:
        if item is None or not _has_owner(item, self._desired.owner):
            return False
        wanted = self._spec(index, self._highest)
        if is_stored_alike(wanted, item.spec):
            return True
        last = self._accepted.get(item.metadata.name)
        return (
            last is not None
            and is_stored_alike(wanted, last.sent.spec)
            and is_stored_alike(item.spec, last.stored.spec)
        )

    def _update(self, index: int, item: v1.ResourceSlice, generation: int) -> v1.ResourceSlice:
        spec = _keep_unknown_fields(self._spec(index, generation), item.spec)
        owners = _merge_owners(item.metadata.owner_references, self._desired.owner)
        metadata = item.metadata.model_copy(update={"owner_references": owners})
        return v1.ResourceSlice(metadata=metadata, spec=spec)

    def _create(self, index: int, generation: int) -> v1.ResourceSlice:
        owner = self._desired.owner
        prefix = generate_name(index, len(self._contents), self._desired.driver, owner.name if owner else "")
        metadata = ObjectMeta(generate_name=prefix, owner_references=(owner,) if owner else ())
        return v1.ResourceSlice(metadata=metadata, spec=self._spec(index, generation))

    def _spec(self, index: int, generation: int) -> v1.ResourceSliceSpec:
        pool, content = self._pool, self._contents[index]
        fields: dict[str, Any] = {}
        if content.devices:
            fields["devices"] = tuple(self._with_taint_times(device) for device in content.devices)
        if content.counter_sets:
            fields["shared_counters"] = content.counter_sets
        if any(device.consumes_counters for device in content.devices):
            fields["partition_type_attribute"] = pool.partition_type_attribute
        return v1.ResourceSliceSpec(
            driver=self._desired.driver,
            pool=v1.ResourcePool(name=pool.name, generation=generation, resource_slice_count=len(self._contents)),
            node_name=pool.node_name,
            node_selector=pool.node_selector,
            all_nodes=pool.all_nodes or None,
            per_device_node_selection=pool.per_device_node_selection or None,
            skip_node_operations=pool.skip_node_operations,
            **fields,
        )

    def _with_taint_times(self, device: v1.Device) -> v1.Device:
        """Return the device with ``timeAdded`` of unchanged taints; otherwise the API server would set it to now."""
        if all(taint.time_added is not None for taint in device.taints):
            return device
        taints = []
        for taint in device.taints:
            time = taint.time_added or self._taint_times.get((device.name, taint.key, taint.value, taint.effect))
            taints.append(taint.model_copy(update={"time_added": time}))
        return device.model_copy(update={"taints": tuple(taints)})


def _is_being_deleted(item: v1.ResourceSlice) -> bool:
    return item.metadata.deletion_timestamp is not None


def _has_owner(item: v1.ResourceSlice, owner: OwnerReference | None) -> bool:
    return owner is None or any(is_stored_alike(owner, other) for other in item.metadata.owner_references)


def _merge_owners(stored: Iterable[OwnerReference], owner: OwnerReference | None) -> tuple[OwnerReference, ...]:
    if owner is None:
        return tuple(stored)
    # an object has at most one controller, and the reference to an older incarnation of the owner must be removed
    identity = (owner.kind, owner.name)
    return (owner, *(item for item in stored if not item.controller and (item.kind, item.name) != identity))


def _taint_times(stored: Iterable[v1.ResourceSlice]) -> dict[tuple[str, str, str, str], str]:
    """``timeAdded`` by device, key, value and effect; the highest generation wins."""
    return {
        (device.name, taint.key, taint.value, taint.effect): taint.time_added
        for item in sorted(stored, key=lambda item: item.spec.pool.generation)
        for device in item.spec.devices
        for taint in device.taints
        if taint.time_added is not None
    }


def _keep_unknown_fields(wanted: v1.ResourceSliceSpec, stored: v1.ResourceSliceSpec) -> v1.ResourceSliceSpec:
    """``wanted`` with the fields of slice and devices that a newer API server added to ``stored``."""
    by_name = {device.name: device for device in stored.devices}
    fields = {**(stored.model_extra or {}), **(wanted.model_extra or {})}
    if wanted.devices:
        fields["devices"] = tuple(
            device.model_copy(update={**(by_name[device.name].model_extra or {}), **(device.model_extra or {})})
            if device.name in by_name
            else device
            for device in wanted.devices
        )
    return wanted.model_copy(update=fields)


class DesiredPool(Struct, frozen=True):
    """One pool, regardless of the number of slices it needs.

    Args:
        name: unique among the pools of the driver; for node-local devices the node's name.
        node_name: the node of all devices. Exactly one of this, ``node_selector``, ``all_nodes`` and
            ``per_device_node_selection`` is set.
        node_selector: the nodes of all devices; exactly one term.
        all_nodes: every node may use the devices.
        devices: in the order in which the scheduler should try them.
        counter_sets: what devices of this pool draw on (KEP-4815).
        partition_type_attribute: the attribute that holds the type of a partition (KEP-5677).
        skip_node_operations: calls to the node plugin that the devices do not need (KEP-5945).
        per_device_node_selection: each device names its nodes itself.
    """

    name: str
    node_name: str | None = None
    node_selector: v1.NodeSelector | None = None
    all_nodes: bool = False
    devices: tuple[v1.Device, ...] = ()
    counter_sets: tuple[v1.CounterSet, ...] = ()
    partition_type_attribute: str | None = None
    skip_node_operations: tuple[str, ...] = ()
    per_device_node_selection: bool = False


class DesiredSlices(Struct, frozen=True):
    """All pools that one publisher of one driver is responsible for.

    Args:
        owner: the object whose deletion deletes the slices; the Node for node-local devices.
        pools: a pool missing here is withdrawn; a pool without devices stays, as one empty slice.
    """

    driver: str
    owner: OwnerReference | None = None
    pools: tuple[DesiredPool, ...] = ()


class AcceptedSlice(Struct, frozen=True):
    """A slice as last written, and as the API server stored it: the two differ in dropped fields."""

    sent: v1.ResourceSlice
    stored: v1.ResourceSlice


class SlicePlan(Struct, frozen=True):
    """Writes to make in this order, each tuple from first to last; empty if the API server is up to date.

    Args:
        deletes: slices as stored; delete them with their UID and resourceVersion as preconditions.
        updates: whole slices with the name and resourceVersion of the stored one.
        creates: slices with ``generateName``.
    """

    deletes: tuple[v1.ResourceSlice, ...] = ()
    updates: tuple[v1.ResourceSlice, ...] = ()
    creates: tuple[v1.ResourceSlice, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.updates or self.creates)


def is_stored_alike(wanted: Any, stored: Any) -> bool:
    """Return whether storing ``wanted`` over ``stored`` would make a relevant change.

    Quantities compare by value. A missing ``timeAdded``, or a difference of one second, is ignored because the API
    server fills it in and rounds it. Fields of ``stored`` that this release does not know are ignored because a newer
    API server may have added them.
    """
    if wanted == stored:
        return True
    if type(wanted) is not type(stored):
        return False
    if isinstance(wanted, APIModel):
        return _same_models(wanted, stored)
    if isinstance(wanted, tuple):
        return len(wanted) == len(stored) and all(map(is_stored_alike, wanted, stored))
    if isinstance(wanted, dict):
        return wanted.keys() == stored.keys() and all(
            is_stored_alike(value, stored[key]) for key, value in wanted.items()
        )
    return False


def _same_models(wanted: APIModel, stored: APIModel) -> bool:
    if isinstance(wanted, v1.DeviceTaint) and isinstance(stored, v1.DeviceTaint):
        if not _same_time(wanted.time_added, stored.time_added):
            return False
        stored = stored.model_copy(update={"time_added": wanted.time_added})
    unknown, stored_unknown = wanted.model_extra or {}, stored.model_extra or {}
    if any(name not in stored_unknown or stored_unknown[name] != value for name, value in unknown.items()):
        return False
    return all(is_stored_alike(getattr(wanted, name), getattr(stored, name)) for name in type(wanted).model_fields)


def _same_time(wanted: str | None, stored: str | None) -> bool:
    if wanted is None or stored is None or wanted == stored:
        return True
    difference = datetime.fromisoformat(wanted) - datetime.fromisoformat(stored)
    return abs(difference.total_seconds()) <= 1


_POSITION: Final = re.compile(r"\[[^]]*\]")
_GATES: Final = {path: gates[0] for gates, paths in GATED_FIELDS for path in paths}


class DroppedField(Struct, frozen=True):
    """A field that was sent but not stored.

    Args:
        path: for example ``spec.devices[3].taints``.
        feature_gate: the gate that is probably off; None if this release does not know the reason.
    """

    path: str
    feature_gate: str | None


def dropped_fields(sent: v1.ResourceSlice, stored: v1.ResourceSlice) -> tuple[DroppedField, ...]:
    """Return the fields that the API server silently dropped when it stored ``sent``."""
    return tuple(_compare("spec", sent.spec, stored.spec))


def _compare(path: str, sent: Any, stored: Any) -> list[DroppedField]:
    """Differences below ``path``; a part that differs completely is reported as one."""
    if isinstance(sent, APIModel) and type(sent) is type(stored):
        return _compare_models(path, sent, stored)
    if isinstance(sent, tuple) and isinstance(stored, tuple) and len(sent) == len(stored):
        pairs = enumerate(zip(sent, stored, strict=True))
        return [field for i, (item, other) in pairs for field in _compare(f"{path}[{i}]", item, other)]
    if isinstance(sent, dict) and isinstance(stored, dict) and sent.keys() == stored.keys():
        return [field for key in sent for field in _compare(f"{path}[{key}]", sent[key], stored[key])]
    return [] if is_stored_alike(sent, stored) else [DroppedField(path, None)]


def _compare_models(path: str, sent: APIModel, stored: Any) -> list[DroppedField]:
    if is_stored_alike(sent, stored):
        return []
    model = type(sent)
    result: list[DroppedField] = []
    for name, field in model.model_fields.items():
        value, other = getattr(sent, name), getattr(stored, name)
        where = f"{path}.{field.alias or name}"
        gate = _GATES.get(_POSITION.sub(".*", where))
        if gate is not None and value and not other:
            result.append(DroppedField(where, gate))
        elif not isinstance(sent, v1.DeviceTaint) or name != "time_added":
            result += _compare(where, value, other)
    missing = [name for name in sent.model_extra or {} if name not in (stored.model_extra or {})]
    return result + [DroppedField(f"{path}.{name}", None) for name in missing]


def refused_slices(
    steps: SlicePlan, existing: Sequence[v1.ResourceSlice], version: KubernetesVersion
) -> dict[str, list[FieldError]]:
    """Return why an API server of a release refuses slices to write, whatever its feature gates, by pool.

    Writing such a pool would end in the middle: its highest generation would be incomplete, and none of its devices
    could be allocated any more.
    """
    before = {item.metadata.name: item for item in existing}
    found: dict[str, list[FieldError]] = {}
    for item in (*steps.updates, *steps.creates):
        if errors := _refused(item, before.get(item.metadata.name), version):
            found.setdefault(item.spec.pool.name, []).extend(errors)
    return found


def _refused(item: v1.ResourceSlice, old: v1.ResourceSlice | None, version: KubernetesVersion) -> list[FieldError]:
    usual, fewest, most = Release.settings(version)
    sent = item.to_json()
    found: list[FieldError] = []
    for release in (most, fewest, usual):  # the texts are those of the default gates
        left = drop_disabled_fields(sent, None, release)
        stored = item if left is sent else v1.ResourceSlice.model_validate(left)
        found = validate_slice(stored, release, old=old)
        if not found:
            return []
    return [replace(error, path=_with_device(error.path, item.spec.devices)) for error in found]


def _with_device(path: str, devices: Sequence[v1.Device]) -> str:
    """Return the path of a field in a slice, with the name of the device, whose position changes with the others."""
    match = re.match(r"spec\.devices\[([0-9]+)\]", path)
    if match is None:
        return path.removeprefix("spec.")
    return f"devices[{devices[int(match[1])].name}]{path[match.end() :]}"


def without_pools(steps: SlicePlan, names: Collection[str]) -> SlicePlan:
    """Return the writes of all other pools."""
    deletes, updates, creates = (
        tuple(item for item in items if item.spec.pool.name not in names)
        for items in (steps.deletes, steps.updates, steps.creates)
    )
    return SlicePlan(deletes, updates, creates)


class SliceContent(Struct, frozen=True):
    """The content of one slice."""

    devices: tuple[v1.Device, ...] = ()
    counter_sets: tuple[v1.CounterSet, ...] = ()


def separates_counters(version: KubernetesVersion) -> bool:
    """Return whether shared counters must be in slices without devices; before, they must be in slices with devices."""
    return version.has(Change.SLICES_HAVE_DEVICES_OR_COUNTERS)


def selects_pools(version: KubernetesVersion) -> bool:
    """Return whether ResourceSlices can be selected by the name of their pool."""
    return version.has(Change.SLICES_ARE_SELECTED_BY_POOL)


def with_fitting_taints(pool: DesiredPool, version: KubernetesVersion) -> DesiredPool:
    """Return the pool with as many taints of each device as the API server of a release accepts.

    Those of health stay before the driver's own, then those that evict pods. An API server that refused a slice because
    of one taint too many would leave the devices without the others, too.
    """
    fitting = {device.name: _fitting_taints(device, version) for device in pool.devices if device.taints}
    if not any(len(fitting.get(device.name, ())) < len(device.taints) for device in pool.devices):
        return pool
    devices = (
        device.model_copy(update={"taints": fitting[device.name]}) if device.taints else device
        for device in pool.devices
    )
    return replace_fields(pool, devices=tuple(devices))


def _fitting_taints(device: v1.Device, version: KubernetesVersion) -> tuple[v1.DeviceTaint, ...]:
    effects, limit = taint_effects(version), slice_limits(version).taints
    known = [taint for taint in device.taints if taint.effect in effects]
    if len(known) > limit:
        # taints of health come with the time of the problem
        ranks = [(taint.time_added is None, taint.effect != "NoExecute", i) for i, taint in enumerate(known)]
        known = [known[i] for i in sorted(i for *_, i in sorted(ranks)[:limit])]
    return tuple(known)


def taints_left_out(pool: DesiredPool, version: KubernetesVersion) -> dict[str, tuple[v1.DeviceTaint, ...]]:
    """Return the taints that are not published since a release does not accept them, by the name of their device."""
    fitting = with_fitting_taints(pool, version)
    pairs = zip(pool.devices, fitting.devices, strict=True)
    return {
        device.name: tuple(taint for taint in device.taints if taint not in published.taints)
        for device, published in pairs
        if len(published.taints) < len(device.taints)
    }


def pack(pool: DesiredPool, version: KubernetesVersion) -> tuple[SliceContent, ...]:
    """Split a pool into slices that the API server accepts, in order; at least one.

    Slices are filled from the front and counter sets come first, so that adding a device at the end changes only the
    last slice.

    Raises:
        ConfigurationError: counter sets and devices must share one slice (Kubernetes 1.34) but do not fit.
    """
    limits = slice_limits(version)
    contents: list[SliceContent] = []
    if pool.counter_sets:
        sets, step = pool.counter_sets, limits.counter_sets
        if step is None:  # Kubernetes 1.34 limits counters in total, beside the devices that use them
            return (_pack_together(pool, limits),)
        contents += [SliceContent(counter_sets=sets[i : i + step]) for i in range(0, len(sets), step)]
    contents += [SliceContent(devices=devices) for devices in split_devices(pool.devices, limits)]
    return tuple(contents) or (SliceContent(),)


def _pack_together(pool: DesiredPool, limits: SliceLimits) -> SliceContent:
    most, counters = max_devices(pool.devices, limits), sum(len(one.counters) for one in pool.counter_sets)
    consumed = [sum(len(entry.counters) for entry in device.consumes_counters) for device in pool.devices]
    most_consumed = max(consumed, default=0)
    # what is consumed too much is not found by refused_slices: without the feature gate, the API server drops it
    amounts = (
        (len(pool.devices), most, "devices"),
        (counters, limits.counters, "counters"),
        (sum(consumed), limits.all_consumed_counters, "counters consumed by all devices"),
        (most_consumed, limits.consumed_counters, "counters consumed by one device"),
    )
    exceeded = [f"{number} {what} (at most {limit})" for number, limit, what in amounts if _exceeds(number, limit)]
    if exceeded:
        remedy = (
            "let each device consume less" if _exceeds(most_consumed, limits.consumed_counters) else "split the pool"
        )
        raise ConfigurationError(
            f"pool {pool.name!r} with {', '.join(exceeded)}: before Kubernetes 1.35 all must fit into one "
            f"ResourceSlice; {remedy} or upgrade the cluster",
            code="counters-need-one-slice",
        )
    return SliceContent(devices=pool.devices, counter_sets=pool.counter_sets)


def _exceeds(number: int, limit: int | None) -> bool:
    return limit is not None and number > limit


def pools_beyond_one_slice(pools: Iterable[DesiredPool], version: KubernetesVersion) -> dict[str, ConfigurationError]:
    """Return why pools cannot be packed (see ``pack``), by name."""
    found: dict[str, ConfigurationError] = {}
    for pool in pools:
        try:
            pack(pool, version)
        except ConfigurationError as error:
            found[pool.name] = error
    return found


_MIN_DIGITS: Final = 5
_INDEX: Final = re.compile(r"([0-9a-f]{5,})-")
_GENERATE_NAME_MAX_LENGTH: Final = 58
"""The API server truncates ``generateName`` to this length before it appends five characters
(k8s.io/apiserver ``storage/names``)."""


def digits_for(count: int) -> int:
    """Return the number of hex digits in the indices of ``count`` slices; equal for all, so names sort by index."""
    return max(_MIN_DIGITS, len(f"{max(count - 1, 0):x}"))


def generate_name(index: int, count: int, driver: str, owner: str) -> str:
    """Return ``<hex index>-<driver>-[<owner>-]``, truncated so that the result is a valid name and keeps the index."""
    prefix = f"{index:0{digits_for(count)}x}-{driver.lower()}-"
    prefix += f"{owner}-" if owner else ""
    return prefix[: _GENERATE_NAME_MAX_LENGTH - 1].rstrip("-.") + "-"


def parse_index(name: str, count: int) -> int | None:
    """Return the index of a slice with this name in a pool of ``count`` slices; None if it cannot be one of them."""
    match = _INDEX.match(name)
    if match is None or len(match[1]) != digits_for(count):
        return None
    index = int(match[1], 16)
    return index if index < count else None
