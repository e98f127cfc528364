"""A record that cannot be parsed affects only its own claim."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic_core import from_json

import dra_kit as dra
from dra_kit.node.state.salvage import as_text
from tests.support.api import eventually
from tests.unit.node.drivers import Waiter, driver
from tests.unit.node.hardware import Baker, Heat, kitchen
from tests.unit.node.role import Node
from tests.unit.node.upkeep.test_orphans import HangingRelease, forget

NO_UTF_8 = "CAST(x'7b22ff227d' AS TEXT)"  # {"?"} with an invalid byte


def corrupt(node: Node, uid: str, record: str = "substr(record, 1, 40)") -> None:
    node.execute(f"UPDATE claims SET record = {record} WHERE uid = ?", uid)  # noqa: S608 - an expression of ours


def left(node: Node) -> list[str]:
    """The names of all rows, which ``--dump-state`` does not show of corrupt rows."""
    return [name for [name] in node.execute("SELECT name FROM claims ORDER BY name")]


@pytest.mark.parametrize("text", ['{"env": "a\\nb"}', '{"env": "\u00e4"}'])
def test_a_corrupt_byte_never_yields_another_valid_record(text: str) -> None:
    sound = text.encode()
    for index in range(len(sound)):
        for bit in range(8):
            changed = bytearray(sound)
            changed[index] ^= 1 << bit
            try:
                changed.decode()
            except UnicodeDecodeError:
                with pytest.raises(ValueError, match="expected"):
                    from_json(as_text(bytes(changed)))


@pytest.mark.parametrize("record", ["substr(record, 1, 40)", "x'00ff'", "17", NO_UTF_8])
async def test_a_corrupt_record_is_reported_once_and_other_orphans_are_released(
    node: Node, caplog: pytest.LogCaptureFixture, record: str
) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(), orphan_after=0.05):
        await node.prepare(lunch, dinner)
        corrupt(node, lunch.uid, record)
        forget(node, "dinner")
        await eventually(lambda: left(node) == ["lunch"])
    [told] = [item for item in caplog.records if item.getMessage() == "corrupt record skipped"]
    assert vars(told)["claim_uid"] == lunch.uid
    assert "its record cannot be parsed" in vars(told)["error"]


async def test_a_claim_with_a_corrupt_record_is_prepared_again(node: Node) -> None:
    preparer = Waiter()
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(preparer)):
        answers = await node.prepare(lunch)
        before = node.contents()
        corrupt(node, lunch.uid, NO_UTF_8)
        assert await node.prepare(lunch) == answers
        assert preparer.calls == ["lunch pizza-0"] * 2
        assert node.contents() == before
        assert node.records() == ["lunch"]
        assert node.state()["corrupt"] == []
        await node.unprepare(lunch)
        assert node.is_clean()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_claim_with_a_corrupt_record_is_released(node: Node, restarted: bool) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    baker = Baker(temperatures={"dinner": 250}, ovens={"dinner": "other"})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(node.running(kitchen(baker)))
        await node.prepare(lunch, dinner)
        if restarted:
            await stack.aclose()
        corrupt(node, lunch.uid)
        if restarted:
            hardware = Heat.hardware
            await stack.enter_async_context(node.running(kitchen(baker)))
            Heat.hardware = hardware
        assert Heat.hardware.on == {"oven": 200, "other": 250}
        await node.unprepare(lunch)
        assert Heat.hardware.on == {"other": 250}
        assert left(node) == ["dinner"]
        assert [path.name.rpartition("_")[2] for path in node.specs()] == ["uid-dinner.json"]
        await node.unprepare(dinner)
        assert node.is_clean()


async def test_a_failing_prepare_of_a_claim_with_a_corrupt_record_reverts_nothing(node: Node) -> None:
    lunch, baker = node.claim("lunch", ["pizza-0"]), Baker()
    async with node.running(kitchen(baker)):
        await node.prepare(lunch)
        corrupt(node, lunch.uid)
        baker.fail_after.add("lunch")
        assert "burnt" in await node.error(lunch)
        assert Heat.hardware.on == {"oven": 200}
        await node.unprepare(lunch)
        assert Heat.hardware.on == {}
        assert node.is_clean()


async def test_a_corrupt_effect_is_stored_again_when_needed(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(kitchen()):
        await node.prepare(lunch)
        corrupt(node, lunch.uid)
        node.execute("UPDATE effects SET phase = 'molten'")
        await node.prepare(lunch)
        assert node.effects() == [("heat", "applied", ["lunch"])]
        assert node.state()["corrupt"] == []
        await node.unprepare(lunch)
        assert [entry[0] for entry in Heat.hardware.log] == ["apply", "apply", "revert"]
        assert node.is_clean()


async def test_a_corrupt_record_is_reported_in_an_event_and_in_the_dump(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    await node.prepared_by(driver(), lunch)
    corrupt(node, lunch.uid)
    async with node.running(driver()):
        await eventually(lambda: bool(node.events()))
        [event] = node.events()
        assert (event["reason"], event["regarding"]["name"], event["regarding"]["uid"]) == (
            "CorruptRecord", "lunch", "uid-lunch",
        )  # fmt: skip
        [told] = node.state()["corrupt"]
        assert told in event["note"]
        assert told.startswith("row uid-lunch of table claims is corrupt: its record cannot be parsed")


async def test_the_device_of_a_corrupt_record_stays_reserved(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-0"])
    await node.prepared_by(driver(), lunch)
    corrupt(node, lunch.uid)
    async with node.running(driver()):
        assert "is still prepared for claim default/lunch" in await node.error(dinner)
        await node.unprepare(lunch)
        await node.prepare(dinner)


@pytest.mark.parametrize("certain", [True, False])
async def test_the_device_of_a_corrupt_record_stays_reserved_after_its_claim_is_deleted(
    node: Node, certain: bool
) -> None:
    """Its boot is unknown, and its container may run."""
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-0"])
    async with node.running(driver()):
        await node.prepare(lunch)
        corrupt(node, lunch.uid, "replace(record, '\"boot_id\"', '\"boat_id\"')" if certain else "'{'")
        forget(node, "lunch")
        assert "a claim with a corrupt record" in await node.error(dinner)
        await node.unprepare(lunch)
        await node.prepare(dinner)


@pytest.mark.parametrize("released", [False, True])
async def test_a_record_under_a_corrupt_uid_is_removed_with_its_claim(node: Node, released: bool) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-0"])
    await node.prepared_by(driver(), lunch)
    node.execute("UPDATE claims SET uid = 'uid-lu8ch'")
    before = node.contents()
    async with node.running(driver()):
        assert node.contents() == before
        assert len(node.state()["corrupt"]) == 1
        assert "is still prepared for claim default/lunch" in await node.error(dinner)
        if not released:
            await node.prepare(lunch)
            assert (node.records(), node.state()["corrupt"]) == (["lunch"], [])
        await node.unprepare(lunch)
        assert node.is_clean()
        await node.prepare(dinner)


async def test_a_claim_with_a_corrupt_record_is_released_when_gone_at_two_checks(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    async with node.running(driver(), orphan_after=0.05):
        await node.prepare(lunch)
        corrupt(node, lunch.uid, "replace(record, '\"boot_id\"', '\"boat_id\"')")
        forget(node, "lunch")
        await eventually(node.is_clean)


async def test_a_corrupt_record_does_not_prevent_file_repair(node: Node) -> None:
    node.given["repair_interval"] = 0.05
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver()):
        await node.prepare(lunch, dinner)
        corrupt(node, lunch.uid)
        [path] = [path for path in node.specs() if "dinner" in path.name]
        path.unlink()
        await eventually(path.exists)


async def test_a_corrupt_record_does_not_prevent_half_done_releases(node: Node) -> None:
    preparer = HangingRelease()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(preparer)):
        await node.prepare(lunch, dinner)
        preparer.refuses = True
        await node.unprepare_error(dinner)
    corrupt(node, lunch.uid)
    preparer.refuses = False
    async with node.running(driver(preparer)):
        await eventually(lambda: left(node) == ["lunch"])


async def test_files_of_a_corrupt_record_stay_and_stray_files_are_removed(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    await node.prepared_by(driver(), lunch, dinner)
    corrupt(node, lunch.uid)
    node.execute("DELETE FROM claims WHERE uid = ?", dinner.uid)
    async with node.running(driver()):
        await eventually(lambda: [path.name.rpartition("_")[2] for path in node.specs()] == ["uid-lunch.json"])


async def test_prepared_claims_are_listed_without_corrupt_records(node: Node) -> None:
    class Asking(Waiter):
        prepared: Mapping[Any, Any] | None = None

        def startup(self, context: dra.Context[Any]) -> None:
            self.prepared = context.prepared()

    asking = Asking()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    await node.prepared_by(driver(), lunch, dinner)
    corrupt(node, lunch.uid)
    async with node.running(driver(asking)):
        await eventually(lambda: asking.prepared is not None)
    assert asking.prepared is not None
    assert [claim.name for claim in asking.prepared.values()] == ["dinner"]
