"""Claims are prepared again if the identity of their device changes, and not for other changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pydantic import JsonValue

import dra_kit as dra
from tests.support.api import eventually
from tests.unit.node.drivers import Oven, Waiter, driver
from tests.unit.node.role import Node

SICK = dra.DeviceTaint(key="dra.pizza/sick", effect="NoSchedule")


class Pizza(dra.Device):
    serial: str = "S1"
    crumbs: dra.Observed[int] = 0


def change(oven: Oven, *devices: dra.Device) -> None:
    oven.devices = devices
    oven.context.rescan()


def pizza(**fields: Any) -> Pizza:
    return Pizza(**{"name": "pizza-0", "attributes": {"dough": "thin"}, **fields})


def records(node: Node) -> dict[str, dict[str, Any]]:
    return {record["name"]: record["devices"][0] for record in node.state()["claims"]}


async def is_prepared_again(node: Node, before: dra.Device, after: dra.Device) -> bool:
    """Return whether a changed device is prepared again; a second claim shows when the check is done."""
    waiter, oven = Waiter(), Oven(before, Pizza(name="z", serial="1"))
    lunch, dinner = node.claim(), node.claim("d", ["z"])
    async with node.running(driver(waiter, oven)):
        await node.prepare(lunch, dinner)
        change(oven, after, Pizza(name="z", serial="2"))
        await eventually(lambda: waiter.calls.count("d z") == 2)
        await node.prepare(lunch)
    return waiter.calls.count("lunch pizza-0") == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"taints": [SICK]},
        {"crumbs": 12},
        {"attributes": {"dough": "thin", "hot": dra.observed(41)}},
        {"attributes": {"dough": "thin", "new": 1}},
        {"attributes": {}},
        {"allow_multiple_allocations": True},
    ],
    ids=["taint", "observed field", "observed attribute", "attribute of a new release", "one less", "shareable"],
)
async def test_device_with_the_same_identity_is_not_prepared_again(node: Node, fields: dict[str, Any]) -> None:
    assert not await is_prepared_again(node, pizza(), pizza(**fields))


@pytest.mark.parametrize(
    "fields",
    [{"serial": "S2"}, {"attributes": {"dough": "pan"}}, {"attributes": {"dough": 1}}],
    ids=["field", "attribute", "type of an attribute"],
)
async def test_replaced_device_of_the_same_name_is_prepared_again(node: Node, fields: dict[str, Any]) -> None:
    assert await is_prepared_again(node, pizza(), pizza(**fields))


async def test_taint_keeps_later_updates_of_the_device(node: Node) -> None:
    oven, lunch = Oven(pizza()), node.claim()
    async with node.running(driver(provider=oven)):
        await node.prepare(lunch)
        oven.context.update("pizza-0", metadata=dra.DeviceMetadata(attributes={"taste": "smoky"}))
        await eventually(lambda: "smoky" in json.dumps(records(node)["lunch"]))
        change(oven, pizza(taints=[SICK]))
        await eventually(lambda: any("taints" in device for spec in node.slices() for device in spec["devices"]))
        await node.prepare(lunch)
        assert "smoky" in json.dumps(records(node)["lunch"])


async def test_effect_that_changes_discover_is_not_reverted(node: Node) -> None:
    class Binding(dra.Preparer):
        """Binds the device to another driver, which discover sees."""

        calls = 0

        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            self.calls += 1
            oven.devices = (bound("vfio"),)
            oven.context.rescan()
            return dra.Prepared(state=device.advertised.attributes["driver"])  # type: ignore[arg-type]

    def bound(to: str) -> dra.Device:
        return dra.Device(name="pizza-0", attributes={"driver": dra.observed(to), "model": "thin"})

    preparer, oven, lunch = Binding(), Oven(bound("host")), node.claim()
    async with node.running(driver(preparer, oven)):
        await node.prepare(lunch)
        await eventually(lambda: "vfio" in json.dumps(node.slices()))
        await node.prepare(lunch)
    assert (preparer.calls, records(node)["lunch"]["state"]) == (1, "host")


# -- releases


def rewrite_as_previous_release(node: Node, fingerprint: str) -> None:
    """Rewrite the records as that release wrote them: a fingerprint, and no identity."""
    for uid, text in node.execute("SELECT uid, record FROM claims"):
        record = json.loads(text)
        for item in record["devices"]:
            del item["identity"]
            item["advertised"] = fingerprint
        node.execute("UPDATE claims SET record = ?, checksum = NULL WHERE uid = ?", json.dumps(record), uid)


async def test_record_of_the_previous_release_adopts_the_identity_and_detects_later_changes(node: Node) -> None:
    lunch = node.claim()
    await node.prepared_by(driver(provider=Oven(pizza())), lunch)
    rewrite_as_previous_release(node, "0" * 64)
    waiter = Waiter()
    async with node.running(driver(waiter, Oven(pizza()))):
        await eventually(lambda: records(node)["lunch"].get("identity"))
        await node.prepare(lunch)
        assert waiter.calls == []
    # the recorded identity detects a device that was replaced while no process was running
    async with node.running(driver(waiter, Oven(pizza(serial="S2")))):
        await eventually(lambda: waiter.calls == ["lunch pizza-0"])


async def test_added_identity_key_is_recorded_and_detects_later_changes(node: Node) -> None:
    lunch, waiter = node.claim(), Waiter()
    oven = Oven(pizza())
    async with node.running(driver(waiter, oven)):
        await node.prepare(lunch)
        change(oven, pizza(attributes={"dough": "thin", "oven": "upper"}))
        await eventually(lambda: "attributes[oven]" in records(node)["lunch"]["identity"])
        assert waiter.calls == ["lunch pizza-0"]
        change(oven, pizza(attributes={"dough": "thin", "oven": "lower"}))
        await eventually(lambda: waiter.calls == ["lunch pizza-0"] * 2)


async def test_previous_release_finds_its_own_fingerprint(node: Node) -> None:
    device = pizza(taints=[SICK], crumbs=3)
    await node.prepared_by(driver(provider=Oven(device)), node.claim())
    # that release's formula
    own = {"serial": "S1", "crumbs": 3}
    text = json.dumps([device.to_v1().to_json(), own], sort_keys=True)
    assert records(node)["lunch"]["advertised"] == hashlib.sha256(text.encode()).hexdigest()


# -- invalid identities


async def test_identity_that_is_not_json_rejects_the_inventory(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(dra.Device):
        def identity(self) -> dict[str, JsonValue]:
            return {"tray": {1, 2}}  # type: ignore[dict-item]

    class Odds(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield [Odd(name="pizza-0")]

    def logged() -> list[str]:
        return [str(vars(item)["error"]) for item in caplog.records if item.getMessage() == "discover failed"]

    async with node.running(driver(provider=Odds())):
        await eventually(logged)
    [text] = logged()
    assert text == (
        "Odd 'pizza-0': identity: ValueError: at [tray]: set is not JSON: use None, bool, int, finite float, str, "
        "list, or dict; return a dict of JSON values by name"
    )
    assert not node.slices()
