"""Releases of claims, and devices that pass from one claim to the next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reader import AllocatedClaim, ClaimReader
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.schema import claim_row
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, Oven, Waiter, driver
from tests.unit.node.hardware import Baker, Heat, hang, kitchen
from tests.unit.node.role import AGENT, PLENTY, Node, not_understood, set_deadline


async def test_releasing_an_unknown_claim_succeeds(node: Node) -> None:
    async with node.running(driver()):
        await node.unprepare(ClaimReference("default", "missing", "uid-1"))
        assert node.is_clean()


async def test_releasing_twice_succeeds(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        await node.prepare(lunch)
        await node.unprepare(lunch)
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_releasing_needs_no_api_server_and_no_claim(node: Node) -> None:
    lunch = node.claim()
    async with node.running(kitchen()):
        await node.prepare(lunch)
        node.api.delete("resourceclaims", "lunch", "default")
        node.api.go_away()
        await node.unprepare(lunch)
        assert Heat.hardware.on == {}
        assert node.is_clean()


async def test_a_release_overrides_a_prepare_in_progress(node: Node) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        await device.ensure(Heat(oven="oven", temperature=200))
        entered.set()
        await go_on.wait()
        return dra.Prepared(env={"A": "1"})

    lunch = node.claim()
    kitchen()
    async with node.running(driver(Doing(slowly), effects=[Heat])):
        preparing = asyncio.create_task(node.error(lunch))
        await entered.wait()
        releasing = asyncio.create_task(node.unprepare(lunch))
        await eventually(lambda: node.state()["epochs"])
        go_on.set()
        assert await preparing == (
            "claim default/lunch was released while it was being prepared; it is prepared again when the kubelet asks"
        )
        await releasing
        assert Heat.hardware.on == {}
        assert node.is_clean()
        await node.prepare(lunch)
        assert node.records() == ["lunch"]


async def test_a_release_overrides_a_prepare_that_still_waits_for_its_claim(node: Node) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        entered.set()
        await go_on.wait()
        return dra.Prepared(env={"A": "1"})

    lunch = node.claim()
    async with node.running(driver(Doing(slowly))):
        preparing = asyncio.create_task(node.error(lunch))
        await entered.wait()
        waiting = asyncio.create_task(node.error(lunch))  # its call arrives before that of the release
        releasing = asyncio.create_task(node.unprepare(lunch))
        await eventually(lambda: node.state()["epochs"])
        go_on.set()
        released = "was released while it was being prepared"
        assert released in await preparing
        assert released in await waiting
        await releasing
        assert node.is_clean()


async def test_the_last_of_many_concurrent_prepares_and_releases_wins(node: Node) -> None:
    lunch = node.claim()
    client = None
    async with node.running(kitchen()):
        client = node.kubelet.plugin("dra.pizza")
        for _ in range(5):
            await asyncio.gather(*(client.prepare([lunch]) for _ in range(4)), client.unprepare([lunch]))
        await node.unprepare(lunch)
        assert Heat.hardware.on == {}
        assert node.is_clean()
        await node.prepare(lunch)
        assert Heat.hardware.on == {"oven": 200}


class Imperative(Waiter):
    """Has something of its own to undo."""

    def __init__(self) -> None:
        super().__init__()
        self.released: list[Any] = []
        self.error: Exception | None = None

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        await super().prepare(claim, device)
        return dra.Prepared(env={"A": "1"}, state={"device": device.name})

    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        if self.error is not None:
            raise self.error
        self.released.append((claim, list(devices)))


LINE = Imperative.unprepare.__code__.co_firstlineno + 2


async def test_unprepare_gets_the_prepared_devices(node: Node) -> None:
    preparer = Imperative()
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    async with node.running(driver(preparer)):
        await node.prepare(lunch)
        node.api.delete("resourceclaims", "lunch", "default")
        await node.unprepare(lunch)
        [(claim, devices)] = preparer.released
        assert claim == lunch
        assert devices == [
            dra.PreparedDevice(pool="node-1", device=name, request="pizza", state={"device": name})
            for name in ("pizza-0", "pizza-1")
        ]
        assert node.is_clean()


class Hob(Imperative):
    """Fails for a device, after others were prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = "pizza-1"
        self.on: set[str] = set()

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        self.on.add(device.name)
        if device.name == self.fails:
            raise dra.TransientError("no gas")
        return await super().prepare(claim, device)

    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        super().unprepare(claim, devices)
        self.on -= {item.device for item in devices}


async def test_a_prepare_that_fails_for_one_device_is_unprepared_for_all(node: Node) -> None:
    hob = Hob()
    lunch = node.claim(devices=["pizza-0", "pizza-1", "pizza-2"])
    async with node.running(driver(hob)):
        assert await node.error(lunch) == "no gas"
        assert hob.on == set()
        [(claim, devices)] = hob.released
        assert claim == lunch
        assert [(item.device, item.state) for item in devices] == [
            ("pizza-0", {"device": "pizza-0"}),
            ("pizza-1", None),
            ("pizza-2", None),
        ]
        assert node.is_clean()
        hob.fails = ""
        await node.prepare(lunch)
        assert node.records() == ["lunch"]


async def test_a_prepare_cancelled_at_its_deadline_is_unprepared(node: Node) -> None:
    class Hanging(Hob):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            prepared = await super().prepare(claim, device)
            return await hang() if device.name == "pizza-1" else prepared

    hob = Hanging()
    hob.fails = ""
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    async with node.running(driver(hob), deadline=0.5):
        assert "not prepared within 0.5 s" in await node.late(lunch, lambda: "pizza-1" in hob.on)
        await eventually(node.is_clean)
        assert hob.on == set()


async def test_a_prepare_of_a_whole_claim_that_fails_is_unprepared(node: Node) -> None:
    class Whole(Hob):
        async def prepare_claim(self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice]) -> list[dra.Prepared]:
            return [await self.prepare(claim, device) for device in devices]

    hob = Whole()
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    async with node.running(driver(hob)):
        assert await node.error(lunch) == "no gas"
        assert hob.on == set()
        assert [item.state for item in hob.released[0][1]] == [None, None], "what it returned is unknown"


@pytest.mark.parametrize("concurrency", ["claim", "device", "driver"])
async def test_a_failing_unprepare_after_a_failed_prepare_is_retried(node: Node, concurrency: Any) -> None:
    hob = Hob()
    lunch, dinner = node.claim(devices=["pizza-0", "pizza-1"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(hob, concurrency=concurrency)):
        hob.error = dra.TransientError("in use")
        assert await node.error(lunch) == "no gas"
        assert [(item["name"], item["phase"]) for item in node.state()["claims"]] == [("lunch", "releasing")]
        assert await node.error(dinner) == "in use"
        hob.error, hob.fails = None, ""
        await node.prepare(lunch)
        assert [item.state for item in hob.released[0][1]] == [{"device": "pizza-0"}, None], "kept until then"
        assert node.records() == ["lunch"]


async def test_a_prepare_is_stored_before_code_that_must_be_undone_runs(node: Node) -> None:
    seen = list[tuple[str, str, str]]()

    class Looking(Imperative):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            seen.extend((item["name"], item["phase"], item["devices"][0]["device"]) for item in node.state()["claims"])
            assert self.context.prepared() == {}, "it is not prepared yet"
            return await super().prepare(claim, device)

    lunch = node.claim()
    async with node.running(driver(Looking())):
        await node.prepare(lunch)
        assert seen == [("lunch", "preparing", "pizza-0")]
        assert [item["phase"] for item in node.state()["claims"]] == ["prepared"]


async def test_an_older_release_reads_an_unfinished_prepare_as_being_released(node: Node) -> None:
    """A release of before, which shares the state in a rolling update or comes back: it undoes what it finds."""
    seen = list[tuple[str, str]]()

    class Looking(Imperative):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            seen.extend(node.execute("SELECT phase, json_extract(record, '$.phase') FROM claims"))
            return await super().prepare(claim, device)

    await node.prepared_by(driver(Looking()), node.claim())
    assert seen == [("releasing", "releasing")]


async def test_drivers_without_unprepare_do_not_store_unfinished_prepares(node: Node) -> None:
    seen = []

    async def look(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        seen.append(node.records())
        return dra.Prepared()

    await node.prepared_by(driver(Doing(look), effects=[Heat]), node.claim())
    assert seen == [[]]


@pytest.mark.parametrize("asked", ["", "prepare", "unprepare"])
async def test_the_unfinished_prepare_of_a_killed_process_is_unprepared(node: Node, asked: str) -> None:
    hob = Hob()
    hob.fails = ""
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    await node.prepared_by(driver(hob), lunch)
    [[text]] = node.execute("SELECT record FROM claims")
    record = ClaimRecord.model_validate_json(text)
    devices = tuple(item.model_copy(update={"state": None}) for item in record.devices)  # as before the code returned
    begun = record.model_copy(update={"phase": "releasing", "preparing": True, "devices": devices})
    node.execute("UPDATE claims SET phase = ?4, record = ?5, checksum = ?6 WHERE uid = ?1", *claim_row(begun))
    async with node.running(driver(hob)):
        if asked == "prepare":
            await node.prepare(lunch)
        elif asked == "unprepare":
            await node.unprepare(lunch)
        await eventually(lambda: node.records() == (["lunch"] if asked == "prepare" else []))
        assert [[(item.device, item.state) for item in devices] for _, devices in hob.released] == [
            [("pizza-0", None), ("pizza-1", None)]
        ]
        assert hob.on == ({"pizza-0", "pizza-1"} if asked == "prepare" else set())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (dra.TransientError("in use"), "in use"),
        (
            ValueError("no such oven"),
            (
                f"raised ValueError: no such oven at {__file__}:{LINE}; the release is retried when the "
                "kubelet asks again"
            ),
        ),
    ],
)
async def test_a_claim_with_a_failing_unprepare_stays_for_a_retry(node: Node, error: Exception, told: str) -> None:
    preparer = Imperative()
    lunch = node.claim()
    async with node.running(driver(preparer)):
        await node.prepare(lunch)
        preparer.error = error
        assert (await node.unprepare_error(lunch)).endswith(told)
        assert [(item["name"], item["phase"]) for item in node.state()["claims"]] == [("lunch", "releasing")]
        assert node.specs() == []
        preparer.error = None
        await node.unprepare(lunch)
        assert len(preparer.released) == 1
        assert node.is_clean()


async def test_a_half_released_claim_is_released_before_it_is_prepared_again(node: Node) -> None:
    preparer = Imperative()
    lunch = node.claim()
    async with node.running(driver(preparer)):
        await node.prepare(lunch)
        preparer.error = dra.TransientError("in use")
        await node.unprepare_error(lunch)
        assert await node.error(lunch) == "in use"
        preparer.error = None
        await node.prepare(lunch)
        assert (preparer.calls, len(preparer.released)) == (["lunch pizza-0", "lunch pizza-0"], 1)
        assert node.env(lunch) == ["A=1"]


async def half_released(node: Node) -> Imperative:
    """Return the preparer of a process that has stopped while a claim could not be released; it still cannot."""
    preparer, lunch = Imperative(), node.claim()
    async with node.running(driver(preparer)):
        await node.prepare(lunch)
        preparer.error = dra.TransientError("in use")
        await node.unprepare_error(lunch)
    return preparer


async def test_the_next_process_finishes_a_half_done_release(node: Node) -> None:
    preparer = await half_released(node)
    preparer.error = None
    async with node.running(driver(preparer)):
        await eventually(node.is_clean)
    assert len(preparer.released) == 1


async def test_a_release_that_the_next_process_cannot_finish_is_reported(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    preparer = await half_released(node)
    async with node.running(driver(preparer)):
        await eventually(lambda: [item for item in caplog.records if item.getMessage() == "claim not resumed"])
        assert node.records() == ["lunch"]


async def test_unreadable_state_at_the_start_is_read_later(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dra_kit.node.kubelet_connection.RESUME_AGAIN", 0.05)
    preparer = await half_released(node)
    preparer.error = None

    class Starting(Oven):
        def startup(self, context: dra.Context[Any]) -> None:
            node.execute("ALTER TABLE claims RENAME TO elsewhere")

    async with node.running(driver(preparer, Starting())):
        await eventually(lambda: "unfinished claims cannot be resumed" in caplog.messages)
        node.execute("ALTER TABLE elsewhere RENAME TO claims")
        await eventually(node.is_clean)
    assert len(preparer.released) == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_unprepare_that_exceeds_the_deadline_is_not_started_again(node: Node, is_async: bool) -> None:
    begun = []

    class Slow(Imperative):
        def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
            begun.append(claim.name)
            time.sleep(1.5)

    class Patient(Imperative):
        async def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:  # type: ignore[override]
            begun.append(claim.name)
            await asyncio.sleep(1.5)

    lunch = node.claim()
    async with node.running(driver(Patient() if is_async else Slow())) as agent:
        await node.prepare(lunch)
        set_deadline(agent, 0.5)
        assert "not released within 0.5 s" in await node.late_release(lunch, lambda: begun)
        set_deadline(agent, PLENTY)
        await eventually(node.is_clean)
        await node.unprepare(lunch)
    assert begun == ["lunch"]


async def test_an_unprepare_that_fails_after_the_deadline_is_reported(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    begun = []

    class Slow(Imperative):
        def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
            begun.append(claim.name)
            time.sleep(1.5)
            raise ValueError("the oven is stuck")

    lunch = node.claim()
    async with node.running(driver(Slow())) as agent:
        await node.prepare(lunch)
        set_deadline(agent, 0.5)
        await node.late_release(lunch, lambda: begun)
        await eventually(lambda: "failed after its deadline" in caplog.messages)
    [record] = [item for item in caplog.records if item.message == "failed after its deadline"]
    assert "Slow.unprepare raised ValueError: the oven is stuck" in vars(record)["error"]


async def test_releases_do_not_overlap_with_prepares_with_concurrency_driver(node: Node) -> None:
    preparer = SlowToRelease()
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(driver(preparer, concurrency="driver")):
        await node.prepare(a)
        releasing = asyncio.create_task(node.unprepare(a))
        await eventually(preparer.begun.is_set)
        preparing = asyncio.create_task(node.prepare(b))
        await eventually(lambda: node.gets(b))
        assert preparer.calls == ["a pizza-0"]
        preparer.go_on.set()
        await releasing
        await preparing
        assert preparer.calls == ["a pizza-0", "b pizza-1"]


async def test_a_released_claim_is_prepared_with_its_current_allocation(node: Node) -> None:
    """Two pods named the claim, one after the other; the kubelet has told of the end of the first."""
    baker = Baker(ovens={"lunch pizza-0": "left", "lunch pizza-1": "right"})
    lunch = node.claim(devices=["pizza-0"])
    async with node.running(kitchen(baker)):
        await node.prepare(lunch)
        await node.unprepare(lunch)
        node.claim(devices=["pizza-1"])
        [device] = await node.prepare(lunch)
        assert device.device_name == "pizza-1"
        assert Heat.hardware.on == {"right": 200}
        assert node.env(lunch) == ["PIZZA_1_FLAME=2"]
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_other_fields_of_the_claim_do_not_change_its_allocation(node: Node) -> None:
    waiter = Waiter()
    lunch = node.claim(devices=[{"device": "pizza-0"}])
    async with node.running(driver(waiter)):
        await node.prepare(lunch)
        node.claim(
            devices=[{"device": "pizza-0", "bindingConditions": ["ready"], "newField": 1}], annotations={"a": "b"}
        )
        await node.prepare(lunch)
        assert waiter.calls == ["lunch pizza-0"]


async def test_a_release_after_a_failed_prepare_does_not_block_the_next(node: Node) -> None:
    """The first attempt has failed, so there is nothing to release, and nothing blocks the next attempt."""
    lunch = node.claim()
    async with node.running(kitchen()):
        for _ in range(2):
            Heat.hardware.fail = cannot_apply
            assert "no gas" in await node.error(lunch)
            await node.unprepare(lunch)
            assert node.is_clean()
        Heat.hardware.fail = lambda what, temperature: None
        await node.prepare(lunch)
        assert Heat.hardware.on == {"oven": 200}
        await node.unprepare(lunch)
        assert node.is_clean()


def cannot_apply(what: str, temperature: int) -> None:
    if what == "apply":
        raise dra.TransientError("no gas")


async def test_a_changed_config_is_a_changed_allocation(node: Node) -> None:
    class Config(dra.OpaqueConfig, api_version="kitchen.example/v1"):
        slices: int = 8

    class Cook(dra.Preparer[Config]):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Config]) -> dra.Prepared:
            return dra.Prepared(env={"SLICES": str(device.config.slices)})

    config = {"apiVersion": "kitchen.example/v1", "kind": "Config"}
    lunch = node.claim(config=[config | {"slices": 4}])
    async with node.running(driver(Cook())):
        await node.prepare(lunch)
        node.claim(config=[config | {"slices": 6}])
        assert "claim default/lunch was reallocated after it was prepared" in await node.error(lunch)
        assert node.env(lunch) == ["SLICES=4"]
        await node.unprepare(lunch)
        await node.prepare(lunch)
        assert node.env(lunch) == ["SLICES=6"]


async def test_prepare_rejects_a_device_of_another_live_claim(node: Node) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver()):
        await node.prepare(lunch)
        assert await node.error(dinner) == (
            "device node-1/pizza-0 of claim default/dinner is still prepared for claim default/lunch, to which "
            "it is allocated too; delete the pods of one of the two claims"
        )
        assert node.records() == ["lunch"]


def end(node: Node, why: str) -> None:
    """What the API server says of claim ``lunch`` is no longer what it was prepared for."""
    match why:
        case "gone":
            node.api.delete("resourceclaims", "lunch", "default")
        case "replaced":
            node.api.delete("resourceclaims", "lunch", "default")
            node.claim("lunch", uid="new")
        case "not allocated":
            node.claim("lunch", [])
        case "elsewhere":
            node.claim("lunch", ["pizza-1"])


OVER = pytest.mark.parametrize("why", ["gone", "replaced", "not allocated", "elsewhere"])


@OVER
async def test_a_device_of_a_deleted_or_reallocated_claim_is_free_only_after_its_release(node: Node, why: str) -> None:
    """Its pod was deleted by force: the API server knows nothing of a container that may still run."""
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(kitchen()):
        await node.prepare(lunch)
        end(node, why)
        assert await node.error(dinner) == (
            "device node-1/pizza-0 of claim default/dinner is still prepared for claim default/lunch, which was "
            "deleted or reallocated and whose container may still run; it is free when the kubelet has released that "
            "claim, after a reboot, or when the claim has been gone for --orphan-after"
        )
        assert node.effects() == [("heat", "applied", ["lunch"])]
        assert node.records() == ["lunch"]
        await node.unprepare(lunch)
        await node.prepare(dinner)
        assert node.effects() == [("heat", "applied", ["dinner"])]


@OVER
async def test_a_device_of_a_stale_claim_of_an_earlier_boot_is_reassigned(node: Node, why: str) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    await node.prepared_by(kitchen(), lunch)
    node.boot_id.write_text("boot-2")
    async with node.running(kitchen()):
        assert "is still prepared for claim default/lunch, to which it is allocated too" in await node.error(dinner)
        end(node, why)
        await node.prepare(dinner)
        assert node.records() == ["dinner"]
        assert node.effects() == [("heat", "applied", ["dinner"])]
        await node.unprepare(dinner)
        assert node.is_clean()
        await node.unprepare(lunch)


async def test_a_claim_that_cannot_be_parsed_keeps_its_device(node: Node) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver()):
        await node.prepare(lunch)
        not_understood(node, "lunch")
        assert "is still prepared for claim default/lunch" in await node.error(dinner)
        assert node.records() == ["lunch"]


async def test_a_failed_release_is_finished_for_the_next_claim(node: Node) -> None:
    """The kubelet has asked for it, so that no container has the device, whatever the API server says."""
    preparer = Imperative()
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver(preparer)):
        await node.prepare(lunch)
        preparer.error = dra.TransientError("in use")
        await node.unprepare_error(lunch)
        assert await node.error(dinner) == "in use"
        preparer.error = None
        await node.prepare(dinner)
        assert node.records() == ["dinner"]


class SlowToRelease(Imperative):
    """Its release waits for ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        self.begun.set()
        self.go_on.wait()
        super().unprepare(claim, devices)


async def test_prepare_waits_for_a_device_that_a_stale_claim_is_releasing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.node.claims.reservations.RELEASE_WAIT", PLENTY)
    waiter = SlowToRelease()
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver(waiter)):
        await node.prepare(lunch)
        node.api.delete("resourceclaims", "lunch", "default")
        release = asyncio.create_task(node.unprepare(lunch))
        await eventually(waiter.begun.is_set)
        prepare = asyncio.create_task(node.prepare(dinner))
        await eventually(lambda: node.gets(dinner))
        assert not prepare.done()
        waiter.go_on.set()
        await asyncio.gather(release, prepare)
        assert node.records() == ["dinner"]
        assert [claim.name for claim, _ in waiter.released] == ["lunch"]
    assert node.events() == []


async def test_a_claim_that_needs_a_device_reports_a_hanging_release(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.node.claims.reservations.RELEASE_WAIT", 0.05)
    waiter = SlowToRelease()
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver(waiter)):
        await node.prepare(lunch)
        node.api.delete("resourceclaims", "lunch", "default")
        release = asyncio.create_task(node.unprepare(lunch))
        await eventually(waiter.begun.is_set)
        assert await node.error(dinner) == (
            "device node-1/pizza-0 of claim default/dinner is still being released for claim default/lunch, which "
            "no longer needs it; the kubelet tries again"
        )
        waiter.go_on.set()
        await release
        await node.prepare(dinner)


async def test_a_holder_keeps_its_device_while_the_api_server_is_unavailable(node: Node) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver()):
        await node.prepare(lunch)
        with node.api.failing(503, below="/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/lunch"):
            error = await node.error(dinner)
        assert error.startswith(
            "device node-1/pizza-0 of claim default/dinner is prepared for claim default/lunch, and the API server "
            "does not answer whether that claim still exists: "
        )
        assert node.records() == ["lunch"]


async def test_at_most_one_of_two_concurrent_claims_gets_a_device(node: Node) -> None:
    claims = [node.claim(f"claim-{number}") for number in range(6)]
    async with node.running(driver()):
        answers = await node.kubelet.plugin("dra.pizza").prepare(claims)
        assert sorted(bool(answer.error) for answer in answers.values()) == [False, *[True] * 5]
        assert len(node.records()) == 1


async def test_two_claims_that_swapped_their_devices_are_rejected_until_released(node: Node) -> None:
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(driver(concurrency="device")):
        await node.prepare(a, b)
        node.claim("a", ["pizza-1"])
        node.claim("b", ["pizza-0"])
        for claim in (a, b):
            assert "which a container may still use" in await node.error(claim)
        await node.unprepare(a, b)
        answers = await node.kubelet.plugin("dra.pizza").prepare([a, b])
        assert [answers[claim.uid].devices[0].device_name for claim in (a, b)] == ["pizza-1", "pizza-0"]
        assert node.records() == ["a", "b"]


@pytest.mark.parametrize("status", [503, 500, 429])
async def test_a_rejected_request_is_reported_and_leaves_nothing(node: Node, status: int) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        with node.api.failing(status, "GET", agent=AGENT):
            error = await node.error(lunch)
        assert error.startswith("claim default/lunch cannot be read: ")
        assert error.endswith("the kubelet tries again")
        assert node.is_clean()
        await node.prepare(lunch)


async def test_a_forbidden_read_of_a_claim_names_the_request(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        with node.api.failing(403, "GET", below="/apis/resource.k8s.io/v1/namespaces", agent=AGENT):
            error = await node.error(lunch)
    assert error.startswith("claim default/lunch cannot be read: GET resourceclaims.resource.k8s.io default/lunch: ")


async def test_a_hanging_api_server_costs_at_most_the_deadline(node: Node) -> None:
    lunch, other = node.claim("lunch", ["pizza-0"]), node.claim("other", ["pizza-1"])
    async with node.running(driver(), deadline=1.0) as agent:
        with node.api.failing(0, "GET", below="/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/lunch"):
            served = False
            while not served:  # on a busy machine the other one may need longer, too
                answers = await node.kubelet.plugin("dra.pizza").prepare([lunch, other])
                assert "not prepared within 1 s" in answers["uid-lunch"].error
                served = not answers["uid-other"].error
                assert served or "not prepared within 1 s" in answers["uid-other"].error
            set_deadline(agent, PLENTY)
            await node.unprepare(lunch)
        await node.prepare(lunch)


async def test_an_unwritable_cdi_directory_fails_the_prepare(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        node.cdi.rmdir()
        node.cdi.write_text("in the way")
        error = await node.error(lunch)
        assert "cannot be written" in error
        assert f"{node.cdi}" not in error
        assert any(f"{node.cdi}" in str(vars(record).get("error")) for record in caplog.records)
        node.cdi.unlink()
        await node.prepare(lunch)
        assert len(node.specs()) == 1
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_a_stale_claim_allocated_again_while_waiting_for_its_lock_is_not_released(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.node.claims.reservations.RELEASE_WAIT", PLENTY)
    fetch, entered, go_on = ClaimReader.fetch, asyncio.Event(), asyncio.Event()

    async def slowly(reader: ClaimReader, reference: ClaimReference) -> AllocatedClaim:
        if reference.name == "lunch" and node.records():
            entered.set()
            await go_on.wait()  # the request takes its time
        return await fetch(reader, reference)

    monkeypatch.setattr(ClaimReader, "fetch", slowly)
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver()):
        await node.prepare(lunch)
        node.claim("lunch", [])
        again = asyncio.create_task(node.prepare(lunch))
        await entered.wait()
        before = node.gets(lunch)
        other = asyncio.create_task(node.error(dinner))
        await eventually(lambda: node.gets(lunch) > before)  # it is stale now
        node.claim("lunch")
        go_on.set()
        assert await again
        assert "is still prepared for claim default/lunch, to which it is allocated too" in await other
        assert node.records() == ["lunch"]
