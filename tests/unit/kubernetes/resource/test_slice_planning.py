from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import DEFAULT, OLDEST, KubernetesVersion
from dra_kit.kubernetes.resource import names, v1
from dra_kit.kubernetes.resource.api_model import OwnerReference
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.slices.planning import (
    DesiredPool,
    DesiredSlices,
    SlicePlan,
    plan,
    pools_beyond_one_slice,
    refused_slices,
    taints_left_out,
    without_pools,
)
from tests.unit.kubernetes.resource.model_server import ModelServer

_NODE = OwnerReference(api_version="v1", kind="Node", name="node-1", uid="u-1", controller=True)
_CONSUMED = {"counterSet": "s0", "counters": {"n": {"value": "1"}}}
_TAINT = v1.DeviceTaint(key="example.com/broken", effect="NoSchedule")


def _devices(count: int, prefix: str = "d", **fields: object) -> tuple[v1.Device, ...]:
    return tuple(v1.Device.model_validate({"name": f"{prefix}{i}", **fields}) for i in range(count))


def _desired(*devices: v1.Device, owner: OwnerReference | None = _NODE, **pool: object) -> DesiredSlices:
    fields = {"name": "node-1", "node_name": "node-1", "devices": devices, **pool}
    return DesiredSlices("gpu.example.com", owner, (DesiredPool(**fields),))  # type: ignore[arg-type]


def _plan(desired: DesiredSlices, server: ModelServer, *, remember: bool = True) -> SlicePlan:
    return plan(desired, server.list(), version=DEFAULT, accepted=server.accepted if remember else {})


def _publish(server: ModelServer, desired: DesiredSlices) -> None:
    server.apply(_plan(desired, server))
    server.writes.clear()


def _published(desired: DesiredSlices, *, dropped: Iterable[str] = ()) -> ModelServer:
    """Return a server with these slices, which drops fields of devices."""
    server = ModelServer(dropped_device_fields=dropped)
    _publish(server, desired)
    return server


def _counter_sets(count: int) -> tuple[v1.CounterSet, ...]:
    counters = {"n": v1.Counter(value=Quantity(1))}
    return tuple(v1.CounterSet(name=f"s{i}", counters=counters) for i in range(count))


def _shape(server: ModelServer) -> list[tuple[int, int, int]]:
    """Return (generation, resourceSliceCount, devices) of each slice in the order of names."""
    return [
        (item.spec.pool.generation, item.spec.pool.resource_slice_count, len(item.spec.devices))
        for item in server.list()
    ]


def test_first_plan_has_generation_1_indexed_names_and_owner() -> None:
    server = ModelServer()
    created = _plan(_desired(*_devices(130)), server).creates
    assert [item.metadata.generate_name for item in created] == [
        "00000-gpu.example.com-node-1-",
        "00001-gpu.example.com-node-1-",
    ]
    assert all(item.metadata.owner_references == (_NODE,) for item in created)
    server.apply(SlicePlan(creates=created))
    assert _shape(server) == [(1, 2, 128), (1, 2, 2)]


def test_empty_pool_has_one_empty_slice() -> None:
    server = ModelServer()
    server.apply(_plan(_desired(), server))
    assert _shape(server) == [(1, 1, 0)]


def test_unchanged_slices_are_not_written() -> None:
    desired = _desired(*_devices(200, taints=[_TAINT.to_json()], capacity={"memory": {"value": "1024Mi"}}))
    server = _published(desired)
    assert not _plan(desired, server, remember=False)


def test_one_changed_slice_is_updated_in_place() -> None:
    devices = _devices(300)
    server = _published(_desired(*devices))
    changed = devices[150].model_copy(update={"attributes": {"a": v1.DeviceAttribute(string="x")}})
    server.apply(_plan(_desired(*devices[:150], changed, *devices[151:]), server))
    assert server.writes == ["update"]
    assert _shape(server) == [(1, 3, 128), (1, 3, 128), (1, 3, 44)]


def test_two_changed_slices_raise_generation() -> None:
    devices = _devices(300)
    server = _published(_desired(*devices))
    server.apply(_plan(_desired(*devices[1:]), server))
    assert server.writes == ["update"] * 3
    assert [generation for generation, _, _ in _shape(server)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("before", "after", "writes", "shape"),
    [
        pytest.param(200, 201, ["update"], [(1, 2, 128), (1, 2, 73)], id="appended-device-changes-last-slice-only"),
        pytest.param(128, 129, ["update", "create"], [(2, 2, 128), (2, 2, 1)], id="new-slice-raises-generation"),
        pytest.param(300, 100, ["delete", "delete", "update"], [(2, 1, 100)], id="unneeded-slices-are-deleted-first"),
    ],
)
def test_other_number_of_devices(before: int, after: int, writes: list[str], shape: list[tuple[int, int, int]]) -> None:
    server = _published(_desired(*_devices(before)))
    server.apply(_plan(_desired(*_devices(after)), server))
    assert server.writes == writes
    assert _shape(server) == shape


def test_undesired_pools_are_deleted() -> None:
    server = _published(_desired(*_devices(200)))
    server.apply(_plan(DesiredSlices("gpu.example.com", _NODE), server))
    assert server.slices == {}


def test_slices_of_other_driver_are_ignored() -> None:
    server = _published(_desired(*_devices(1)))
    assert not _plan(DesiredSlices("nic.example.com", _NODE), server)


def test_tainted_device_limits_slice_to_64_devices() -> None:
    tainted = v1.Device(name="t", taints=(_TAINT,))
    server = _published(_desired(*_devices(70), tainted, *_devices(70, "e")))
    assert [count for _, _, count in _shape(server)] == [70, 64, 7]


def test_slices_without_unique_index_are_replaced() -> None:
    desired = _desired(*_devices(1))
    server = _published(desired)
    (item,) = server.list()
    for name in ("zz-old-random-name", f"{item.metadata.name}-again"):
        metadata = item.metadata.model_copy(update={"name": name})
        server.slices[name] = item.model_copy(update={"metadata": metadata})
    server.apply(_plan(desired, server))
    assert server.writes == ["delete", "delete"]
    assert server.list() == [item]


def test_slices_of_a_lower_generation_are_replaced() -> None:
    desired = _desired(*_devices(129))
    server = _published(desired)
    first, _ = server.list()
    server.edit(first.metadata.name, pool=first.spec.pool.model_copy(update={"generation": 5}))
    server.apply(_plan(desired, server))
    assert _shape(server) == [(6, 2, 128), (6, 2, 1)]
    assert server.writes == ["delete", "update", "create"]


def test_terminating_slice_is_replaced() -> None:
    desired = _desired(*_devices(1))
    server = _published(desired)
    (item,) = server.list()
    metadata = item.metadata.model_copy(update={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    server.slices[metadata.name] = item.model_copy(update={"metadata": metadata})
    result = _plan(desired, server)
    assert (result.deletes, result.updates) == ((), ())
    assert [created.spec.pool.generation for created in result.creates] == [2]


def test_other_node_name_replaces_slices() -> None:
    server = _published(_desired(*_devices(1)))
    server.apply(_plan(_desired(*_devices(1), node_name="node-2"), server))
    assert server.writes == ["delete", "create"]
    assert [item.spec.node_name for item in server.list()] == ["node-2"]


def test_external_edits_are_reverted() -> None:
    desired = _desired(*_devices(2))
    server = _published(desired)
    (item,) = server.list()
    server.edit(item.metadata.name, devices=item.spec.devices[:1])
    server.apply(_plan(desired, server))
    assert server.writes == ["update"]
    assert [device.name for device in server.list()[0].spec.devices] == ["d0", "d1"]


def test_recreated_owner_replaces_slices() -> None:
    server = _published(_desired(*_devices(1)))
    reborn = _NODE.model_copy(update={"uid": "u-2"})
    server.apply(_plan(_desired(*_devices(1), owner=reborn), server))
    assert server.writes == ["update"]
    assert server.list()[0].metadata.owner_references == (reborn,)


def test_unchanged_taint_keeps_its_time() -> None:
    device = v1.Device(name="d", taints=(_TAINT,))
    server = _published(_desired(device))
    (before,) = server.list()[0].spec.devices
    moved = _desired(*_devices(64, "e", taints=[_TAINT.to_json()]), device)
    _publish(server, moved)
    after = server.list()[-1].spec.devices[-1]
    assert after == before


def test_taint_time_within_two_seconds_is_unchanged() -> None:
    server = ModelServer()

    def desired(time: str) -> DesiredSlices:
        return _desired(v1.Device(name="d", taints=(_TAINT.model_copy(update={"time_added": time}),)))

    _publish(server, desired("2026-01-01T00:00:00Z"))
    assert not _plan(desired("2026-01-01T01:00:01+01:00"), server, remember=False)
    assert _plan(desired("2026-01-01T00:00:02Z"), server, remember=False).updates


def test_quantities_are_compared_by_value() -> None:
    server = _published(_desired(*_devices(1, capacity={"memory": {"value": "1Gi"}})))
    assert not _plan(_desired(*_devices(1, capacity={"memory": {"value": "1073741824"}})), server, remember=False)
    assert _plan(_desired(*_devices(1, capacity={"memory": {"value": "1G"}})), server, remember=False)


def test_unknown_fields_are_ignored_and_preserved() -> None:
    server = _published(_desired(*_devices(1)))
    (item,) = server.list()
    device = item.spec.devices[0].model_copy(update={"futureDevice": 1})
    server.edit(item.metadata.name, devices=(device,), futureSpec=2)
    assert not _plan(_desired(*_devices(1)), server, remember=False)
    server.apply(_plan(_desired(*_devices(1, allowMultipleAllocations=True)), server))
    spec = server.list()[0].to_json()["spec"]
    assert (spec["futureSpec"], spec["devices"][0]["futureDevice"]) == (2, 1)


def test_dropped_fields_do_not_cause_repeated_writes() -> None:
    desired = _desired(*_devices(2, taints=[_TAINT.to_json()]))
    server = _published(desired, dropped=["taints"])
    assert not _plan(desired, server)
    server.apply(_plan(_desired(*_devices(3, taints=[_TAINT.to_json()])), server))
    assert server.writes == ["update"]


def test_external_edits_are_reverted_with_dropped_fields() -> None:
    desired = _desired(*_devices(2, taints=[_TAINT.to_json()]))
    server = _published(desired, dropped=["taints"])
    (item,) = server.list()
    server.edit(item.metadata.name, devices=())
    assert len(_plan(desired, server).updates) == 1


def test_counter_sets_are_in_separate_first_slices() -> None:
    devices = (*_devices(64), *_devices(1, "c", consumesCounters=[_CONSUMED]))
    server = _published(_desired(*devices, counter_sets=_counter_sets(9), partition_type_attribute="example.com/type"))
    specs = [item.spec for item in server.list()]
    assert [(len(spec.shared_counters), len(spec.devices)) for spec in specs] == [(8, 0), (1, 0), (0, 64), (0, 1)]
    assert [spec.partition_type_attribute for spec in specs] == [None, None, None, "example.com/type"]


def test_counter_sets_and_devices_share_slice_before_1_35() -> None:
    desired = _desired(*_devices(3), counter_sets=_counter_sets(1))
    (created,) = plan(desired, [], version=OLDEST).creates
    assert (len(created.spec.devices), len(created.spec.shared_counters)) == (3, 1)


@pytest.mark.parametrize(("devices", "sets"), [(129, 1), (1, 33)])
def test_counter_sets_and_devices_must_fit_one_slice_before_1_35(devices: int, sets: int) -> None:
    desired = _desired(*_devices(devices), counter_sets=_counter_sets(sets))
    with pytest.raises(ConfigurationError, match=r"pool 'node-1'.*before Kubernetes 1\.35.*upgrade"):
        plan(desired, [], version=OLDEST)


@pytest.mark.parametrize(("devices", "consumed", "fits"), [(32, 32, True), (33, 32, False), (1, 33, False)])
def test_consumed_counters_must_fit_one_slice_before_1_35(devices: int, consumed: int, fits: bool) -> None:
    counters = {f"c{i}": {"value": "1"} for i in range(consumed)}
    consuming = _devices(devices, consumesCounters=[{"counterSet": "s0", "counters": counters}])
    pool = _desired(*consuming, counter_sets=_counter_sets(1)).pools[0]

    assert list(pools_beyond_one_slice([pool], OLDEST)) == ([] if fits else ["node-1"])
    assert pools_beyond_one_slice([pool], DEFAULT) == {}


def test_slices_have_the_limits_of_their_release() -> None:
    tainted = _devices(128, taints=[{"key": "example.com/hot", "effect": "NoSchedule"}] * 4)

    sizes = {
        version: [len(item.spec.devices) for item in plan(_desired(*tainted), [], version=version).creates]
        for version in (OLDEST, DEFAULT)
    }

    assert sizes == {OLDEST: [128], DEFAULT: [64, 64]}


def test_nine_counter_sets_fit_one_slice_before_1_35() -> None:
    desired = _desired(*_devices(100, consumesCounters=[_CONSUMED]), counter_sets=_counter_sets(9))
    steps = plan(desired, [], version=OLDEST)

    assert len(steps.creates) == 1
    assert refused_slices(steps, (), OLDEST) == {}


@pytest.mark.parametrize(("version", "published"), [(OLDEST, ["a0", "a1", "a2", "a3"]), (DEFAULT, ["none", "a0"])])
def test_taints_that_a_release_does_not_accept_are_left_out(version: KubernetesVersion, published: list[str]) -> None:
    effects = {"none": "None", **{f"a{i}": "NoExecute" for i in range(6)}}
    [device] = _devices(1, taints=[{"key": f"example.com/{key}", "effect": effect} for key, effect in effects.items()])
    steps = plan(_desired(device), [], version=version)

    taints = [taint.key.removeprefix("example.com/") for taint in steps.creates[0].spec.devices[0].taints]
    assert taints[: len(published)] == published
    assert len(taints) == (4 if version == OLDEST else 7)
    assert refused_slices(steps, (), version) == {}
    left = taints_left_out(_desired(device).pools[0], version)
    expected = ["none", "a4", "a5"] if version == OLDEST else []
    assert [taint.key.removeprefix("example.com/") for taint in left.get("d0", ())] == expected


def test_taints_of_health_then_those_that_evict_are_left_out_last() -> None:
    taints = [{"key": f"example.com/own-{i}", "effect": "NoSchedule"} for i in range(4)]
    taints += [{"key": "example.com/evicting", "effect": "NoExecute"}]
    taints += [
        {"key": f"example.com/{key}", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}
        for key, effect in (("warm", "NoSchedule"), ("broken", "NoExecute"))
    ]
    steps = plan(_desired(*_devices(1, taints=taints)), [], version=OLDEST)

    published = [taint.key.removeprefix("example.com/") for taint in steps.creates[0].spec.devices[0].taints]
    assert published == ["own-0", "evicting", "warm", "broken"]


def test_duplicate_pool_name_is_rejected() -> None:
    pool = DesiredPool("p", all_nodes=True)
    with pytest.raises(ConfigurationError, match="two pools named 'p'"):
        plan(DesiredSlices("d", pools=(pool, pool)), [], version=DEFAULT)


@pytest.mark.parametrize(
    ("driver", "owner"),
    [("a" * 63, "n" * 253), ("a.b", ""), ("GPU.Example.com", "node"), ("a" * 50, "b.c.d"), ("d" * 51, "")],
)
def test_generated_names_start_with_index_and_are_valid(driver: str, owner: str) -> None:
    reference = OwnerReference(api_version="v1", kind="Node", name=owner, uid="u") if owner else None
    desired = DesiredSlices(driver, reference, (DesiredPool("p", all_nodes=True),))
    (created,) = plan(desired, [], version=DEFAULT).creates
    name = created.metadata.generate_name
    assert name.startswith("00000-")
    assert name.endswith("-")
    assert len(name) <= 58
    assert names.dns_subdomain(f"{name}x7k2p") == []


@pytest.mark.parametrize(
    ("version", "fields", "refused"),
    [
        ("1.37", {"attributes": {"firmware": {"version": f"1.0.{10**18}"}}}, []),
        (
            "1.38",
            {"attributes": {"firmware": {"version": f"1.0.{10**18}"}}},
            ["devices[d0].attributes[firmware].version"],
        ),
        # the value is dropped, and that only on a server without the gate
        ("1.35", {"attributes": {"links": {"ints": [1, 2]}}}, ["devices[d0].attributes[links]"]),
        ("1.36", {"attributes": {"links": {"ints": [1, 2]}}}, []),
        # with the default gates, the taint is dropped
        ("1.34", {"taints": [{"key": "example.com/broken", "effect": "None"}]}, []),
    ],
)
def test_slices_are_judged_by_the_release_of_the_server(
    version: str, fields: dict[str, Any], refused: list[str]
) -> None:
    good = DesiredPool(name="good", node_name="node-1", devices=_devices(1))
    bad = DesiredPool(name="bad", node_name="node-1", devices=_devices(1, **fields))
    steps = _plan(DesiredSlices("gpu.example.com", _NODE, (good, bad)), ModelServer())

    found = refused_slices(steps, (), KubernetesVersion.parse(version))

    assert [error.path for errors in found.values() for error in errors] == refused
    names_left = [item.spec.pool.name for item in without_pools(steps, found).creates]
    assert names_left == (["good"] if refused else ["good", "bad"])
