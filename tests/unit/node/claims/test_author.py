"""Errors in an author's preparer: their effect on the claim, on other claims, and on the log."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

import dra_kit as dra
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, driver
from tests.unit.node.role import PLENTY, Node, set_deadline


def raising(error: BaseException) -> Doing:
    def fail(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        raise error

    return Doing(fail)


def records(caplog: pytest.LogCaptureFixture, message: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == message]


@pytest.mark.parametrize("error", [dra.PermanentError("no cheese"), dra.TransientError("oven is cold")])
async def test_an_error_for_the_user_is_reported_unchanged(
    node: Node, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    lunch = node.claim()
    async with node.running(driver(raising(error))):
        assert await node.error(lunch) == str(error)
        [record] = records(caplog, "claim not prepared")
        assert record.exc_info is None
        assert node.is_clean()


async def test_an_unexpected_exception_is_readable_and_its_traceback_is_logged(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    lunch = node.claim()
    async with node.running(driver(raising(ValueError("no\ncheese")))):
        error = await node.error(lunch)
        place = f"{__file__}:{raising.__code__.co_firstlineno + 2}"
        assert error == f"Doing.prepare raised ValueError: no cheese at {place}; the driver's log has the traceback"
        [record] = records(caplog, "claim not prepared")
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], ValueError)
        assert node.is_clean()


async def test_a_failed_prepare_records_an_event_on_the_claim(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver(raising(dra.PermanentError("no cheese")))):
        await node.error(lunch)
        await eventually(node.events)
    [event] = node.events()
    assert (event["type"], event["reason"], event["note"]) == (
        "Warning", "FailedPrepareDevices", "on node node-1: no cheese",
    )  # fmt: skip
    assert (event["regarding"]["kind"], event["regarding"]["name"], event["regarding"]["uid"]) == (
        "ResourceClaim", "lunch", "uid-lunch",
    )  # fmt: skip


async def test_a_preparer_that_cancels_itself_fails_its_claim_only(node: Node) -> None:
    def cancel(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if claim.name == "bad":
            raise asyncio.CancelledError
        return dra.Prepared()

    bad, good = node.claim("bad", ["pizza-0"]), node.claim("good", ["pizza-1"])
    async with node.running(driver(Doing(cancel))):
        answers = await node.kubelet.plugin("dra.pizza").prepare([bad, good])
        assert answers["uid-good"].error == ""
        assert answers["uid-bad"].error.startswith("Doing.prepare raised CancelledError")


class Whole(dra.Preparer):
    """Returns the same whatever it is asked for."""

    def __init__(self, outcome: Any) -> None:
        self._outcome = outcome

    def prepare_claim(self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice]) -> Any:
        return self._outcome


@pytest.mark.parametrize(
    "outcome",
    [None, [], [dra.Prepared()] * 3, [dra.Prepared(), None], dra.Prepared(), [{"env": {}}] * 2],
    ids=["None", "none", "too many", "one None", "not a list", "dicts"],
)
async def test_prepare_rejects_a_wrong_number_or_type_of_results(node: Node, outcome: Any) -> None:
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    async with node.running(driver(Whole(outcome))):
        error = await node.error(lunch)
        place = f"{__file__}:{Whole.prepare_claim.__code__.co_firstlineno}"
        assert error.startswith(f"Whole.prepare_claim ({place}) returned ")
        assert error.endswith(" for 2 devices; return a list with one dra_kit.Prepared for each")
        assert node.is_clean()


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (None, "None for device pizza-0; write 'return dra_kit.Prepared(…)', without anything in it for a container"),
        ({"env": {"PIN": "hunter2"}}, "dict for device pizza-0; write 'return dra_kit.Prepared(…)'"),
    ],
    ids=["None", "dict"],
)
async def test_a_wrong_return_type_is_reported_with_the_location_of_the_method(
    node: Node, outcome: Any, told: str
) -> None:
    class Waiter(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> Any:
            return outcome

    lunch = node.claim()
    async with node.running(driver(Waiter())):
        error = await node.error(lunch)
    place = f"{__file__}:{Waiter.prepare.__code__.co_firstlineno}"
    assert error.startswith(f"Waiter.prepare ({place}) returned {told}")
    assert "hunter2" not in error


class Order(BaseModel):
    """An author's own model."""

    pin: int


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: [dra.Prepared(env={"PIN": "hunter2"})] * 2,
        lambda: {"PIN": "hunter2"},
        lambda: dra.Prepared(env={"PIN": b"hunter2"}),  # type: ignore[dict-item]
        lambda: dra.Prepared(env={"PIN=hunter2": "1"}),
        lambda: dra.Prepared(hooks=[dra.Hook(hook_name="poststop", path="/bin/hook", env=["hunter2"])]),
        lambda: dra.Prepared(state={"pin": {"hunter2"}}),  # type: ignore[dict-item]
        lambda: Order.model_validate({"pin": "hunter2"}),
    ],
    ids=["two", "a dict", "no text", "in the name", "no name", "state", "own model"],
)
async def test_errors_and_events_do_not_quote_what_a_preparer_returned(node: Node, wrong: Callable[[], Any]) -> None:
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: wrong()))):
        error = await node.error(lunch)
        await eventually(node.events)
    assert "hunter2" not in error
    assert "hunter2" not in json.dumps(node.events())


INVALID: dict[str, tuple[Callable[[], dra.Prepared], str]] = {
    "relative mount": (
        lambda: dra.Prepared(mounts=[dra.Mount(host_path="/tmp/x", container_path="inside")]),
        "inside",
    ),
    "empty variable": (lambda: dra.Prepared(env={"": "x"}), "variable"),
    "NUL": (lambda: dra.Prepared(env={"A": "x\0"}), "NUL"),
    "no device node": (lambda: dra.Prepared(device_nodes=[dra.DeviceNode(path="")]), "deviceNodes"),
    "no CDI name": (lambda: dra.Prepared(cdi_devices=["gpu-0"]), "vendor/class=name"),
}


@pytest.mark.parametrize("name", INVALID)
async def test_invalid_container_edits_are_rejected(node: Node, name: str) -> None:
    make, told = INVALID[name]
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: make()))):
        assert told in await node.error(lunch)
        assert node.is_clean()


def conflict(name: str, one: dict[str, Any], other: dict[str, Any]) -> Any:
    return pytest.param(name, [dra.Prepared(**one), dra.Prepared(**other)], id=name)


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        conflict("variable OVEN", {"env": {"OVEN": "1"}}, {"env": {"OVEN": "2"}}),
        conflict(
            "mount /oven",
            {"mounts": [dra.Mount(host_path="/a", container_path="/oven")]},
            {"mounts": [dra.Mount(host_path="/b", container_path="/oven")]},
        ),
        conflict(
            "network interface eth1",
            {"net_devices": [dra.NetDevice(host_interface_name="vf0", name="eth1")]},
            {"net_devices": [dra.NetDevice(host_interface_name="vf1", name="eth1")]},
        ),
        conflict(
            "intel_rdt",
            {"intel_rdt": dra.IntelRdt(clos_id="gold")},
            {"intel_rdt": dra.IntelRdt(clos_id="silver")},
        ),
        conflict(
            "createContainer hook /bin/hook",
            {"hooks": [dra.Hook(hook_name="createContainer", path="/bin/hook", args=["hook", "x"])]},
            {"hooks": [dra.Hook(hook_name="createContainer", path="/bin/hook", args=["hook", "x"], timeout=1)]},
        ),
    ],
)
async def test_conflicting_edits_of_two_devices_are_rejected(
    node: Node, what: str, outcome: list[dra.Prepared]
) -> None:
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    async with node.running(driver(Whole(outcome))):
        error = await node.error(lunch)
        assert error.startswith(f"devices node-1/pizza-0 and node-1/pizza-1 of request pizza set {what} differently")
        assert node.is_clean()


async def test_container_is_put_into_a_class_of_service_in_the_oldest_version_of_cdi(node: Node) -> None:
    gold = dra.IntelRdt(clos_id="gold", l3_cache_schema="L3:0=f", mem_bw_schema="MB:0=50")
    monitored = dra.ContainerEdits(intel_rdt=dra.IntelRdt(schemata=["L3:0=f"], enable_monitoring=True))
    lunch, dinner = node.claim(), node.claim("dinner", devices=["pizza-1", "pizza-2"])
    async with node.running(driver(Whole([dra.Prepared(intel_rdt=gold)]))):
        await node.prepare(lunch)
    async with node.running(driver(Whole([dra.Prepared(claim_edits=monitored)] * 2))):
        await node.prepare(dinner)
    spec, other = node.spec(lunch), node.spec(dinner)
    [device] = spec["devices"]
    expected = {"closID": "gold", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=50"}
    assert (spec["cdiVersion"], device["containerEdits"]["intelRdt"]) == ("0.7.0", expected)
    assert other["containerEdits"]["intelRdt"] == {"schemata": ["L3:0=f"], "enableMonitoring": True}
    assert other["cdiVersion"] == "1.1.0"


async def test_invalid_class_of_service_is_rejected(node: Node) -> None:
    async with node.running(driver(Whole([dra.Prepared(intel_rdt=dra.IntelRdt(clos_id="a/b"))]))):
        assert "intelRdt.closID: 'a/b': a CLOS is named like a file" in await node.error(node.claim())


async def test_conflicting_edits_of_subrequests_of_one_request_are_rejected(node: Node) -> None:
    lunch = node.claim(
        devices=[{"device": "pizza-0", "request": "pizza/big"}, {"device": "pizza-1", "request": "pizza/small"}]
    )
    async with node.running(driver(Whole([dra.Prepared(env={"OVEN": "1"}), dra.Prepared(env={"OVEN": "2"})]))):
        assert "of request pizza set variable OVEN differently" in await node.error(lunch)


HOOKS = [dra.Hook(hook_name="createContainer", path="/bin/hook", args=["hook", what]) for what in ("link", "cache")]


@pytest.mark.parametrize(
    "outcome",
    [[dra.Prepared(hooks=HOOKS), dra.Prepared(hooks=HOOKS[:1])], [dra.Prepared(env={"OVEN": "1"})] * 2],
    ids=["hooks with different arguments", "identical edits"],
)
async def test_edits_of_two_devices_that_do_not_conflict_are_accepted(node: Node, outcome: list[dra.Prepared]) -> None:
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    async with node.running(driver(Whole(outcome))):
        assert len(await node.prepare(lunch)) == 2


@pytest.mark.parametrize(
    ("prepared", "told"),
    [
        (
            dra.Prepared(mounts=[dra.Mount(host_path=path, container_path="/oven") for path in ("/a", "/b")]),
            "the edits of device node-1/pizza-0 set mount /oven differently",
        ),
        (
            dra.Prepared(env={"OVEN": "1"}, claim_edits=dra.ContainerEdits(env={"OVEN": "2"})),
            "device node-1/pizza-0 and its claim_edits set variable OVEN",
        ),
    ],
    ids=["mounts", "claim edits"],
)
async def test_conflicting_edits_of_one_device_are_rejected(node: Node, prepared: dra.Prepared, told: str) -> None:
    lunch = node.claim()
    async with node.running(driver(Whole([prepared]))):
        assert (await node.error(lunch)).startswith(told)


async def test_devices_of_different_requests_may_have_different_edits(node: Node) -> None:
    lunch = node.claim(devices=[{"device": "pizza-0", "request": "one"}, {"device": "pizza-1", "request": "two"}])
    async with node.running(driver(Whole([dra.Prepared(env={"OVEN": "1"}), dra.Prepared(env={"OVEN": "2"})]))):
        await node.prepare(lunch)
        assert node.env(lunch) == ["OVEN=1", "OVEN=2"]


@pytest.mark.parametrize(
    ("outcome", "who"),
    [
        (
            [dra.Prepared(claim_edits=dra.ContainerEdits(env={"OVEN": value})) for value in "12"],
            "the claim_edits of devices node-1/pizza-0 and node-1/pizza-1",
        ),
        (
            [dra.Prepared(env={"OVEN": "1"}), dra.Prepared(claim_edits=dra.ContainerEdits(env={"OVEN": "2"}))],
            "device node-1/pizza-0 and the claim_edits of device node-1/pizza-1",
        ),
    ],
    ids=["one another", "a device"],
)
async def test_claim_edits_apply_to_every_container_and_conflict_with_devices_of_any_request(
    node: Node, outcome: list[dra.Prepared], who: str
) -> None:
    lunch = node.claim(devices=[{"device": "pizza-0", "request": "one"}, {"device": "pizza-1", "request": "two"}])
    async with node.running(driver(Whole(outcome))):
        assert (await node.error(lunch)).startswith(f"{who} set variable OVEN differently")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({}, {"options": ["rbind"]}),
        ({"options": ["ro"]}, {"options": ["rbind", "ro"]}),
        ({"options": ["ro", "bind"]}, {"options": ["ro", "bind"]}),
        ({"options": ["rbind", "ro"]}, {"options": ["rbind", "ro"]}),
        ({"type": "none"}, {"options": ["rbind"], "type": "none"}),
        ({"type": "tmpfs", "options": ["size=1m"]}, {"options": ["size=1m"], "type": "tmpfs"}),
        ({"type": "tmpfs"}, {"type": "tmpfs"}),
    ],
)
async def test_a_mount_is_a_bind_mount_by_default(node: Node, given: dict[str, Any], written: dict[str, Any]) -> None:
    mount = dra.Mount(host_path="/a", container_path="/oven", **given)
    lunch = node.claim()
    await node.prepared_by(driver(Doing(lambda claim, device: dra.Prepared(mounts=[mount]))), lunch)
    [device] = node.spec(lunch)["devices"]
    assert device["containerEdits"]["mounts"] == [{"hostPath": "/a", "containerPath": "/oven", **written}]


async def test_claim_edits_are_written_once_and_apply_to_containers_of_any_device(node: Node) -> None:
    common = dra.ContainerEdits(env={"KITCHEN": "open"})
    lunch = node.claim(devices=["pizza-0", "pizza-1", "pizza-2"])
    outcome = [dra.Prepared(claim_edits=common), dra.Prepared(claim_edits=common), dra.Prepared()]
    async with node.running(driver(Whole(outcome))):
        devices = await node.prepare(lunch)
        assert all(len(device.cdi_device_ids) == 1 for device in devices)
        assert node.spec(lunch)["containerEdits"] == {"env": ["KITCHEN=open"]}
        assert node.env(lunch).count("KITCHEN=open") == 1


async def test_existing_cdi_devices_are_passed_on(node: Node) -> None:
    lunch = node.claim()
    outcome = [dra.Prepared(cdi_devices=["vendor.example/gpu=0"])]
    async with node.running(driver(Whole(outcome))):
        [device] = await node.prepare(lunch)
        assert device.cdi_device_ids == ("vendor.example/gpu=0",)
        assert node.specs() == []


class Hanging(dra.Preparer):
    """Blocks in a thread for claims called ``slow``, until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.entered = 0
        self.left = 0

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if claim.name == "slow":
            self.entered += 1
            self.go_on.wait()
            self.left += 1
        return dra.Prepared(env={"A": "1"})


async def test_a_hanging_call_delays_only_its_own_claim(node: Node) -> None:
    hanging = Hanging()
    slow, quick = node.claim("slow", ["pizza-0"]), node.claim("quick", ["pizza-1"])
    late = "not prepared within 1 s: the work continues and is rolled back when it ends; the kubelet tries again"
    async with node.running(driver(hanging), deadline=1.0) as agent:
        assert await node.late(slow, lambda: hanging.entered) == late
        while (answers := await node.kubelet.plugin("dra.pizza").prepare([slow, quick]))["uid-quick"].error:
            assert answers["uid-quick"].error == late, "on a busy machine it may need longer, too"
        assert answers["uid-slow"].error == late
        assert hanging.entered == 1, "prepare is never called twice at once for a claim"
        set_deadline(agent, PLENTY)
        other = node.claim("other", ["pizza-0"])
        assert "device node-1/pizza-0 of claim default/other is still being prepared for claim default/slow" in (
            await node.error(other)
        )
        hanging.go_on.set()
        await eventually(lambda: hanging.left)
        await node.prepare(slow)
        assert hanging.left == 2, "the late result was thrown away"
        await node.unprepare(slow)
        await node.prepare(other)


async def test_a_result_after_the_deadline_is_not_stored(node: Node) -> None:
    hanging = Hanging()
    slow = node.claim("slow")
    async with node.running(driver(hanging), deadline=1.0) as agent:
        await node.late(slow, lambda: hanging.entered)
        set_deadline(agent, PLENTY)
        hanging.go_on.set()
        await eventually(lambda: hanging.left)
        await node.unprepare(slow)
        await eventually(node.is_clean)  # the call that came too late notes its end by itself


async def test_an_async_call_that_hangs_is_cancelled_at_the_deadline(node: Node) -> None:
    entered, cancelled = [], []

    async def hang(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        entered.append(claim.name)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(claim.name)
        raise AssertionError

    lunch = node.claim()
    async with node.running(driver(Doing(hang)), deadline=1.0) as agent:
        await node.late(lunch, lambda: entered)
        assert cancelled == ["lunch"]
        set_deadline(agent, PLENTY)
        await node.unprepare(lunch)
        await eventually(node.is_clean)  # the call that was cut off notes its end by itself


async def test_a_call_of_a_disconnected_kubelet_ends_at_its_deadline(node: Node) -> None:
    entered = asyncio.Event()
    ended = asyncio.Event()

    async def hang(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    lunch = node.claim()
    async with node.running(driver(Doing(hang)), deadline=1.0) as agent:
        while not entered.is_set():  # on a busy machine the deadline of a call may pass before
            call = asyncio.create_task(node.kubelet.plugin("dra.pizza").prepare([lunch]))
            await eventually(lambda call=call: entered.is_set() or call.done())  # type: ignore[misc]
        call.cancel()
        async with asyncio.timeout(60):
            await ended.wait()
        set_deadline(agent, PLENTY)
        await node.unprepare(lunch)
        await eventually(node.is_clean)  # the call that was cut off notes its end by itself


@pytest.mark.parametrize(("concurrency", "overlap"), [("claim", True), ("device", True), ("driver", False)])
async def test_concurrency_controls_which_prepares_overlap(node: Node, concurrency: Any, overlap: bool) -> None:
    both = asyncio.Barrier(2)
    met = []

    async def meet(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        try:
            async with asyncio.timeout(0.2 if not overlap else 60):
                await both.wait()
            met.append(claim.name)
        except (TimeoutError, asyncio.BrokenBarrierError):
            await both.reset()
        return dra.Prepared()

    one, other = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(driver(Doing(meet), concurrency=concurrency)):
        await node.prepare(one, other)
        assert len(met) == (2 if overlap else 0)


async def test_shares_of_one_device_do_not_overlap_with_concurrency_device(node: Node) -> None:
    inside = 0
    most = 0

    async def count(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return dra.Prepared()

    shares = [node.claim(f"c{number}", [{"device": "pizza-0", "shareID": f"s{number}"}]) for number in range(4)]
    async with node.running(driver(Doing(count), concurrency="device")):
        await node.prepare(*shares)
        assert most == 1
