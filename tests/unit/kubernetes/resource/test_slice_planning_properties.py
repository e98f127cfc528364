"""Guarantees of slice planning for any desired state and any history."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_kit.kubernetes.release import DEFAULT, UNMODIFIED
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.validation.slices import validate_pool, validate_slice
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.slices.planning import DesiredPool, DesiredSlices, plan
from tests.unit.kubernetes.resource.model_server import ModelServer, visible_devices

_COUNTERS = {"n": v1.Counter(value=Quantity(4))}
_KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "tainted": {"taints": (v1.DeviceTaint(key="k", effect="NoSchedule"),)},
    "list": {"attributes": {"l": v1.DeviceAttribute(ints=(1, 2))}},
    "partition": {"consumes_counters": (v1.DeviceCounterConsumption(counter_set="s0", counters=_COUNTERS),)},
    "sized": {"capacity": {"memory": v1.DeviceCapacity(value=Quantity("1.5Gi"))}},
}
_POOL = "pool-1"


@st.composite
def _pools(draw: st.DrawFn) -> DesiredPool:
    """Up to about 300 devices in runs of one kind, which shrink and grow at both ends."""
    runs = draw(st.lists(st.tuples(st.sampled_from(list(_KINDS)), st.integers(0, 2), st.integers(1, 100)), max_size=3))
    devices = [
        v1.Device(name=f"{kind}-{run}-{i}", **_KINDS[kind])  # type: ignore[arg-type]
        for run, (kind, first, count) in enumerate(runs)
        for i in range(first, first + count)
    ]
    sets = tuple(v1.CounterSet(name=f"s{i}", counters=_COUNTERS) for i in range(draw(st.sampled_from([1, 2, 9]))))
    uses_counters = any(kind == "partition" for kind, _, _ in runs)
    return DesiredPool(_POOL, node_name="node-1", devices=tuple(devices), counter_sets=sets if uses_counters else ())


_DESIRED = st.builds(lambda pool: DesiredSlices("gpu.example.com", None, (pool,)), _pools())


def _publish(server: ModelServer, desired: DesiredSlices) -> None:
    server.apply(plan(desired, server.list(), version=DEFAULT))


@given(st.lists(_DESIRED, min_size=1, max_size=3), st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_one_plan_converges_after_interruptions(history: list[DesiredSlices], writes: list[int]) -> None:
    server = ModelServer()
    for desired, limit in zip(history, writes, strict=False):
        for _, _ in zip(range(limit), server.execute(plan(desired, server.list(), version=DEFAULT)), strict=False):
            pass
    _publish(server, history[-1])
    assert not plan(history[-1], server.list(), version=DEFAULT)


@given(_DESIRED, _DESIRED)
def test_slices_are_valid_and_contain_each_device_once_in_order(old: DesiredSlices, new: DesiredSlices) -> None:
    server = ModelServer()
    for desired in (old, new):
        _publish(server, desired)
        slices = server.list()
        assert [error for item in slices for error in validate_slice(item, UNMODIFIED)] == []
        assert validate_pool(slices) == []
        visible = visible_devices(slices, _POOL)
        assert visible is not None
        assert [device.name for device in visible] == [device.name for device in desired.pools[0].devices]


@given(st.lists(_DESIRED, min_size=2, max_size=4))
def test_generation_never_decreases(history: list[DesiredSlices]) -> None:
    server, generations = ModelServer(), [0]
    for desired in history:
        _publish(server, desired)
        (generation,) = {item.spec.pool.generation for item in server.list()}
        generations.append(generation)
    assert generations == sorted(generations)


@given(_DESIRED, _DESIRED, st.integers(0, 6), st.lists(st.integers(0, 5), max_size=2), _DESIRED)
def test_readers_never_see_mixed_generations(
    first: DesiredSlices, broken_off: DesiredSlices, writes: int, deleted: list[int], last: DesiredSlices
) -> None:
    server = ModelServer()
    _publish(server, first)
    for desired, limit in ((broken_off, writes), (last, None)):
        if limit is None:
            for index in deleted:  # manually
                for item in server.list()[index : index + 1]:
                    del server.slices[item.metadata.name]
        allowed = {None, _visible(server), _names(desired)}
        for done, _ in enumerate(server.execute(plan(desired, server.list(), version=DEFAULT)), start=1):
            assert _visible(server) in allowed
            if done == limit:
                break
    assert _visible(server) == _names(last)


@given(_DESIRED.filter(lambda desired: bool(desired.pools[0].devices)), st.data())
def test_one_changed_device_is_one_update_without_new_generation(desired: DesiredSlices, data: st.DataObject) -> None:
    server = ModelServer()
    _publish(server, desired)
    devices = list(desired.pools[0].devices)
    at = data.draw(st.integers(0, len(devices) - 1))
    attributes = {**devices[at].attributes, "changed": v1.DeviceAttribute(bool=True)}
    devices[at] = devices[at].model_copy(update={"attributes": attributes})
    changed = replace(desired, pools=(replace(desired.pools[0], devices=tuple(devices)),))
    result = plan(changed, server.list(), version=DEFAULT)
    assert (len(result.deletes), len(result.updates), len(result.creates)) == (0, 1, 0)
    assert result.updates[0].spec.pool == server.slices[result.updates[0].metadata.name].spec.pool


def _visible(server: ModelServer) -> tuple[str, ...] | None:
    devices = visible_devices(server.list(), _POOL)
    return None if devices is None else tuple(device.name for device in devices)


def _names(desired: DesiredSlices) -> tuple[str, ...]:
    return tuple(device.name for device in desired.pools[0].devices)
