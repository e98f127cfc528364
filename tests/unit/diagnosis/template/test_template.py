"""Slices of a node that does not exist yet equal those that the driver publishes there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import dra_kit as dra
from dra_kit.author.context import NodeInfo
from dra_kit.cli.app import cli
from dra_kit.diagnosis.node_templates import template_slices
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.node.first_inventory import discover_once
from tests.support.api import eventually
from tests.unit.node.drivers import Waiter
from tests.unit.node.role import DRIVER, NODE
from tests.unit.node.role import node as a_node

DRIVER_FILE = """
from pydantic import BaseModel
import dra_kit as dra


SIZE = 100


class Settings(BaseModel):
    ovens: int = 1


class Ovens(dra.DeviceProvider[dra.Device, None, Settings]):
    def discover(self):
        ovens = range(self.context.settings.ovens)
        yield dra.Inventory(pools=[dra.Pool(
            counter_sets=[dra.CounterSet(name=f"oven-{i}", counters={"heat": "2"}) for i in ovens],
            devices=[
                dra.Device(
                    name=f"oven-{i}-{part}",
                    attributes={"node": self.context.node.name, "zone": self.context.node.labels.get("zone", "")},
                    consumes_counters=[dra.DeviceCounterConsumption(counter_set=f"oven-{i}", counters={"heat": "1"})],
                )
                for i in ovens for part in range(SIZE)
            ],
        )])


class Waiter(dra.Preparer):
    def prepare(self, claim, device):
        return dra.Prepared()


driver = dra.Driver("dra.pizza", provider=Ovens(), preparer=Waiter(), settings=Settings)
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    file = tmp_path / "kitchen.py"
    file.write_text(DRIVER_FILE)
    return file


def template(target: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["template", str(target), *arguments])


def documents(target: Path, *arguments: str) -> list[dict[str, Any]]:
    found = template(target, *arguments)
    assert found.exit_code == 0, found.output
    return list(yaml.safe_load_all(found.output))


def test_slices_are_those_of_the_drivers_provider(target: Path) -> None:
    slices = documents(target, "--ovens", "2", "--name", "big")
    assert {item["kind"] for item in slices} == {"ResourceSlice"}
    assert {item["spec"]["nodeName"] for item in slices} == {"big"}
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in slices} == {len(slices)}
    assert len({item["metadata"]["name"] for item in slices}) == len(slices)
    devices = [device for item in slices for device in item["spec"].get("devices", [])]
    assert len(devices) == 200
    assert devices[0]["attributes"] == {"node": {"string": "big"}, "zone": {"string": ""}}


def test_a_profile_says_what_kind_of_node_it_is(target: Path, tmp_path: Path) -> None:
    profile = tmp_path / "large.yaml"
    profile.write_text(
        yaml.safe_dump(
            {
                "labels": {"zone": "north"},
                "taints": [{"key": "oven", "effect": "NoSchedule"}],
                "allocatable": {"cpu": "96"},
                "settings": {"ovens": 3},
            }
        )
    )
    node, *slices = documents(target, "--profile", str(profile), "--with-node")
    assert node == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "large", "labels": {"kubernetes.io/hostname": "large", "zone": "north"}},
        "spec": {"taints": [{"key": "oven", "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "96"}, "allocatable": {"cpu": "96"}},
    }
    devices = [device for item in slices for device in item["spec"].get("devices", [])]
    assert len(devices) == 300
    assert devices[0]["attributes"]["zone"] == {"string": "north"}


def test_a_flag_wins_over_the_profile(target: Path, tmp_path: Path) -> None:
    profile = tmp_path / "large.yaml"
    profile.write_text("settings: {ovens: 3}")
    slices = documents(target, "--profile", str(profile), "--ovens", "1")
    assert sum(len(item["spec"].get("devices", [])) for item in slices) == 100


def test_json_output_is_a_list(target: Path) -> None:
    found = json.loads(template(target, "-o", "json").output)
    assert (found["kind"], found["items"][0]["kind"]) == ("List", "ResourceSlice")


def test_errors_of_the_drivers_code_are_reported_with_their_fields(target: Path) -> None:
    warns = 'logging.getLogger("ovens").warning("the oven is cold", extra={"degrees": 20})'
    text = target.read_text().replace("def discover(self):", f"def discover(self):\n        {warns}")
    target.write_text(f"import logging\n{text}")
    assert template(target).stderr.endswith(" WARNING ovens: the oven is cold degrees=20\n")


def test_counters_are_placed_where_the_release_expects_them(target: Path) -> None:
    def shape(*arguments: str) -> list[tuple[bool, bool]]:
        return [("devices" in item["spec"], "sharedCounters" in item["spec"]) for item in documents(target, *arguments)]

    assert shape() == [(False, True), (True, False), (True, False)]
    target.write_text(target.read_text().replace("SIZE = 100", "SIZE = 50"))
    assert shape("--kubernetes", "1.34") == [(True, True)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("oven: 3", "oven: unknown field; a profile has name, labels, taints, allocatable, settings"),
        ("settings: {oven: 3}", "settings.oven is not a setting of driver dra.pizza; its settings are: ovens"),
        ("settings: {ovens: many}", "--ovens (DRIVER_OVENS): "),
        ("- a", "the file: "),
        ("a: [", "large.yaml"),
        ("name: a\n---\nname: b", "it has 2 documents; use a file for each"),
    ],
)
def test_a_profile_that_cannot_be_used_is_reported(target: Path, tmp_path: Path, text: str, problem: str) -> None:
    profile = tmp_path / "large.yaml"
    profile.write_text(text)
    found = template(target, "--profile", str(profile))
    assert found.exit_code == 2
    assert problem in found.output
    assert len(found.output.splitlines()) == 1


def test_a_release_that_is_not_supported_is_reported(target: Path) -> None:
    found = template(target, "--kubernetes", "1.33")
    assert (found.exit_code, found.output) == (
        2,
        "Error: --kubernetes: Kubernetes 1.33 has no resource.k8s.io/v1; use 1.34 to 1.38\n",
    )


async def test_the_node_then_publishes_the_same_devices(tmp_path: Path) -> None:
    """But for its name: here the pool and an attribute have it."""

    class Ovens(dra.DeviceProvider[dra.Device]):
        def discover(self) -> Any:
            yield [
                dra.Device(
                    name=f"oven-{number}",
                    attributes={"node": self.context.node.name, "dough": "pan"},
                    capacity={"slices": "8"},
                    taints=[dra.DeviceTaint(key="cold", effect="NoSchedule")] if number == 3 else [],
                )
                for number in range(200)
            ]

    driver = dra.Driver(DRIVER, provider=Ovens(), preparer=Waiter())
    inventory = await asyncio.to_thread(discover_once, driver.for_another_node(), None, 60.0, NodeInfo("other"))
    expected = [
        item.to_json()["spec"] for item in template_slices(driver, inventory, "other", KubernetesVersion(1, 37))
    ]
    async with a_node() as there, there.running(driver):
        await eventually(lambda: len(there.published()) == 200)
        published = there.slices()
    assert _neutral(published, NODE) == _neutral(expected, "other")


def _neutral(slices: list[dict[str, Any]], node: str) -> list[dict[str, Any]]:
    """Without the node's name, and when taints were set."""
    found = json.loads(json.dumps(slices).replace(f'"{node}"', '"NODE"'))
    for item in found:
        for device in item.get("devices", []):
            for taint in device.get("taints", []):
                taint.pop("timeAdded", None)
    return sorted(found, key=lambda item: item["devices"][0]["name"])
