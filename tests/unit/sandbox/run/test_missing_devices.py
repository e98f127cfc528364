"""A run that waits, such as for a driver that offers no device yet: its devices may depend on the manifests."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typing_extensions import override

import dra_kit as dra
from dra_kit.sandbox.cluster import SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.run.session import RunTask, SandboxSession
from dra_kit.sandbox.stories import runner
from dra_kit.sandbox.stories.story import load_story
from dra_kit.sandbox.views.live import LiveView
from tests.unit.cli.kitchen import CLASS, TEMPLATE, pod
from tests.unit.node.policy.test_policy import DEFINITION, NODE_MENUS, menu
from tests.unit.sandbox.driver.test_named_settings import NoPreparer

pytestmark = pytest.mark.processes  # containers are processes, and each test takes seconds
NOTE = "driver dra.pizza offers no device: discover() yielded an empty inventory"


class Oven(dra.DeviceProvider):
    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="pizza-0")]


class ColdOven(dra.DeviceProvider):
    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield []


class BrokenRack(dra.DeviceProvider, scope="cluster"):
    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        raise OSError("rack is off")


class Menu(dra.DevicePolicy, watches=NODE_MENUS):
    @override
    def advertise(self, device: dra.Device, watched: Mapping[str, Any] | None) -> dra.Device | None:
        return device if watched else None


async def run(task: RunTask, provider: dra.DeviceProvider, policy: dra.DevicePolicy | None = None) -> tuple[int, str]:
    """Return the exit code of a run, and what it shows."""
    return await run_driver(task, dra.Driver("dra.pizza", provider=provider, preparer=NoPreparer(), policy=policy))


async def run_driver(task: RunTask, *drivers: dra.Driver[Any, Any], controller: bool = False) -> tuple[int, str]:
    shown = io.StringIO()
    settings = SandboxSettings(webhook=False, controller=controller)
    runs = [SandboxDriver((driver,)) for driver in drivers]
    code = await SandboxSession(runs, settings, task, LiveView(shown)).run()
    return code, shown.getvalue()


@pytest.mark.parametrize("by_story", [False, True], ids=["-f", "--story"])
async def test_devices_that_depend_on_objects_in_the_manifests(tmp_path: Path, by_story: bool) -> None:
    objects = [CLASS, TEMPLATE, DEFINITION, menu("node-1"), pod("guest", "true")]
    (tmp_path / "order.yaml").write_text(yaml.safe_dump_all(map(dict, objects)))
    (tmp_path / "expect.yaml").write_text("steps:\n- apply: [order.yaml]\n  pods: {guest: {phase: Succeeded}}\n")
    task = RunTask(stories=(load_story(tmp_path),)) if by_story else RunTask(files=(tmp_path / "order.yaml",))

    code, text = await run(task, Oven(), Menu())

    assert code == 0, text
    assert text.index("driver dra.pizza offers no device") < text.index("offers 1 device on node-1")


async def test_pods_without_a_device_fail_with_the_driver_that_offers_none(tmp_path: Path) -> None:
    (tmp_path / "order.yaml").write_text(yaml.safe_dump_all([CLASS, TEMPLATE, pod("guest", "true")]))

    for timeout in (1.0, 15.0, 60.0):  # a busy machine takes longer until the pod is tried
        code, text = await run(RunTask(files=(tmp_path / "order.yaml",), timeout=timeout), ColdOven())
        if text.count(NOTE) == 2:
            break

    assert code == 1
    assert text.count(NOTE) == 2
    assert text.rindex("not all pods succeeded") < text.rindex(NOTE)


@pytest.fixture
def free_pod(tmp_path: Path) -> Path:
    """A manifest of a pod without claims."""
    free = pod("guest", "true")
    del free["spec"]["resourceClaims"], free["spec"]["containers"][0]["resources"]
    path = tmp_path / "order.yaml"
    path.write_text(yaml.safe_dump_all([free]))
    return path


async def test_pods_that_need_no_device_succeed(free_pod: Path) -> None:
    code, text = await run(RunTask(files=(free_pod,)), ColdOven())

    assert (code, text.count(NOTE)) == (0, 1)


async def test_pods_that_have_not_succeeded_fail_after_the_shortest_timeout(free_pod: Path) -> None:
    code, text = await run(RunTask(files=(free_pod,), timeout=0.0), ColdOven())

    assert (code, text.count("not all pods succeeded within 0 s")) == (1, 1)


async def test_a_discovery_that_fails_is_not_an_empty_inventory(free_pod: Path) -> None:
    driver = dra.Driver("dra.pizza", cluster_provider=BrokenRack())

    _, text = await run_driver(RunTask(files=(free_pod,)), driver, controller=True)

    assert "driver dra.pizza offers no device: discover failed: OSError: rack is off" in text


async def test_a_driver_without_devices_is_not_reported_with_the_problem_of_another(free_pod: Path) -> None:
    empty = dra.Driver("dra.pizza", provider=ColdOven(), preparer=NoPreparer())
    broken = dra.Driver("dra.wine", cluster_provider=BrokenRack())

    _, text = await run_driver(RunTask(files=(free_pod,)), empty, broken, controller=True)

    assert any(line.endswith(NOTE) for line in text.splitlines()), text
    assert "driver dra.wine offers no device: discover failed: OSError: rack is off" in text


async def test_a_story_shows_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SLOW_CALL_SECONDS", 0.5)
    (tmp_path / "order.yaml").write_text(yaml.safe_dump_all([CLASS, TEMPLATE, pod("guest", "sleep", "3600")]))
    (tmp_path / "expect.yaml").write_text("pods: {guest: {phase: Succeeded}}")

    code, text = await run(RunTask(stories=(load_story(tmp_path),), timeout=3.0), Oven())

    assert code == 1
    assert text.count("step 1 of 1 waits, up to 3 s in all (--timeout), for:\n           pod guest\n") == 1
    assert text.index("waits, up to 3 s") < text.index("FAILED")
