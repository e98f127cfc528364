"""A model of the API server for slice planning, and the scheduler's view of a pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta
from dra_kit.slices.planning import AcceptedSlice, SlicePlan


class ModelServer:
    """Stores slices as JSON; generates names, sets defaults and optionally drops fields."""

    def __init__(self, *, dropped_device_fields: Iterable[str] = ()) -> None:
        self.slices: dict[str, v1.ResourceSlice] = {}
        self.accepted: dict[str, AcceptedSlice] = {}
        self.writes: list[str] = []
        self._dropped = tuple(dropped_device_fields)
        self._clock = 0
        self._names = 0

    def list(self) -> list[v1.ResourceSlice]:
        return [self.slices[name] for name in sorted(self.slices)]

    def execute(self, plan: SlicePlan) -> Iterator[None]:
        """Run the writes of a plan in order, with a pause after each one."""
        for item in plan.deletes:
            assert self.slices.pop(item.metadata.name).metadata.uid == item.metadata.uid
            self.writes.append("delete")
            yield
        for item in plan.updates:
            current = self.slices[item.metadata.name]
            assert item.metadata.resource_version == current.metadata.resource_version
            assert (item.spec.driver, item.spec.pool.name) == (current.spec.driver, current.spec.pool.name)
            assert item.spec.node_name == current.spec.node_name
            self._store(item, item.metadata)
            self.writes.append("update")
            yield
        for item in plan.creates:
            assert not item.metadata.name
            # random suffixes must not determine the order of slices
            self._names += 1
            suffix = f"{(self._names * 7919) % 100000:05}"
            name = f"{item.metadata.generate_name[:58]}{suffix}"
            self._store(item, item.metadata.model_copy(update={"name": name, "uid": f"uid-{self._names}"}))
            self.writes.append("create")
            yield

    def apply(self, plan: SlicePlan) -> None:
        for _ in self.execute(plan):
            pass

    def edit(self, name: str, **spec: Any) -> None:
        """Update a slice as another client."""
        item = self.slices[name]
        self.slices[name] = item.model_copy(update={"spec": item.spec.model_copy(update=spec)})

    def _store(self, sent: v1.ResourceSlice, metadata: ObjectMeta) -> None:
        self._clock += 1
        body = sent.to_json()
        for device in body["spec"].get("devices", []):
            for field in self._dropped:
                device.pop(field, None)
            for taint in device.get("taints", []):
                taint.setdefault("timeAdded", f"2026-01-01T{self._clock // 60:02}:{self._clock % 60:02}:00Z")
        stored = v1.ResourceSlice.model_validate(body)
        metadata = metadata.model_copy(update={"resource_version": str(self._clock)})
        stored = stored.model_copy(update={"metadata": metadata})
        self.slices[metadata.name] = stored
        self.accepted[metadata.name] = AcceptedSlice(sent, stored)


def visible_devices(slices: Iterable[v1.ResourceSlice], pool: str) -> tuple[v1.Device, ...] | None:
    """Return the devices that a scheduler may allocate; None if the pool is incomplete or absent."""
    members = [item for item in slices if item.spec.pool.name == pool]
    highest = max((item.spec.pool.generation for item in members), default=0)
    current = [item for item in members if item.spec.pool.generation == highest]
    if not current or any(item.spec.pool.resource_slice_count != len(current) for item in current):
        return None
    return tuple(
        device for item in sorted(current, key=lambda item: item.metadata.name) for device in item.spec.devices
    )
