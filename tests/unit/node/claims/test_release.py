"""Claims that are released, and devices that pass from one claim to the next."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reader import AllocatedClaim, ClaimReader
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.rows import claim_row
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, Oven, Waiter, driver
from tests.unit.node.hardware import Baker, Heat, hang, kitchen
from tests.unit.node.role import AGENT, DRIVER, PLENTY, Node, not_understood, set_deadline


async def test_releasing_an_unknown_claim_succeeds(node: Node) -> None:
    async with node.running(driver()):
        await node.unprepare(ClaimReference("default", "nobody", "uid-1"))
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


async def test_a_release_while_the_claim_is_being_prepared_wins(node: Node) -> None:
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
            "claim default/lunch was released while it was being prepared; it is prepared anew when the kubelet asks "
            "again"
        )
        await releasing
        assert Heat.hardware.on == {}
        assert node.is_clean()
        await node.prepare(lunch)
        assert node.records() == ["lunch"]


async def test_many_prepares_and_releases_of_one_claim_at_once_end_as_the_last_one_says(node: Node) -> None:
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


async def test_an_imperative_preparer_gets_its_devices_back(node: Node) -> None:
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


async def test_a_prepare_that_is_cut_off_at_its_deadline_is_unprepared(node: Node) -> None:
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
        assert [item.state for item in hob.released[0][1]] == [None, None], "nobody knows what it has returned"


@pytest.mark.parametrize("concurrency", ["claim", "device", "driver"])
async def test_an_unprepare_of_what_failed_that_fails_itself_is_repeated(node: Node, concurrency: Any) -> None:
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


async def test_a_prepare_is_written_down_before_the_code_that_must_be_undone(node: Node) -> None:
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


async def test_what_is_begun_reads_as_being_released_where_nobody_knows_better(node: Node) -> None:
    """A release of before, which shares the state in a rolling update or comes back: it undoes what it finds."""
    seen = list[tuple[str, str]]()

    class Looking(Imperative):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            with closing(sqlite3.connect(node.settings().database(DRIVER))) as db:
                seen.extend(db.execute("SELECT phase, json_extract(record, '$.phase') FROM claims").fetchall())
            return await super().prepare(claim, device)

    async with node.running(driver(Looking())):
        await node.prepare(node.claim())
    assert seen == [("releasing", "releasing")]


async def test_nobody_pays_for_that_who_has_nothing_of_his_own_to_undo(node: Node) -> None:
    seen = []

    async def look(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        seen.append(node.records())
        return dra.Prepared()

    async with node.running(driver(Doing(look), effects=[Heat])):
        await node.prepare(node.claim())
    assert seen == [[]]


@pytest.mark.parametrize("asked", ["nobody", "prepare", "unprepare"])
async def test_what_a_killed_process_was_preparing_is_unprepared(node: Node, asked: str) -> None:
    hob = Hob()
    hob.fails = ""
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    async with node.running(driver(hob)):
        await node.prepare(lunch)
    with closing(sqlite3.connect(node.settings().database(DRIVER))) as db, db:  # as it was before the code returned
        [text] = db.execute("SELECT record FROM claims").fetchone()
        record = ClaimRecord.model_validate_json(text)
        devices = tuple(item.model_copy(update={"state": None}) for item in record.devices)
        begun = record.model_copy(update={"phase": "releasing", "preparing": True, "devices": devices})
        db.execute("UPDATE claims SET phase = ?4, record = ?5, checksum = ?6 WHERE uid = ?1", claim_row(begun))
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
                f"raised ValueError: no such oven at {__file__}:{LINE}; the claim is kept and released when the "
                "kubelet asks again"
            ),
        ),
    ],
)
async def test_a_failing_unprepare_keeps_the_claim_for_another_try(node: Node, error: Exception, told: str) -> None:
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


async def test_a_half_released_claim_that_is_wanted_again_is_released_first(node: Node) -> None:
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


async def test_a_release_that_was_left_half_done_is_finished_by_the_next_process(node: Node) -> None:
    preparer = Imperative()
    lunch = node.claim()
    async with node.running(driver(preparer)):
        await node.prepare(lunch)
        preparer.error = dra.TransientError("in use")
        await node.unprepare_error(lunch)
    preparer.error = None
    async with node.running(driver(preparer)):
        await eventually(node.is_clean)
    assert len(preparer.released) == 1


async def test_what_the_next_process_cannot_finish_either_is_told(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    preparer = Imperative()
    lunch = node.claim()
    async with node.running(driver(preparer)):
        await node.prepare(lunch)
        preparer.error = dra.TransientError("in use")
        await node.unprepare_error(lunch)
    async with node.running(driver(preparer)):
        await eventually(lambda: [item for item in caplog.records if item.getMessage() == "claim not resumed"])
        assert node.records() == ["lunch"]


async def test_state_that_cannot_be_read_when_the_next_process_starts_is_read_later(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dra_kit.node.kubelet_connection.RESUME_AGAIN", 0.05)
    preparer = Imperative()
    lunch = node.claim()
    async with node.running(driver(preparer)):
        await node.prepare(lunch)
        preparer.error = dra.TransientError("in use")
        await node.unprepare_error(lunch)
    preparer.error = None
    with closing(sqlite3.connect(node.settings().database(DRIVER), check_same_thread=False)) as database:

        class Starting(Oven):
            def startup(self, context: dra.Context[Any]) -> None:
                database.execute("ALTER TABLE claims RENAME TO elsewhere")

        async with node.running(driver(preparer, Starting())):
            await eventually(lambda: "unfinished claims cannot be resumed" in caplog.messages)
            database.execute("ALTER TABLE elsewhere RENAME TO claims")
            await eventually(node.is_clean)
    assert len(preparer.released) == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_unprepare_that_takes_longer_than_the_deadline_is_not_begun_again(node: Node, is_async: bool) -> None:
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


async def test_an_unprepare_that_fails_after_the_deadline_is_told(node: Node, caplog: pytest.LogCaptureFixture) -> None:
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
    go_on = threading.Event()
    entered = threading.Event()

    class Slow(Imperative):
        def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
            entered.set()
            go_on.wait()
            super().unprepare(claim, devices)

    preparer = Slow()
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(driver(preparer, concurrency="driver")):
        await node.prepare(a)
        releasing = asyncio.create_task(node.unprepare(a))
        await eventually(entered.is_set)
        preparing = asyncio.create_task(node.prepare(b))
        await eventually(lambda: node.gets(b))
        assert preparer.calls == ["a pizza-0"]
        go_on.set()
        await releasing
        await preparing
        assert preparer.calls == ["a pizza-0", "b pizza-1"]


async def test_a_claim_that_was_released_is_prepared_as_it_is_allocated_now(node: Node) -> None:
    """Two pods named the claim, one after the other; the kubelet has told of the end of the first."""
    baker = Baker()
    baker.ovens |= {"lunch pizza-0": "left", "lunch pizza-1": "right"}
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


async def test_other_fields_of_the_claim_are_no_other_allocation(node: Node) -> None:
    waiter = Waiter()
    lunch = node.claim(devices=[{"device": "pizza-0"}])
    async with node.running(driver(waiter)):
        await node.prepare(lunch)
        node.claim(
            devices=[{"device": "pizza-0", "bindingConditions": ["ready"], "newField": 1}], annotations={"a": "b"}
        )
        await node.prepare(lunch)
        assert waiter.calls == ["lunch pizza-0"]


async def test_a_release_between_two_attempts_to_prepare(node: Node) -> None:
    """The first attempt has failed, so there is nothing to release, and nothing that stands in the way of the next."""
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


async def test_another_config_of_the_same_claim_is_another_allocation(node: Node) -> None:
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
        assert "claim default/lunch was allocated anew since it was prepared" in await node.error(lunch)
        assert node.env(lunch) == ["SLICES=4"]
        await node.unprepare(lunch)
        await node.prepare(lunch)
        assert node.env(lunch) == ["SLICES=6"]


async def test_a_device_of_a_live_claim_is_refused_to_another(node: Node) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver()):
        await node.prepare(lunch)
        assert await node.error(dinner) == (
            "device node-1/pizza-0 of claim default/dinner is still prepared for claim default/lunch, which is "
            "allocated too; delete the pods of one of the two claims"
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
async def test_a_device_stays_with_a_claim_that_is_over_until_the_kubelet_has_released_it(node: Node, why: str) -> None:
    """Its pod was deleted by force: the API server knows nothing of a container that may still run."""
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(kitchen()):
        await node.prepare(lunch)
        end(node, why)
        assert await node.error(dinner) == (
            "device node-1/pizza-0 of claim default/dinner is still prepared for claim default/lunch, which is gone or "
            "allocated otherwise by now, and whose container may still run; it is given on when the kubelet has "
            "released that claim, after a reboot, or when the driver has found it gone for --orphan-after"
        )
        assert node.effects() == [("heat", "applied", ["lunch"])]
        assert node.records() == ["lunch"]
        await node.unprepare(lunch)
        await node.prepare(dinner)
        assert node.effects() == [("heat", "applied", ["dinner"])]


@OVER
async def test_a_device_of_a_claim_that_is_over_and_of_another_boot_goes_to_the_next(node: Node, why: str) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(kitchen()):
        await node.prepare(lunch)
    node.boot_id.write_text("boot-2")
    async with node.running(kitchen()):
        assert "is still prepared for claim default/lunch, which is allocated too" in await node.error(dinner)
        end(node, why)
        await node.prepare(dinner)
        assert node.records() == ["dinner"]
        assert node.effects() == [("heat", "applied", ["dinner"])]
        await node.unprepare(dinner)
        assert node.is_clean()
        await node.unprepare(lunch)


async def test_a_claim_that_is_not_understood_keeps_its_device(node: Node) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver()):
        await node.prepare(lunch)
        not_understood(node, "lunch")
        assert "is still prepared for claim default/lunch" in await node.error(dinner)
        assert node.records() == ["lunch"]


async def test_a_release_that_failed_is_finished_for_the_next_claim(node: Node) -> None:
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
    """Its release takes until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        self.begun.set()
        self.go_on.wait()
        super().unprepare(claim, devices)


async def test_a_device_that_is_being_released_for_a_stale_claim_is_waited_for(
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


async def test_a_release_that_does_not_end_is_told_to_whoever_needs_the_device(
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
            "does not need it any more; the kubelet tries again"
        )
        waiter.go_on.set()
        await release
        await node.prepare(dinner)


async def test_a_holder_that_cannot_be_asked_for_keeps_its_device(node: Node) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner")
    async with node.running(driver()):
        await node.prepare(lunch)
        with node.api.failing(503, below="/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/lunch"):
            error = await node.error(dinner)
        assert error.startswith(
            "device node-1/pizza-0 of claim default/dinner is prepared for claim default/lunch, and whether that one "
            "still exists cannot be asked: "
        )
        assert node.records() == ["lunch"]


async def test_two_claims_for_one_device_at_once_get_it_one_at_most(node: Node) -> None:
    claims = [node.claim(f"claim-{number}") for number in range(6)]
    async with node.running(driver()):
        answers = await node.kubelet.plugin("dra.pizza").prepare(claims)
        assert sorted(bool(answer.error) for answer in answers.values()) == [False, *[True] * 5]
        assert len(node.records()) == 1


async def test_two_claims_that_swapped_their_devices(node: Node) -> None:
    a, b = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    async with node.running(driver(concurrency="device")):
        await node.prepare(a, b)
        node.claim("a", ["pizza-1"])
        node.claim("b", ["pizza-0"])
        for claim in (a, b):
            assert "a container may still run with that" in await node.error(claim)
        await node.unprepare(a, b)
        answers = await node.kubelet.plugin("dra.pizza").prepare([a, b])
        assert [answers[claim.uid].devices[0].device_name for claim in (a, b)] == ["pizza-1", "pizza-0"]
        assert node.records() == ["a", "b"]


@pytest.mark.parametrize("status", [503, 500, 429])
async def test_an_api_server_that_refuses_is_told_and_nothing_is_left(node: Node, status: int) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        with node.api.failing(status, "GET", agent=AGENT):
            error = await node.error(lunch)
        assert error.startswith("claim default/lunch cannot be read: ")
        assert error.endswith("the kubelet tries again")
        assert node.is_clean()
        await node.prepare(lunch)


async def test_a_missing_permission_is_told_with_its_rule(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        with node.api.failing(403, "GET", below="/apis/resource.k8s.io/v1/namespaces", agent=AGENT):
            assert "claim default/lunch cannot be read: " in await node.error(lunch)


async def test_an_api_server_that_does_not_answer_costs_the_deadline_and_no_more(node: Node) -> None:
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


async def test_a_cdi_directory_that_cannot_be_written(node: Node, caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_stale_claim_that_is_allocated_again_while_its_lock_is_waited_for_is_kept(
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
        assert "is still prepared for claim default/lunch, which is allocated too" in await other
        assert node.records() == ["lunch"]
