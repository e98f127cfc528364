"""A sandbox with several drivers: each has its roles, its settings and its devices, and one claim may take of both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import BaseModel
from typing_extensions import override

import dra_kit as dra
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from dra_kit.errors import ConfigurationError, Invalid
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.test_sandbox import phase, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

PIZZA, WINE = "dra.pizza", "dra.wine"


class Kitchen(BaseModel):
    shelf: Path


class Food(dra.OpaqueConfig, api_version="dra.pizza/v1"):
    extra_cheese: bool = False


class Drink(dra.OpaqueConfig, api_version="dra.wine/v1"):
    degrees: int = 8


class Table(dra.DeviceProvider):
    @override
    def startup(self, context: dra.Context[Kitchen]) -> None:
        self.shelf = context.settings.shelf

    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name=f"{self.shelf.read_text()}-{number}") for number in range(2)]


class Cook(dra.Preparer[Food]):
    @override
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Food]) -> dra.Prepared:
        return dra.Prepared(env={device.env_name: "cheese" if device.config.extra_cheese else "plain"})


class Waiter(dra.Preparer[Drink]):
    @override
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Drink]) -> dra.Prepared:
        return dra.Prepared(env={device.env_name: str(device.config.degrees)})


def served(name: str, folder: Path, target: str = "") -> SandboxDriver:
    preparer = Cook() if name == PIZZA else Waiter()
    driver: dra.Driver[Any, Any] = dra.Driver(name, provider=Table(), preparer=preparer, settings=Kitchen)
    file = folder / f"{name}.txt"
    file.write_text(name.rpartition(".")[2])
    drivers = (driver, driver.for_another_node())
    spare = driver.for_another_node()
    return SandboxDriver(drivers, Kitchen.model_validate, values={"shelf": str(file)}, spare=spare, target=target)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandbox]:
    folder = tmp_path_factory.mktemp("house")
    drivers = [served(PIZZA, folder), served(WINE, folder)]
    how = SandboxSettings(nodes=2, time_scale=10, edited=(f"{WINE}.shelf",))
    async with Sandbox(drivers, how) as running:
        for name in (PIZZA, WINE):
            spec = {"selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}]}
            await running.client.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": spec})
        yield running


def dinner(name: str) -> dict[str, object]:
    requests = [{"name": kind.rpartition(".")[2], "exactly": {"deviceClassName": kind}} for kind in (PIZZA, WINE)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": requests}},
    }


def offered(sandbox: Sandbox) -> set[tuple[str, str, str]]:
    return {
        (item["spec"]["driver"], item["spec"]["nodeName"], device["name"])
        for item in sandbox.informers.objects(RESOURCE_SLICES).values()
        for device in item["spec"]["devices"]
    }


async def test_each_driver_serves_every_node(sandbox: Sandbox) -> None:
    assert list(sandbox.drivers) == [PIZZA, WINE]
    assert {(driver, node) for driver, node, _ in offered(sandbox)} == {
        (driver, node) for driver in (PIZZA, WINE) for node in ("node-1", "node-2")
    }


async def test_one_claim_gets_devices_of_both(sandbox: Sandbox) -> None:
    await sandbox.client.create(RESOURCE_CLAIMS, dinner("both"))
    await sandbox.client.create(PODS, pod("gourmet", "both", "sh", "-c", "env; sleep 60"))
    await until(lambda: phase(sandbox, "gourmet") == "Running")

    environment = await sandbox.environment("default", "gourmet", "eater")
    state = set(await sandbox.node_state())
    await sandbox.client.delete(PODS, "gourmet", "default")
    await sandbox.client.delete(RESOURCE_CLAIMS, "both", "default")

    assert {"PIZZA_0", "WINE_0"} <= set(environment)
    [node] = {text.rpartition(" ")[2] for text in state}
    records = {text for text in state if text.startswith("record")}
    assert records == {f"record of claim default/both of {name} on {node}" for name in (PIZZA, WINE)}
    await until(lambda: ("default", "gourmet") not in sandbox.informers.objects(PODS))
    assert set(await sandbox.node_state()) == set()


async def test_each_driver_has_its_own_webhook(sandbox: Sandbox) -> None:
    found = (await sandbox.client.list(VALIDATING_WEBHOOK_CONFIGURATIONS)).items
    assert len(found) == 2
    for name, field in ((PIZZA, "cheese"), (WINE, "bubbles")):
        claim = dinner("wrong")
        kind = "Food" if name == PIZZA else "Drink"
        opaque = {"driver": name, "parameters": {"apiVersion": f"{name}/v1", "kind": kind, field: 1}}
        claim["spec"]["devices"]["config"] = [{"opaque": opaque}]  # type: ignore[index]
        with pytest.raises(Invalid, match=field):
            await sandbox.client.create(RESOURCE_CLAIMS, claim)


async def test_driver_actions_name_the_driver(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigurationError, match=r"2 drivers run here, dra\.pizza and dra\.wine; say which"):
        sandbox.control()
    with pytest.raises(ConfigurationError, match=r'unknown driver dra\.wines.* did you mean "dra\.wine"\?'):
        sandbox.control("dra.wines")


async def test_restart_of_one_driver_does_not_affect_the_other(sandbox: Sandbox) -> None:
    other = [node.drivers[PIZZA]._role for node in sandbox.nodes]

    await sandbox.control(WINE).restart()

    assert [node.drivers[PIZZA]._role for node in sandbox.nodes] == other


async def test_each_driver_has_its_own_settings_and_edited_files(sandbox: Sandbox) -> None:
    former = await sandbox.control(WINE).replace_file("shelf", "grappa")
    await sandbox.control(WINE).restart()
    await until(lambda: {name for _, _, name in offered(sandbox)} == {"pizza-0", "pizza-1", "grappa-0", "grappa-1"})

    assert former == "wine"
    with pytest.raises(ConfigurationError, match="editable"):
        await sandbox.control(PIZZA).replace_file("shelf", "calzone")
    await sandbox.control(WINE).replace_file("shelf", former)
    await sandbox.control(WINE).restart()


async def test_reboot_restarts_all_drivers(sandbox: Sandbox) -> None:
    before = [driver._role for node in sandbox.nodes for driver in node.drivers.values()]

    await sandbox.control(PIZZA).reboot()

    after = [driver._role for node in sandbox.nodes for driver in node.drivers.values()]
    assert not set(map(id, before)) & set(map(id, after))
    assert len(after) == 4


async def test_two_drivers_with_one_name_are_rejected(tmp_path: Path) -> None:
    twins = [served(PIZZA, tmp_path, "./oven.py"), served(PIZZA, tmp_path, "./stove.py")]

    with pytest.raises(ConfigurationError, match=r"\./oven\.py and \./stove\.py are both driver dra\.pizza;"):
        Sandbox(twins)
