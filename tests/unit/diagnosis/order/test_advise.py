"""``dra-kit advise``: sources of devices, the report, exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

import dra_kit as dra
from dra_kit.cli.app import cli
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import RESOURCE_SLICES
from tests.unit.diagnosis.operation.parts import api_server
from tests.unit.diagnosis.order.worlds import cards, plain, slices
from tests.unit.docs import pages

pytestmark = pytest.mark.processes

DRIVER_FILE = """
import dra_kit as dra


class Ovens(dra.DeviceProvider):
    def discover(self):
        yield [dra.Device(name=f"oven-{size}", capacity={"slices": size}) for size in (8, 2, 4, 1)]


class Waiter(dra.Preparer):
    def prepare(self, claim, device):
        return dra.Prepared()


driver = dra.Driver("dra.pizza", provider=Ovens(), preparer=Waiter())
"""


def advise(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["advise", *map(str, arguments)], env={"COLUMNS": "120"})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    file = tmp_path / "kitchen.py"
    file.write_text(DRIVER_FILE)
    return file


def save(file: Path, *pools: dra.Pool[dra.Device], driver: str = "dra.pizza") -> Path:
    file.write_text(yaml.safe_dump_all([each.to_json() for each in slices(*pools, driver=driver)]))
    return file


def test_order_of_a_drivers_devices_is_proposed_in_the_authors_terms(target: Path) -> None:
    result = advise(target)

    assert result.exit_code == 3, result.output
    assert "dra.pizza: 4 devices on node-1" in result.output
    assert "✓ publish the devices from small to large by capacity slices" in result.output
    assert '    devices.sort(key=lambda d: d.capacity["slices"].value)\n' in result.output
    assert "  proposed   oven-1, oven-2, oven-4, oven-8\n" in result.output
    assert len(result.output.splitlines()) <= 24


def test_same_seed_gives_the_same_report(target: Path) -> None:
    assert advise(target, "--seed", "7").output == advise(target, "--seed", "7").output
    assert advise(target, "--seed", "7").output != advise(target, "--seed", "8").output


def test_good_order_is_kept(tmp_path: Path) -> None:
    result = advise("--from", save(tmp_path / "slices.yaml", plain([dra.Device(name=f"oven-{n}") for n in range(3)])))

    assert result.exit_code == 0, result.output
    assert "✓ keep the order: no other one is better" in result.output


def test_advice_as_json(tmp_path: Path) -> None:
    result = advise("--from", save(tmp_path / "slices.yaml", cards(1)), "-o", "json")

    document = json.loads(result.output)
    assert result.exit_code == 3
    assert document["helps"]
    assert document["best"]["pools"] == [{"name": "node-1", "devices": [
        "card-0-1-0", "card-0-1-1", "card-0-1-2", "card-0-1-3", "card-0-2-0", "card-0-2-2", "card-0-4-0",
    ]}]  # fmt: skip
    assert document["best"]["score"] > document["published"]["score"]


def test_several_nodes_are_simulated(target: Path) -> None:
    document = json.loads(advise(target, "--nodes", "3", "-o", "json").output)

    assert document["nodes"] == ["node-1", "node-2", "node-3"]
    assert document["devices"] == 12
    assert document["best"]["renamedPools"] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "the ResourceSlices have devices of dra.pizza, nic.example.com; select one with --driver"),
        (("--driver", "dra.piza"), "no ResourceSlice has devices of this driver; did you mean"),
    ],
)
def test_driver_of_saved_slices_has_to_be_known(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    save(tmp_path / "a.yaml", plain([dra.Device(name="oven")]))
    save(tmp_path / "b.yaml", plain([dra.Device(name="port")]), driver="nic.example.com")

    result = advise("--from", tmp_path, *arguments)

    assert result.exit_code == 2
    assert expected in result.output


def test_only_the_driver_that_is_named_is_advised(tmp_path: Path) -> None:
    save(tmp_path / "a.yaml", plain([dra.Device(name="oven", capacity={"size": 3})]))
    save(tmp_path / "b.yaml", cards(1), driver="nic.example.com")

    document = json.loads(advise("--from", tmp_path, "--driver", "nic.example.com", "-o", "json").output)

    assert (document["driver"], document["devices"]) == ("nic.example.com", 7)


def test_target_cannot_be_combined_with_saved_slices(target: Path, tmp_path: Path) -> None:
    result = advise(target, "--from", save(tmp_path / "slices.yaml", cards(1)))

    assert result.exit_code == 2
    assert "TARGET cannot be combined with --from." in result.output


def test_names_from_saved_slices_cannot_control_the_terminal(tmp_path: Path) -> None:
    saved = [each.to_json() for each in slices(cards(1))]
    text = json.dumps(saved).replace("card-0-", r"\u001b[2Jcard-").replace('"size"', r'"si\"ze"')
    (tmp_path / "slices.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": json.loads(text)}))

    result = advise("--from", tmp_path / "slices.json")

    assert result.exit_code in {0, 3}, result.output
    assert "\x1b" not in result.output


async def test_devices_of_a_cluster_are_advised(tmp_path: Path) -> None:
    with api_server(tmp_path) as config:
        async with Client(await load_credentials(config), user_agent="dra-kit/test", timeout=30) as client:
            for each in slices(plain([dra.Device(name=f"oven-{n}", capacity={"size": n}) for n in (8, 4, 1)])):
                await client.create(RESOURCE_SLICES, each.to_json())
        result = await asyncio.to_thread(advise, "--kubeconfig", config)

    assert result.exit_code == 3, result.output
    assert "dra.pizza: 3 devices on node-1" in result.output


def test_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    page = pages.page("order-devices.md")
    page.lay_out(tmp_path)
    commands = page.commands()

    assert len(commands) == 2
    for command in commands:
        assert not pages.prints(pages.run(command, tmp_path), command.output)
