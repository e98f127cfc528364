"""Rolling updates: the new process takes over when it can serve, or when the older one exits."""

from __future__ import annotations

import asyncio
import itertools
import json
import selectors
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.cli.app import cli
from dra_kit.diagnosis.status import statuses
from dra_kit.errors import Unavailable
from dra_kit.kubelet.sockets import operation_link, operation_socket
from dra_kit.node.agent import NodeAgent
from dra_kit.node.decommission import decommission_agent
from dra_kit.node.operation_socket import METRICS, ask_text
from dra_kit.node.processes import DriverProcesses, Takeover
from dra_kit.process.supervisor import PartState
from tests.support.api import eventually
from tests.support.probes import ask
from tests.unit.node.drivers import Oven, Paused, Waiter, driver
from tests.unit.node.hardware import Heat, kitchen
from tests.unit.node.role import DRIVER, SLICES, Node

ADDRESS = "127.0.0.1:0"
Made = dra.Driver[Any, Any]


@pytest.fixture(autouse=True)
def _quick(node: Node) -> None:
    node.given["leftovers_interval"] = 0.05


# -- faults of a new process


class Fault:
    """A new release that cannot serve until :meth:`fix` is called."""

    def __init__(self) -> None:
        self.fixed = threading.Event()

    def fix(self) -> None:
        self.fixed.set()


class Discovering(Oven):
    """Finds ``new``, and does something else before the fault is fixed."""

    def __init__(self, fault: Fault, before: Callable[[], Iterator[Sequence[Any]]]) -> None:
        super().__init__("new")
        self._fault = fault
        self._before = before

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        if not self._fault.fixed.is_set():
            yield from self._before()
        yield from super().discover()


class Starting(Oven):
    """Its startup returns when the fault is fixed."""

    def __init__(self, fault: Fault) -> None:
        super().__init__("new")
        self._fault = fault

    def startup(self, context: dra.Context[Any]) -> None:
        self._fault.fixed.wait(60)


def discover_blocks(fault: Fault) -> Made:
    def before() -> Iterator[Sequence[Any]]:
        fault.fixed.wait(60)
        yield from ()

    return driver(provider=Discovering(fault, before))


def discover_raises(fault: Fault) -> Made:
    def before() -> Iterator[Sequence[Any]]:
        if not fault.fixed.is_set():
            raise RuntimeError("no kitchen found")
        yield from ()

    return driver(provider=Discovering(fault, before))


def invalid_device(fault: Fault) -> Made:
    def before() -> Iterator[Sequence[Any]]:
        yield [dra.Device.model_construct(name="Not Valid")]
        fault.fixed.wait(60)

    return driver(provider=Discovering(fault, before))


def startup_blocks(fault: Fault) -> Made:
    return driver(provider=Starting(fault))


def hardware_blocks(fault: Fault) -> Made:
    return driver(provider=Oven("new"), hardware=lambda _: fault.fixed.wait(60))


def policy_blocks(fault: Fault) -> Made:
    class Slow(dra.DevicePolicy[dra.Device]):
        def advertise(self, device: dra.Device, watched: Mapping[str, Any] | None) -> dra.Device | None:
            fault.fixed.wait(60)
            return device

    return driver(provider=Oven("new"), policy=Slow())


FAULTS: Mapping[str, tuple[Callable[[Fault], Made], str]] = {
    "discover-blocks": (discover_blocks, "discovery is waiting"),
    "discover-raises": (discover_raises, "discovery is waiting: discover fails: RuntimeError: no kitchen found"),
    "invalid-device": (invalid_device, "discovery is waiting: discover fails: "),
    "startup-blocks": (startup_blocks, "startup is waiting"),
    "hardware-blocks": (hardware_blocks, "startup is waiting"),
    "policy-blocks": (policy_blocks, "policy is waiting"),
}


@asynccontextmanager
async def begun(node: Node, made: Made, **settings: Any) -> AsyncIterator[NodeAgent]:
    """Run a process, and stop it at the end; the kubelet need not have registered it."""
    agent = await node.agent(made, **{"pod_uid": "new", "probe_address": ADDRESS, **settings})
    running = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        agent.stop()
        await running


def readiness(agent: NodeAgent) -> str:
    with suppress(OSError):
        return ask(agent.probe_port, "/readyz")[1]
    return ""


def calls(node: Node) -> list[str]:
    """The pods whose processes the kubelet knows, oldest first."""
    return [Path(client.endpoint).stem.removeprefix("dra-") for client in node.kubelet.plugins(DRIVER)]


async def waits(agent: NodeAgent, reason: str) -> None:
    await eventually(lambda: "kubelet is waiting: registration is deferred until this" in readiness(agent))
    await eventually(lambda: reason in readiness(agent))


@asynccontextmanager
async def stuck(node: Node) -> AsyncIterator[tuple[NodeAgent, Fault]]:
    """Run a process that waits for its devices until the end of the block, or until the fault is fixed."""
    fault = Fault()
    async with begun(node, discover_blocks(fault)) as agent:
        try:
            await waits(agent, "discovery is waiting")
            yield agent, fault
        finally:
            fault.fix()


@pytest.mark.parametrize(("made", "reason"), FAULTS.values(), ids=FAULTS.keys())
async def test_older_process_serves_until_the_new_one_can(
    node: Node, made: Callable[[Fault], Made], reason: str
) -> None:
    fault, oven, waiter = Fault(), Oven("old"), Waiter()
    first, second = node.claim("first", ["old"]), node.claim("second", ["plugged"])
    async with node.running(driver(waiter, oven), pod_uid="old") as old:
        await node.prepare(first)
        async with begun(node, made(fault)) as new:
            try:
                await waits(new, reason)
                assert calls(node) == ["old"]
                await node.unprepare(first)
                oven.devices = ("old", "plugged")
                oven.context.rescan()
                await eventually(lambda: node.published() == ["old", "plugged"])
                await node.prepare(second)
                assert waiter.calls == ["first old", "second plugged"]
            finally:
                fault.fix()
            if made is discover_raises:
                new._discovery.rescan()  # it is retried only after a while
            await eventually(lambda: calls(node) == ["old", "new"])
            await eventually(lambda: readiness(new) == "ok\n")
            await eventually(lambda: node.published() == ["new"])
            old.stop()
            await eventually(lambda: calls(node) == ["new"])


@pytest.mark.parametrize(("made", "reason"), FAULTS.values(), ids=FAULTS.keys())
async def test_new_process_registers_when_the_older_one_exits(
    node: Node, made: Callable[[Fault], Made], reason: str
) -> None:
    fault = Fault()
    lunch = node.claim(devices=["old"])
    async with node.running(driver(provider=Oven("old")), pod_uid="old") as old:
        await node.prepare(lunch)
        async with begun(node, made(fault)) as new:
            try:
                await waits(new, reason)
                old.stop()
                await eventually(lambda: calls(node) == ["new"])
                await node.unprepare(lunch)
            finally:
                fault.fix()


@pytest.fixture
def elsewhere(node: Node, tmp_path: Path) -> Path:
    """A kubeconfig whose API server does not exist."""
    config = yaml.safe_load(node.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def test_process_without_api_server_does_not_take_over(node: Node, elsewhere: Path) -> None:
    lunch = node.claim(devices=["old"])
    async with (
        node.running(driver(provider=Oven("old")), pod_uid="old"),
        begun(node, driver(provider=Oven("new")), kubeconfig=elsewhere) as new,
    ):
        await waits(new, "its devices cannot be published: ")
        assert calls(node) == ["old"]
        await node.prepare(lunch)
        assert node.published() == ["old"]


@pytest.mark.parametrize("status", [403, 422, 503])
async def test_process_with_rejected_slices_does_not_take_over(node: Node, status: int) -> None:
    lunch = node.claim(devices=["old"])
    async with node.running(driver(provider=Oven("old")), pod_uid="old"):
        await eventually(node.published)
        with node.api.failing(status, "PUT", "POST", "DELETE", below=SLICES):
            async with begun(node, driver(provider=Oven("new"))) as new:
                await waits(new, "its devices cannot be published: ")
                assert calls(node) == ["old"]
                await node.prepare(lunch)
                assert node.published() == ["old"]


async def test_process_rejected_by_the_kubelet_leaves_slices_and_calls_to_the_older_one() -> None:
    from tests.unit.node import role

    async with role.node(services=("v1.DRAPlugin",)) as made:
        lunch = made.claim(devices=["old"])
        async with (
            made.running(driver(provider=Oven("old")), pod_uid="old"),
            begun(made, driver(provider=Oven("new")), dra_versions=("v1beta1",)) as new,
        ):
            await eventually(lambda: "kubelet is waiting: the kubelet rejects the driver: " in readiness(new))
            await made.prepare(lunch)
            assert calls(made) == ["old"]
            assert made.published() == ["old"]


async def test_running_calls_of_the_older_process_do_not_delay_the_takeover(node: Node) -> None:
    paused = Paused()
    async with node.running(driver(paused, Oven("old")), pod_uid="old", drain=60.0) as old:
        preparing = asyncio.ensure_future(node.kubelet.plugin(DRIVER).prepare([node.claim(devices=["old"])]))
        await paused.entered.wait()
        async with stuck(node):
            try:
                old.stop()
                await eventually(lambda: calls(node) == ["new"])
                assert not paused.go_on.is_set()
            finally:
                paused.go_on.set()
            await asyncio.wait([preparing])


async def test_waiting_update_changes_no_claims_and_effects(node: Node) -> None:
    looked: list[str] = []

    class Suspicious(Heat):
        def holds(self, outcome: Any) -> bool:
            looked.append(self.oven)
            return False

    class Described(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield [dra.Device(name="pizza-0", attributes={"described": "otherwise"})]

    lunch, waiter = node.claim(), Waiter()
    node.given["effects_interval"] = 0.05
    async with node.running(kitchen(), pod_uid="old"):
        await node.prepare(lunch)
        before = node.contents()
        with node.api.failing(403, "PUT", "POST", "DELETE", below=SLICES):
            changed = dra.Driver(DRIVER, provider=Described(), preparer=waiter, effects=[Suspicious])
            async with begun(node, changed) as new:
                await waits(new, "its devices cannot be published")
                status = new.supervisor.status()
                upkeep = ("replugging", "leftovers", "file-repair", "effects", "unrecorded", "orphans", "publisher")
                assert {name: status[name].state for name in upkeep} == dict.fromkeys(upkeep, PartState.WAITING)
        assert node.contents() == before
        assert not waiter.calls
        assert not looked
        await node.unprepare(lunch)
        assert Heat.hardware.on == {}


async def test_third_process_takes_over_while_an_update_waits(node: Node) -> None:
    async with (
        node.running(driver(provider=Oven("old")), pod_uid="old"),
        stuck(node),
        begun(node, driver(provider=Oven("fixed")), pod_uid="fixed") as fixed,
    ):
        await eventually(lambda: calls(node) == ["old", "fixed"])
        await eventually(lambda: readiness(fixed) == "ok\n")
        await eventually(lambda: node.published() == ["fixed"])


async def test_restarted_kubelet_finds_only_the_older_process(node: Node) -> None:
    lunch = node.claim(devices=["old"])
    async with node.running(driver(provider=Oven("old")), pod_uid="old"), stuck(node):
        await node.kubelet.restart()
        await eventually(lambda: calls(node) == ["old"])
        await eventually(lambda: node.kubelet.connected(DRIVER))
        await node.prepare(lunch)


# -- one that takes over and ends again and again


async def test_takeover_waits_longer_after_an_early_exit(node: Node) -> None:
    async with node.running(driver(), pod_uid="old"):
        async with begun(node, driver(), settle=0.5):
            await eventually(lambda: calls(node) == ["old", "new"])
        async with begun(node, driver(), settle=3600.0) as new:
            await eventually(lambda: "it has been ready for " in readiness(new))
            assert "of 3600 s, because 1 process before it exited early" in readiness(new)
            assert calls(node) == ["old"]
        async with begun(node, driver(), settle=0.5) as new:
            await eventually(lambda: calls(node) == ["old", "new"])
            await eventually(lambda: readiness(new) == "ok\n")


async def test_exit_before_the_takeover_delays_no_other_process(node: Node) -> None:
    fault = Fault()
    async with node.running(driver(), pod_uid="old"):
        async with begun(node, discover_blocks(fault), settle=3600.0) as waiting:
            await waits(waiting, "discovery is waiting")
        fault.fix()
        async with begun(node, driver(), settle=3600.0) as new:
            await eventually(lambda: readiness(new) == "ok\n")


# -- the driver's end


@pytest.mark.parametrize("with_code", [True, False], ids=["with code", "without code"])
async def test_a_decommission_takes_over_without_the_api_server(node: Node, elsewhere: Path, with_code: bool) -> None:
    lunch = node.claim(devices=["old"])
    made = driver(provider=Oven("old"))
    async with node.running(driver(provider=Oven("old")), pod_uid="old") as old:
        await node.prepare(lunch)
        settings = node.settings(pod_uid="end", kubeconfig=elsewhere)
        end = await decommission_agent(DRIVER, settings, made if with_code else None, keep_running=True)
        running = asyncio.create_task(end.run())
        try:
            await eventually(lambda: calls(node) == ["old", "end"])
            old.stop()
            await eventually(lambda: calls(node) == ["end"])
            await node.unprepare(lunch)
        finally:
            end.stop()
            await running


# -- what people see


async def test_status_shows_both_processes_and_the_one_that_serves(node: Node) -> None:
    async with node.running(driver(), pod_uid="old"), stuck(node) as (new, _):
        await waits(new, "meanwhile: discovery is waiting: Discovering.discover has not yielded an inventory for")
        answer = await asyncio.to_thread(CliRunner().invoke, cli, ["status", "--kubelet-dir", str(node.root)])
        assert answer.exit_code == 3
        [problem] = [line for line in answer.stdout.splitlines() if line.startswith("  ! ")]
        assert "an update waits, and the kubelet calls the older process: pod new: registration is deferred" in problem
        assert "discovery is waiting: Discovering.discover has not yielded an inventory for" in problem
        rows = [line.split() for line in answer.stdout.split("\nProcesses\n")[1].splitlines()[1:3]]
        assert [(row[1], row[-2], row[-1]) for row in rows] == [
            ("old", "can", "serve"),
            ("new", "for", "discovery"),
        ]
        assert "calls it" in answer.stdout
        answer = await asyncio.to_thread(
            CliRunner().invoke, cli, ["status", "--kubelet-dir", str(node.root), "-o", "json"]
        )
        [document] = json.loads(answer.stdout)["drivers"]
        [other] = document["others"]
        assert (document["podUID"], document["registration"]["state"]) == ("old", "registered")
        assert (other["podUID"], other["registration"]["state"]) == ("new", "deferred")
        assert any("discovery is waiting" in line for line in other["problems"])


async def test_status_has_no_problems_after_the_takeover(node: Node) -> None:
    async with node.running(driver(), pod_uid="old"), begun(node, driver()) as new:
        await eventually(lambda: readiness(new) == "ok\n")
        [document], silent = await statuses(node.root, DRIVER)
        assert not silent
        assert document["podUID"] == "new"
        assert [other["podUID"] for other in document["others"]] == ["old"]


async def test_link_points_to_the_process_that_serves(node: Node) -> None:
    link = operation_link(node.root, DRIVER)
    async with node.running(driver(), pod_uid="old"), stuck(node) as (_, fault):
        await eventually(operation_socket(node.root, DRIVER, "new").is_socket)
        assert link.readlink().name == "ops-old.sock"
        fault.fix()
        await eventually(lambda: link.readlink().name == "ops-new.sock")


async def test_metrics_of_a_waiting_process(node: Node) -> None:
    async with node.running(driver(), pod_uid="old"), stuck(node):
        old = await ask_text(operation_socket(node.root, DRIVER, "old"), METRICS)
        waiting = await ask_text(operation_socket(node.root, DRIVER, "new"), METRICS)
    assert f'dra_driver_registered{{driver="{DRIVER}"}} 1' in old
    assert f'dra_driver_registered{{driver="{DRIVER}"}} 0' in waiting
    assert f'dra_driver_part_ready{{driver="{DRIVER}",part="kubelet"}} 1' in old
    assert f'dra_driver_part_ready{{driver="{DRIVER}",part="kubelet"}} 0' in waiting


# -- the rule for those that take over and end, in made-up time


class NoWaiting(selectors.SelectSelector):
    """Counts the seconds that it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.waited += timeout or 0.0
        return super().select(0)


class MadeUpTime(asyncio.SelectorEventLoop):
    """A loop in which a wait takes no time, and the clock says that it did."""

    def __init__(self) -> None:
        self._no_waiting = NoWaiting()
        super().__init__(self._no_waiting)

    def time(self) -> float:
        return self._no_waiting.waited


ABLE, MISSING, REFUSED = "able", "missing", "refused"
spells = st.lists(st.tuples(st.sampled_from([ABLE, MISSING, REFUSED]), st.floats(11.0, 100.0)), max_size=4)


@given(outlived=st.integers(0, 9), spells=spells)
def test_takeover_after_the_settle_time(outlived: int, spells: list[tuple[str, float]]) -> None:
    """Each period is longer than the check interval; after the last one the process can serve permanently."""
    ends = list(itertools.accumulate(seconds for _, seconds in spells))
    states = [state for state, _ in spells]

    def state(at: float) -> str:
        return next((name for name, end in zip(states, ends, strict=True) if at < end), ABLE)

    async def played(directory: Path) -> tuple[bool, float]:
        loop = asyncio.get_running_loop()

        async def publishable() -> None:
            if state(loop.time()) == REFUSED:
                raise Unavailable("no API server")

        elder, younger = DriverProcesses(directory), DriverProcesses(directory)
        with elder.present():
            for _ in range(outlived):
                former = DriverProcesses(directory)
                with former.present():
                    former.takes_over()
            with younger.present():
                takeover = Takeover(
                    younger, missing=lambda: ["oven"] if state(loop.time()) == MISSING else [],
                    publishable=publishable, settle=20.0, clock=loop.time,
                )  # fmt: skip
                return await takeover.turn(), loop.time()

    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch("dra_kit.node.processes.LOOK_EVERY", 1.0),
        mock.patch("dra_kit.client.informer.jittered", lambda seconds: seconds),
        asyncio.Runner(loop_factory=MadeUpTime) as runner,
    ):
        preceded, at = runner.run(played(Path(directory)))
    assert preceded
    needed = 0.0 if not outlived else 20.0 * 2 ** min(outlived - 1, 4)
    since = max([0.0, *(end for name, end in zip(states, ends, strict=True) if name != ABLE and end <= at)])
    assert state(at) == ABLE
    assert at - since >= needed
    # a rejected publication is retried within half a minute
    unable = [end for name, end in zip(states, ends, strict=True) if name != ABLE]
    assert at <= max([0.0, *unable]) + needed + 31.0
