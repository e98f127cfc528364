"""Health reports of an author and their results in slices, records and Events."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

import dra_kit as dra
from tests.support.api import eventually
from tests.unit.node.drivers import Oven, Waiter, driver
from tests.unit.node.health.doctor import Doctor
from tests.unit.node.role import DRIVER, NODE, SLICES, Node

STICKY = dra.HealthRule(taint="NoSchedule", sticky=True)


def taints(node: Node) -> dict[str, list[tuple[str, str, str]]]:
    """Return key, value and effect of each taint, by device; devices without taints are omitted."""
    return {
        device["name"]: [(item["key"], item.get("value", ""), item["effect"]) for item in device["taints"]]
        for spec in node.slices()
        for device in spec.get("devices", [])
        if device.get("taints")
    }


def stored(node: Node) -> list[tuple[str, str]]:
    """Return device and reason of each problem stored for the next process."""
    path = node.settings().state("") / "health.json"
    devices = json.loads(json.loads(path.read_text())["devices"]) if path.exists() else []
    return [(item["device"], problem["reason"]) for item in devices for problem in item["problems"]]


async def test_taint_is_added_and_removed_with_the_reports(node: Node) -> None:
    doctor = Doctor(hot=dra.HealthRule(taint="NoExecute", key="example.com/hot", value="yes"))
    async with node.running(driver(provider=Oven("pizza-0", "pizza-1"), health=doctor)):
        await eventually(lambda: node.published() == ["pizza-0", "pizza-1"])
        doctor.unhealthy("pizza-1", "hot")
        await eventually(lambda: taints(node) == {"pizza-1": [("example.com/hot", "yes", "NoExecute")]})
        doctor.healthy("pizza-1")
        await eventually(lambda: not taints(node))


async def test_taint_has_driver_and_reason_as_key_and_the_value_of_the_report(node: Node) -> None:
    doctor = Doctor(xid=dra.HealthRule(taint="None"))
    async with node.running(driver(health=doctor)):
        doctor.unhealthy("pizza-0", "xid", "XID 79", value="79")
        await eventually(lambda: taints(node) == {"pizza-0": [("dra.pizza/xid", "79", "None")]})


async def test_health_taints_are_added_to_those_of_the_author(node: Node) -> None:
    own = dra.DeviceTaint(key="example.com/own", effect="NoSchedule")
    doctor = Doctor(hot=dra.HealthRule(taint="NoSchedule"))
    async with node.running(driver(provider=Oven(dra.Device(name="pizza-0", taints=[own])), health=doctor)):
        doctor.unhealthy("pizza-0", "hot")
        await eventually(
            lambda: (
                taints(node)
                == {"pizza-0": [("example.com/own", "", "NoSchedule"), ("dra.pizza/hot", "", "NoSchedule")]}
            )
        )


async def test_withdrawn_device_is_published_again_and_its_claim_keeps_it(node: Node) -> None:
    doctor = Doctor(gone=dra.HealthRule(withdraw=True))
    async with node.running(driver(provider=Oven("pizza-0", "pizza-1"), health=doctor)):
        doctor.unhealthy("pizza-0", "gone")
        await eventually(lambda: node.published() == ["pizza-1"])
        await node.prepare(node.claim(devices=["pizza-0"]))
        doctor.healthy("pizza-0")
        await eventually(lambda: node.published() == ["pizza-0", "pizza-1"])


async def test_sticky_taint_is_removed_only_after_recovered_confirms_it(node: Node) -> None:
    doctor = Doctor(xid=STICKY)
    async with node.running(driver(health=doctor)):
        doctor.unhealthy("pizza-0", "xid")
        await eventually(lambda: taints(node))
        doctor.healthy("pizza-0")
        await eventually(lambda: doctor.asked == [("pizza-0", "xid")])
        assert taints(node)
        doctor.cured.add("xid")
        doctor.healthy("pizza-0")
        await eventually(lambda: not taints(node))


async def test_failing_recovered_is_logged_and_changes_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    class Absent(Doctor):
        def recovered(self, device: dra.Device, reason: str, /) -> bool:
            super().recovered(device, reason)
            raise OSError("no answer")

    doctor = Absent(xid=STICKY)
    async with node.running(driver(health=doctor)):
        doctor.unhealthy("pizza-0", "xid")
        await eventually(lambda: taints(node))
        doctor.healthy("pizza-0")
        await eventually(lambda: "recovered failed; the device stays unhealthy" in caplog.text)
        assert taints(node)


async def test_failing_source_changes_nothing_and_is_restarted(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    doctor = Doctor(silent=True, hot=dra.HealthRule(taint="NoSchedule"))
    async with node.running(driver(health=doctor)):
        doctor.unhealthy("pizza-0", "hot")
        await eventually(lambda: taints(node))
        doctor.say(OSError("no answer"))
        await eventually(lambda: doctor.begun == 2)
        assert taints(node)
        doctor.healthy("pizza-0")
        await eventually(lambda: not taints(node))
    [line] = [item for item in caplog.records if item.levelno == logging.ERROR]
    assert (line.message, vars(line)["error"]) == (
        "health source failed; the last reports stay in effect",
        "OSError: no answer",
    )


async def test_source_may_be_async(node: Node) -> None:
    class Quick(dra.HealthSource):
        policy = {"hot": dra.HealthRule(taint="NoSchedule")}

        async def watch(self) -> AsyncIterator[dra.Unhealthy]:
            await asyncio.sleep(0)
            yield dra.Unhealthy(self.devices[0], "hot")

    async with node.running(driver(health=Quick())):
        await eventually(lambda: list(taints(node)) == ["pizza-0"])


async def test_async_source_may_use_a_task_group_around_its_yields(node: Node) -> None:
    class Polling(dra.HealthSource):
        policy = {"hot": dra.HealthRule(taint="NoSchedule")}
        begun = 0

        async def watch(self) -> AsyncIterator[dra.Unhealthy]:
            self.begun += 1
            found = asyncio.Queue[dra.Unhealthy]()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.poll(found))
                while True:
                    yield await found.get()

        async def poll(self, found: asyncio.Queue[dra.Unhealthy]) -> None:
            await found.put(dra.Unhealthy(self.devices[0], "hot"))
            await asyncio.sleep(0.1)
            raise OSError("no answer")

    source = Polling()
    async with node.running(driver(health=source)):
        await eventually(lambda: list(taints(node)) == ["pizza-0"])
        await eventually(lambda: source.begun == 2)


async def test_fast_source_loses_no_reports(node: Node) -> None:
    class Eager(dra.HealthSource):
        policy = {"hot": dra.HealthRule(taint="NoSchedule")}

        def watch(self) -> Iterator[dra.Healthy | dra.Unhealthy]:
            for number in range(5000):
                yield dra.Unhealthy(self.devices[0], "hot") if number % 2 else dra.Healthy(self.devices[0])
            yield dra.Healthy(self.devices[0])
            yield dra.Unhealthy(self.devices[1], "hot")

    async with node.running(driver(health=Eager())):
        await eventually(lambda: list(taints(node)) == ["pizza-1"])


async def test_blocking_source_does_not_delay_claims(node: Node) -> None:
    doctor = Doctor(silent=True)
    async with node.running(driver(health=doctor)):
        await eventually(lambda: doctor.begun == 1)
        assert await node.prepare(node.claim())


async def test_health_changes_do_not_prepare_claims_again(node: Node) -> None:
    doctor, waiter = Doctor(hot=dra.HealthRule(taint="NoSchedule")), Waiter()
    async with node.running(driver(waiter, health=doctor)):
        claim = node.claim()
        await node.prepare(claim)
        doctor.unhealthy("pizza-0", "hot")
        await eventually(lambda: taints(node))
        await node.prepare(claim)
        doctor.healthy("pizza-0")
        await eventually(lambda: not taints(node))
        await node.prepare(claim)
    assert waiter.calls == ["lunch pizza-0"]


async def test_kubelet_gets_the_health_of_each_reported_device(node: Node) -> None:
    doctor = Doctor(silent=True, hot=dra.HealthRule(), app=dra.HealthRule(taint="None", report=False))
    async with node.running(driver(health=doctor)):
        doctor.healthy("pizza-0")
        doctor.unhealthy("pizza-1", "hot", "93 °C")
        doctor.healthy("pizza-2")
        doctor.unhealthy("pizza-2", "app", "not the device's fault")
        expected = [("Healthy", ""), ("Unhealthy", "hot: 93 °C"), ("Healthy", ""), ("Unknown", "")]
        await eventually(
            lambda: [node.kubelet.health(DRIVER, NODE, f"pizza-{number}") for number in range(4)] == expected
        )


async def test_driver_without_source_has_no_health_service(node: Node) -> None:
    async with node.running(driver()):
        assert node.kubelet.plugin(DRIVER).health_service is None


async def test_events_name_the_claim_and_the_pod_of_an_unhealthy_device(node: Node) -> None:
    doctor = Doctor(hot=dra.HealthRule())
    async with node.running(driver(health=doctor)):
        await node.prepare(node.claim(reserved_for=["guest"]))
        doctor.unhealthy("pizza-0", "hot", "93 °C")
        doctor.unhealthy("pizza-1", "hot")
        await eventually(lambda: len(node.events()) == 2)
        doctor.healthy("pizza-0")
        await eventually(lambda: len(node.events()) == 4)
    found = {(item["type"], item["reason"], item["regarding"]["name"], item["note"]) for item in node.events()}
    where = "on node node-1: device node-1/pizza-0"
    assert found == {
        (kind, reason, name, f"{where} {text}: hot: 93 °C")
        for name in ("lunch", "guest")
        for kind, reason, text in (
            ("Warning", "DeviceUnhealthy", "is unhealthy"),
            ("Normal", "DeviceHealthy", "has recovered, it was unhealthy"),
        )
    }


# -- the next process


async def test_first_publication_of_the_next_process_has_the_stored_taints(node: Node) -> None:
    doctor = Doctor(xid=STICKY, hot=dra.HealthRule(taint="NoExecute"))
    async with node.running(driver(health=doctor)):
        doctor.unhealthy("pizza-0", "xid")
        doctor.unhealthy("pizza-1", "hot")
        await eventually(lambda: set(taints(node)) == {"pizza-0", "pizza-1"})
    before = node.slices()[0]["devices"]
    node.delete_slices()  # as a kubelet that restarts does

    silent = Doctor(silent=True, xid=STICKY, hot=dra.HealthRule(taint="NoExecute"))
    async with node.running(driver(health=silent)):
        await eventually(node.slices)
        assert node.slices()[0]["devices"] == before
        silent.healthy("pizza-1")
        await eventually(lambda: set(taints(node)) == {"pizza-0"})
        silent.cured.add("xid")
        silent.healthy("pizza-0")
        await eventually(lambda: not taints(node))
        await eventually(lambda: not stored(node))


async def test_sticky_problem_of_the_older_process_is_adopted_when_it_exits(node: Node) -> None:
    old, new = (Doctor(xid=STICKY, hot=dra.HealthRule(taint="NoSchedule")) for _ in range(2))
    async with (
        node.running(driver(health=old), pod_uid="old") as agent,
        node.running(driver(health=new), pod_uid="new"),
    ):
        await eventually(lambda: old.begun and new.begun)
        old.unhealthy("pizza-0", "xid")
        old.unhealthy("pizza-1", "hot")
        await eventually(lambda: sorted(stored(node)) == [("pizza-0", "xid"), ("pizza-1", "hot")])
        agent.stop()
        new.unhealthy("pizza-2", "hot")
        await eventually(lambda: set(taints(node)) == {"pizza-0", "pizza-2"})


class Card(dra.Device):
    serial: str


async def test_replaced_device_loses_its_problems_and_returned_device_keeps_them(node: Node) -> None:
    class Slots(dra.DeviceProvider[Card]):
        cards: Sequence[Card] = (Card(name="slot-0", serial="A"), Card(name="slot-1", serial="B"))

        def discover(self) -> Iterator[Sequence[Card]]:
            yield self.cards

    slots, doctor = Slots(), Doctor(silent=True, xid=STICKY)
    async with node.running(driver(provider=slots, health=doctor)):
        await eventually(lambda: node.published() == ["slot-0", "slot-1"])
        former = list(doctor.devices)
        for name in ("slot-0", "slot-1"):
            doctor.unhealthy(name, "xid")
        await eventually(lambda: set(taints(node)) == {"slot-0", "slot-1"})
        slots.cards = (Card(name="slot-0", serial="C"),)
        slots.context.rescan()
        await eventually(lambda: node.published() == ["slot-0"] and not taints(node))
        doctor.say(dra.Unhealthy(former[0], "xid"))  # of the card that is no longer there
        slots.cards = (Card(name="slot-0", serial="C"), Card(name="slot-1", serial="B"))
        slots.context.rescan()
        await eventually(lambda: set(taints(node)) == {"slot-1"})


async def test_observed_values_do_not_change_the_identity_of_a_device(node: Node) -> None:
    oven, doctor = Oven(dra.Device(name="pizza-0")), Doctor(silent=True, xid=STICKY)
    async with node.running(driver(provider=oven, health=doctor)):
        doctor.unhealthy("pizza-0", "xid")
        await eventually(lambda: taints(node))
        own = dra.DeviceTaint(key="example.com/own", effect="None")
        oven.devices = (dra.Device(name="pizza-0", attributes={"temperature": dra.observed(41)}, taints=[own]),)
        oven.context.rescan()
        both = [("example.com/own", "", "None"), ("dra.pizza/xid", "", "NoSchedule")]
        await eventually(lambda: taints(node) == {"pizza-0": both})


async def test_source_has_hardware_and_context(node: Node) -> None:
    seen: list[tuple[object, str]] = []

    class Looking(Doctor):
        def watch(self) -> Iterator[Any]:
            seen.append((self.hardware, self.context.node.name))
            yield from super().watch()

    async with node.running(driver(health=Looking(), hardware=lambda context: f"of {context.node.name}")):
        await eventually(lambda: seen == [(f"of {NODE}", NODE)])


async def test_corrupt_health_file_is_renamed_and_reported(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    doctor = Doctor(xid=STICKY)
    async with node.running(driver(health=doctor)):
        doctor.unhealthy("pizza-0", "xid")
        await eventually(lambda: stored(node) == [("pizza-0", "xid")])
    path = node.settings().state("") / "health.json"
    path.write_text(path.read_text().replace("xid", "yid"))
    async with node.running(driver(health=Doctor(silent=True, xid=STICKY))):
        await eventually(lambda: node.slices() and not taints(node))
    assert path.with_name("health.json.corrupt").exists()
    assert [vars(item)["code"] for item in caplog.records if item.levelno == logging.ERROR] == ["corrupt-health"]


async def test_taint_is_published_when_it_cannot_be_stored(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    doctor = Doctor(xid=STICKY)
    async with node.running(driver(health=doctor)):
        await eventually(node.slices)
        (node.settings().state("") / "health.json").mkdir()
        doctor.unhealthy("pizza-0", "xid")
        await eventually(lambda: taints(node))
    assert "health of devices cannot be stored" in caplog.text


async def test_taint_is_published_after_an_outage_of_the_api_server(node: Node) -> None:
    doctor = Doctor(hot=dra.HealthRule(taint="NoSchedule"))
    async with node.running(driver(health=doctor)):
        await eventually(node.slices)
        asked = node.api.asked("GET", SLICES)
        with node.api.failing(503, below=SLICES):
            doctor.unhealthy("pizza-0", "hot")
            await eventually(lambda: node.api.asked("GET", SLICES) >= asked + 2)
        await eventually(lambda: taints(node))


# -- invalid reports


async def test_invalid_reports_are_logged_once_and_stop_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    doctor = Doctor(hot=dra.HealthRule(taint="NoSchedule"))
    async with node.running(driver(health=doctor)):
        await eventually(lambda: doctor.begun)
        nonsense: Any = "pizza-0"
        doctor.say("all is well", "all is well", dra.Healthy(nonsense), dra.Healthy(doctor.devices[0], nonsense.split))
        doctor.unhealthy("pizza-1", "hott")
        doctor.unhealthy("pizza-0", "hot")
        await eventually(lambda: taints(node))
    logged = [(vars(item)["code"], vars(item)["error"]) for item in caplog.records if item.levelno == logging.ERROR]
    assert [code for code, _ in logged] == [*["invalid-health-report"] * 3, "unknown-health-reason"]
    assert logged[0][1].startswith("Doctor.watch yielded 'all is well'; yield dra_kit.Healthy(device), ")
    assert logged[-1][1] == (
        "Doctor.watch: reason 'hott' is not in its policy; did you mean \"hot\"? the problem is "
        "reported to the kubelet only"
    )


async def test_watch_that_is_not_a_generator_is_reported(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(dra.HealthSource):
        def watch(self) -> list[dra.Healthy]:
            return []

    async with node.running(driver(health=Wrong())):
        await eventually(lambda: "Wrong.watch must be a generator" in str([vars(item) for item in caplog.records]))


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"hot": "NoSchedule"}, "'hot': 'NoSchedule' is not a rule; write 'reason': dra_kit.HealthRule("),
        ({"too hot": dra.HealthRule(taint="NoSchedule")}, "policy['too hot']: taints[0].key: Invalid value"),
        ({"xid": dra.HealthRule(sticky=True)}, "policy['xid'] is sticky and would never end; write 'def recovered("),
    ],
)
def test_invalid_policy_is_rejected(policy: Any, problem: str) -> None:
    class Wrong(dra.HealthSource):
        def watch(self) -> Iterator[dra.Healthy]:
            yield from ()

    Wrong.policy = policy
    with pytest.raises(dra.ConfigurationError, match=re.escape(problem)):
        driver(health=Wrong())


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"taint": "Never"}, "HealthRule: taint: "),
        ({"key": "a/b"}, "key and value are those of a taint; give taint= too"),
        ({"taint": "NoSchedule", "value": "not a value"}, "value: Invalid value"),
        ({"unhealthy_after": -1}, "unhealthy_after: must be at least 0, not -1"),
    ],
)
def test_invalid_rule_is_rejected(rule: dict[str, Any], problem: str) -> None:
    with pytest.raises(dra.ConfigurationError, match=re.escape(problem)):
        dra.HealthRule(**rule)


def test_invalid_taint_value_is_rejected_in_the_report() -> None:
    with pytest.raises(dra.InvalidDevice, match="value: Invalid value"):
        dra.Unhealthy(dra.Device(name="gpu-0"), "xid", value="XID 79")


def test_source_passed_as_a_class_is_rejected() -> None:
    with pytest.raises(dra.ConfigurationError, match=re.escape("health Doctor is a class; write Doctor()")):
        driver(health=Doctor)
