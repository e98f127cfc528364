"""The plan that turns stored slices into the desired ones, without a reader ever seeing a mixture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dra_kit.errors import ConfigurationError
from dra_kit.resource import v1
from dra_kit.resource.slices.compare import same
from dra_kit.resource.slices.desired import Accepted, Desired, DesiredPool, Plan, SliceFeatures
from dra_kit.resource.slices.naming import generate_name, parse_index
from dra_kit.resource.slices.packing import SliceContent, pack

_FIRST_GENERATION = 1


def plan(
    desired: Desired,
    existing: Sequence[v1.ResourceSlice],
    *,
    features: SliceFeatures,
    accepted: Mapping[str, Accepted] | None = None,
) -> Plan:
    """Return what must be written so that the API server holds ``desired``; pure.

    A reader takes the slices of a pool's highest generation and waits until it sees as many as
    ``resourceSliceCount`` says. So one slice may be changed in place, while any larger change writes all slices of
    the pool with a higher generation.

    Args:
        desired: everything that the publisher is responsible for.
        existing: the stored slices in the publisher's scope. Those of other drivers are ignored; those of this
            driver which do not belong to a desired pool are deleted.
        features: what the API server can do.
        accepted: the last write of each slice by slice name, where it is known. A slice whose stored form is what
            the API server made of exactly this content is left alone, although fields were dropped from it.

    Raises:
        ConfigurationError: two pools have the same name, or counter sets do not fit (see ``pack``).
    """
    names = [pool.name for pool in desired.pools]
    for name in names:
        if names.count(name) > 1:
            message = f"driver {desired.driver!r} has two pools named {name!r}: give each pool a name of its own"
            raise ConfigurationError(message, code="duplicate-pool")
    ours = [item for item in existing if item.spec.driver == desired.driver]
    deletes = [item for item in ours if item.spec.pool.name not in names and not _is_going(item)]
    updates: list[v1.ResourceSlice] = []
    creates: list[v1.ResourceSlice] = []
    for pool in desired.pools:
        stored = [item for item in ours if item.spec.pool.name == pool.name]
        contents = pack(pool, separate_counter_slices=features.separate_counter_slices)
        part = _PoolPlanner(desired, pool, contents, stored, accepted or {}).plan()
        deletes += part.deletes
        updates += part.updates
        creates += part.creates
    return Plan(tuple(deletes), tuple(updates), tuple(creates))


class _PoolPlanner:
    """Planning for one pool; ``stored`` are all its slices."""

    def __init__(
        self,
        desired: Desired,
        pool: DesiredPool,
        contents: tuple[SliceContent, ...],
        stored: list[v1.ResourceSlice],
        accepted: Mapping[str, Accepted],
    ) -> None:
        self._desired = desired
        self._pool = pool
        self._contents = contents
        self._stored = stored
        self._accepted = accepted
        self._highest = max((item.spec.pool.generation for item in stored), default=_FIRST_GENERATION)
        self._taint_times = _taint_times(stored)

    def plan(self) -> Plan:
        current = self._current()
        retained = {id(item) for item in current.values()}
        deletes = tuple(item for item in self._stored if id(item) not in retained and not _is_going(item))
        count = len(self._contents)
        changed = {i for i in range(count) if not self._is_current(i, current.get(i))}
        generation = self._highest
        resized = any(item.spec.pool.resource_slice_count != count for item in current.values())
        if self._stored and (len(current) < count or len(changed) > 1 or resized):
            generation += 1
            changed = set(range(count))
        updates = tuple(self._update(i, current[i], generation) for i in sorted(changed & current.keys()))
        creates = tuple(self._create(i, generation) for i in sorted(changed - current.keys()))
        return Plan(deletes, updates, creates)

    def _current(self) -> dict[int, v1.ResourceSlice]:
        """Return the stored slices that can stay, by index; all others are obsolete."""
        current: dict[int, v1.ResourceSlice] = {}
        for item in sorted(self._stored, key=lambda item: item.metadata.name):
            index = parse_index(item.metadata.name, len(self._contents))
            # spec.nodeName is immutable
            usable = item.spec.pool.generation == self._highest and item.spec.node_name == self._pool.node_name
            if index is not None and usable and not _is_going(item):
                current.setdefault(index, item)
        return current

    def _is_current(self, index: int, item: v1.ResourceSlice | None) -> bool:
        if item is None or not _has_owner(item, self._desired.owner):
            return False
        wanted = self._spec(index, self._highest)
        if same(wanted, item.spec):
            return True
        last = self._accepted.get(item.metadata.name)
        return last is not None and same(wanted, last.sent.spec) and same(item.spec, last.stored.spec)

    def _update(self, index: int, item: v1.ResourceSlice, generation: int) -> v1.ResourceSlice:
        spec = _keep_unknown_fields(self._spec(index, generation), item.spec)
        owners = _merge_owners(item.metadata.owner_references, self._desired.owner)
        metadata = item.metadata.model_copy(update={"owner_references": owners})
        return v1.ResourceSlice(metadata=metadata, spec=spec)

    def _create(self, index: int, generation: int) -> v1.ResourceSlice:
        owner = self._desired.owner
        prefix = generate_name(index, len(self._contents), self._desired.driver, owner.name if owner else "")
        metadata = v1.ObjectMeta(generate_name=prefix, owner_references=(owner,) if owner else ())
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
        """Return the device with ``timeAdded`` of taints that stay; the API server would otherwise set it to now."""
        if all(taint.time_added is not None for taint in device.taints):
            return device
        taints = []
        for taint in device.taints:
            time = taint.time_added or self._taint_times.get((device.name, taint.key, taint.value, taint.effect))
            taints.append(taint.model_copy(update={"time_added": time}))
        return device.model_copy(update={"taints": tuple(taints)})


def _is_going(item: v1.ResourceSlice) -> bool:
    return item.metadata.deletion_timestamp is not None


def _has_owner(item: v1.ResourceSlice, owner: v1.OwnerReference | None) -> bool:
    return owner is None or any(same(owner, other) for other in item.metadata.owner_references)


def _merge_owners(
    stored: Iterable[v1.OwnerReference], owner: v1.OwnerReference | None
) -> tuple[v1.OwnerReference, ...]:
    if owner is None:
        return tuple(stored)
    # an object has at most one controller, and an older incarnation of the owner must go
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
