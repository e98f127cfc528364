"""``python -m benchmarks.agents``: ten whole node agents at one API server; exit 1 when a budget is exceeded.

Each is ``dra-kit node`` in a process of its own. A proxy between them and the embedded API server counts what they
send, discovery and watches included: at the start of all, in steady state, on a rolling update, and while a device of
each comes and goes ten times a second.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.fleet import Server, served
from benchmarks.requests import Counted, counting_proxy
from benchmarks.table import Row, part
from benchmarks.world import DRA_KIT, cpu_seconds, memory_mib
from dra_kit.client.credentials import load_credentials
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager

DRIVER = "bench.example.com"
AGENTS = 10
STEADY = 60.0  # seconds, after the last check that follows a publication
FLAPPING = 20.0
SETTLED = 60.0
"""Seconds after a publication: the node checks its slices once more in them, between 35 and 53 s after it."""

FLAPPER = """
import pathlib
from collections.abc import Iterator, Sequence
import dra_kit as dra
flag = pathlib.Path({flag!r})
class Shelf(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        there = True
        while not self.context.stopping:
            yield [dra.Device(name=f"device-{{i}}") for i in range(8 if there else 7)]
            there = not there or not flag.exists()
            self.context.stopping.blocking_sleep(0.1)
class Clerk(dra.Preparer):
    def prepare(self, claim, device):
        return dra.Prepared(env={{"A": "1"}})
driver = dra.Driver({driver!r}, provider=Shelf(), preparer=Clerk())
"""


class Agents:
    """Ten nodes of one machine, each with its kubelet's directory."""

    def __init__(self, directory: Path, server: Server, counted: Counted) -> None:
        self._directory = directory
        self.server = server
        self.counted = counted
        self.flag = directory / "flapping"
        self._target = directory / "driver.py"
        self._target.write_text(FLAPPER.format(flag=str(self.flag), driver=DRIVER))
        self.kubelets: list[PluginManager] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def directory_of(self, number: int) -> Path:
        return self._directory / f"n{number}"

    def spawn(self, number: int, uid: str) -> subprocess.Popen[bytes]:
        """Start the agent of a node, as the pod with this UID."""
        place = self.directory_of(number)
        command = [
            DRA_KIT, "node", self._target, "--node-name", f"node-{number}", "--pod-uid", uid,
            "--kubeconfig", self.counted.kubeconfig, "--kubelet-dir", place / "k", "--cdi-dir", place / "cdi",
            "--log-level", "error",
        ]  # fmt: skip
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen([str(item) for item in command], stdout=log, stderr=log)

    def sent(self) -> int:
        """Return how many requests all agents have sent."""
        return self.counted.ours.total() + self.counted.kopf.total()

    def start(self, uid: str) -> None:
        self.processes = [self.spawn(number, uid) for number in range(AGENTS)]

    async def registered(self, serving: int) -> None:
        """Wait until each kubelet knows so many processes of the driver."""
        while not all(sum(item.connected for item in kubelet.plugins(DRIVER)) == serving for kubelet in self.kubelets):
            self._check()
            await asyncio.sleep(0.05)

    async def watching(self, number: int) -> None:
        """Wait until so many watches have been opened since the start."""
        while self.counted.watches < number:
            self._check()
            await asyncio.sleep(0.05)

    def _check(self) -> None:
        for process in self.processes:
            if process.poll() is not None:
                raise SystemExit(f"an agent ended with {process.returncode}: {(self._directory / 'log').read_text()}")

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(60)


@asynccontextmanager
async def ten(directory: Path, server: Server) -> AsyncIterator[Agents]:
    """Ten nodes with their kubelets; agents are not started yet."""
    credentials = await load_credentials(server.directory / "kubeconfig")
    async with counting_proxy(credentials, directory) as counted, AsyncExitStack() as kubelets:
        agents = Agents(directory, server, counted)
        for number in range(AGENTS):
            root = agents.directory_of(number) / "k"
            (root / "plugins_registry").mkdir(parents=True)
            agents.kubelets.append(await kubelets.enter_async_context(PluginManager(root, release=UNMODIFIED)))
        try:
            yield agents
        finally:
            for process in agents.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


async def _measured(directory: Path, server: Server) -> Sequence[Row]:
    async with ten(directory, server) as agents:
        agents.start("first")
        await agents.registered(1)
        await agents.watching(AGENTS)
        start = await _settled(agents)
        await asyncio.sleep(SETTLED)

        before, cpu = agents.sent(), cpu_seconds(server.pid)
        opened = agents.counted.watches
        await asyncio.sleep(STEADY)
        steady = agents.sent() - before
        reopened, cpu = agents.counted.watches - opened, cpu_seconds(server.pid) - cpu
        memory = sum(memory_mib(process.pid) for process in agents.processes) / AGENTS

        before, peak = agents.sent(), _Peak(agents)
        async with peak:
            former = agents.processes
            agents.start("second")
            await agents.registered(2)
            for process in former:
                process.send_signal(signal.SIGTERM)
            for process in former:
                await asyncio.to_thread(process.wait, 60)
            await agents.registered(1)
            await agents.watching(opened + reopened + AGENTS)
            await _settled(agents)
        rolled = agents.sent() - before

        before = agents.sent()
        agents.flag.touch()
        await asyncio.sleep(FLAPPING)
        burst = agents.sent() - before
        before = agents.sent()
        await asyncio.sleep(FLAPPING)
        flapping = agents.sent() - before
        agents.flag.unlink()
        watches = agents.counted.open
        await asyncio.to_thread(agents.stop)
    print(f"processors: {os.cpu_count()}, load: {os.getloadavg()[0]:.1f}")
    return [
        Row(f"{AGENTS} agents: requests at start, per agent", start / AGENTS, "", 18),
        Row(f"{AGENTS} agents: watches open, per agent", watches / AGENTS, "", 1),
        Row(f"{AGENTS} agents: requests a second in steady state", steady / STEADY, "", 0),
        Row(f"{AGENTS} agents: watches opened in it, per agent", reopened / AGENTS, "", 0),
        Row(f"{AGENTS} agents: API server's CPU in it, per agent", cpu / STEADY / AGENTS * 1000, "mCPU", 1),
        Row(f"{AGENTS} agents: memory, each", memory, "MiB", 90),
        Row(f"{AGENTS} agents: requests on a rolling update, per agent", rolled / AGENTS, "", 20),
        Row(f"{AGENTS} agents: most of them in a second", peak.most, "", None),
        Row(f"{AGENTS} agents, flapping devices: in the first 20 s, a second", burst / FLAPPING / AGENTS, "each", None),
        Row(f"{AGENTS} agents, flapping devices: requests a second later", flapping / FLAPPING / AGENTS, "each", 1),
    ]


async def _settled(agents: Agents) -> int:
    """Wait until no request has come for two seconds; return all so far."""
    before = -1
    while before != (now := agents.sent()):
        before = now
        await asyncio.sleep(2)
    return now


class _Peak:
    """Finds the second with the most requests, while its context lasts."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.most = 0

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._look())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _look(self) -> None:
        while True:
            before = self._agents.sent()
            await asyncio.sleep(1)
            self.most = max(self.most, self._agents.sent() - before)


def measure() -> Sequence[Row]:
    """All rows."""
    # a short path: the sockets of the agents lie below it
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ten-") as name:
        directory = Path(name)
        (directory / "s").mkdir()
        with served(directory / "s", AGENTS) as server:
            return asyncio.run(_measured(directory, server))


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.agents", __doc__, measure))
