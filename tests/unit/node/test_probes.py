"""Liveness and readiness of the node process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

import dra_kit as dra
from dra_kit.node.agent import NodeAgent
from tests.support.api import eventually
from tests.support.probes import ask
from tests.unit.node.claims.test_author import Hanging
from tests.unit.node.claims.test_release import SlowToRelease
from tests.unit.node.drivers import Oven, Paused, SlowToStart, driver
from tests.unit.node.hardware import Heat, kitchen
from tests.unit.node.role import PLENTY, Node, set_deadline

ADDRESS = "127.0.0.1:0"


def live(agent: NodeAgent) -> tuple[int, str]:
    return asked(agent, "/healthz")


def ready(agent: NodeAgent) -> tuple[int, str]:
    return asked(agent, "/readyz")


def asked(agent: NodeAgent, path: str) -> tuple[int, str]:
    """Return status and body; status 0 before the probe server listens, which may start after the kubelet's sockets."""
    try:
        return ask(agent.probe_port, path)
    except OSError as error:
        return 0, str(error)


class Probe:
    """Waits for expected answers of the probes."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent

    async def not_alive(self, text: str) -> None:
        await eventually(lambda: live(self._agent)[0] == 503 and text in live(self._agent)[1])

    async def alive(self) -> None:
        await eventually(lambda: live(self._agent) == (200, "ok\n"))

    async def ready(self) -> None:
        await eventually(lambda: ready(self._agent) == (200, "ok\n"))

    async def not_ready(self, text: str) -> None:
        await eventually(lambda: ready(self._agent)[0] == 503 and text in ready(self._agent)[1])


async def test_node_is_ready_after_its_devices_are_published(node: Node) -> None:
    node.api.go_away()
    async with node.running(driver(), probe_address=ADDRESS) as agent:
        probe = Probe(agent)
        await probe.not_ready("publisher is waiting: LIST resourceslices.resource.k8s.io: no connection to ")
        await probe.alive()
        node.api.listen()
        await probe.ready()
        assert node.published()


async def test_probes_are_off_by_default(node: Node) -> None:
    async with node.running(driver()) as agent:
        assert "probes" not in agent.supervisor.status()


async def test_hanging_call_fails_liveness_and_other_claims_continue(node: Node) -> None:
    hanging = Hanging()
    slow, quick, later = (node.claim(name, [f"pizza-{i}"]) for i, name in enumerate(("slow", "quick", "later")))
    async with node.running(driver(hanging), hang_timeout=1.5, probe_address=ADDRESS) as agent:
        probe = Probe(agent)
        await probe.ready()
        set_deadline(agent, 0.5)
        await node.late(slow, lambda: hanging.entered)
        set_deadline(agent, PLENTY)
        await probe.not_alive("claim default/slow: Hanging.prepare has not returned for ")
        await probe.ready()
        await node.prepare(quick, later)
        await node.unprepare(quick)
        hanging.go_on.set()
        await probe.alive()
        await node.prepare(slow)


async def test_hanging_effect_is_reported_with_its_claim(node: Node) -> None:
    entered, go_on = threading.Event(), threading.Event()

    async def stubborn() -> None:
        entered.set()
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass  # an author's loop that catches everything

    made, lunch = kitchen(), node.claim()
    Heat.hardware.fail = lambda what, temperature: stubborn() if what == "apply" else None
    async with node.running(made, deadline=0.5, hang_timeout=1.0, probe_address=ADDRESS) as agent:
        probe = Probe(agent)
        await node.late(lunch, entered.is_set)
        set_deadline(agent, PLENTY)
        await probe.not_alive("claim default/lunch: Heat.apply has not returned for ")
        go_on.set()
        await probe.alive()
        await node.unprepare(lunch)


async def test_hanging_unprepare_is_reported_with_its_claim(node: Node) -> None:
    slow, lunch = SlowToRelease(), node.claim()
    async with node.running(driver(slow), hang_timeout=1.0, probe_address=ADDRESS) as agent:
        probe = Probe(agent)
        await node.prepare(lunch)
        set_deadline(agent, 0.5)
        assert "not released within 0.5 s" in await node.late_release(lunch, slow.begun.is_set)
        set_deadline(agent, PLENTY)
        await probe.not_alive("claim default/lunch: SlowToRelease.unprepare has not returned for ")
        slow.go_on.set()
        await probe.alive()
        await node.unprepare(lunch)


async def test_hanging_startup_is_reported(node: Node) -> None:
    slow = SlowToStart()
    async with node.running(driver(slow), hang_timeout=0.5, probe_address=ADDRESS) as agent:
        probe = Probe(agent)
        await probe.not_alive("SlowToStart.startup has not returned for ")
        await probe.not_ready("startup is waiting: SlowToStart.startup has not returned for ")
        slow.go_on.set()
        await probe.alive()
        await probe.ready()


class Slowly(dra.DeviceProvider):
    """Waits before its only inventory, and permanently after it."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        self.go_on.wait()
        yield [dra.Device(name="pizza-0")]
        while not self.context.stopping:
            self.go_on.wait(0.05)


async def test_discover_is_reported_only_while_it_yields_no_first_inventory(node: Node) -> None:
    slowly = Slowly()
    async with node.running(driver(provider=slowly), hang_timeout=0.5, probe_address=ADDRESS) as agent:
        probe = Probe(agent)
        await probe.not_alive("Slowly.discover has not yielded an inventory for ")
        slowly.go_on.set()
        await probe.ready()
        await asyncio.sleep(1.0)  # twice as long as a call may take
        assert live(agent) == (200, "ok\n")


class Pulse(dra.HealthSource):
    """Reports its devices repeatedly, and waits when the test requires it."""

    def __init__(self, stale_after: float | None) -> None:
        self.stale_after = stale_after  # type: ignore[misc]
        self.go_on = threading.Event()

    def watch(self) -> Iterator[dra.Healthy]:
        while not self.context.stopping:
            yield from map(dra.Healthy, self.devices)
            self.go_on.wait()
            time.sleep(0.01)


async def test_health_source_with_stale_after_is_reported_when_it_hangs(node: Node) -> None:
    pulse = Pulse(stale_after=0.1)
    async with node.running(driver(health=pulse), hang_timeout=0.5, probe_address=ADDRESS) as agent:
        probe = Probe(agent)
        await probe.ready()
        await probe.not_alive("Pulse.watch has not reported anything for ")
        pulse.go_on.set()
        await probe.alive()


async def test_health_source_without_stale_after_may_wait_for_events(node: Node) -> None:
    pulse = Pulse(stale_after=None)
    async with node.running(driver(health=pulse), hang_timeout=0.5, probe_address=ADDRESS) as agent:
        await Probe(agent).ready()
        await asyncio.sleep(1.0)  # twice as long as a call may take
        assert live(agent) == (200, "ok\n")
        pulse.go_on.set()


async def test_failed_discover_does_not_fail_liveness(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dra_kit.author.calls.RETRY_SECONDS", (3600.0,))  # called only once

    class Broken(Oven):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            if self.devices:
                raise RuntimeError("no bus")
            yield []

    async with node.running(driver(provider=Broken()), hang_timeout=0.2, probe_address=ADDRESS) as agent:
        probe = Probe(agent)
        await eventually(lambda: any(item.getMessage() == "discover failed" for item in caplog.records))
        await probe.not_ready("discovery is waiting: discover fails: RuntimeError: no bus\n")
        await asyncio.sleep(0.5)  # more than a call may take
        await probe.alive()


async def test_draining_process_is_alive_and_not_ready(node: Node) -> None:
    paused, lunch = Paused(), node.claim()
    async with node.running(driver(paused), probe_address=ADDRESS) as agent:
        probe = Probe(agent)
        await probe.ready()
        preparing = asyncio.create_task(node.kubelet.plugin("dra.pizza").prepare([lunch]))
        await paused.entered.wait()
        agent.stop()
        await probe.not_ready("the process is stopping\n")
        assert live(agent) == (200, "ok\n")
        paused.go_on.set()
        # the answer may find no kubelet any more: it hangs up once the registration socket is gone
        await asyncio.gather(preparing, return_exceptions=True)
        await eventually(lambda: node.records() == ["lunch"])
