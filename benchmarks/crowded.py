"""``python -m benchmarks.crowded``: one node with 1,000 prepared claims, and 50 pods at once; exit 1 over a budget.

A node with 1,000 claims and one with 100 are called in turn: each is ``dra-kit node`` at the embedded API server. The
pods run in a sandbox of one node, ten and fifty in turn.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from benchmarks.calls import Caller
from benchmarks.fleet import DRIVER, claim_of, served
from benchmarks.sandbox import MANIFESTS, pod, poll
from benchmarks.table import Row, part
from benchmarks.world import DRA_KIT, memory_mib, timed, until_idle
from dra_kit.author.target import load_drivers
from dra_kit.client.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager

FEW, MANY = 100, 1000
NEXT = 60  # further claims on each node, prepared one by one and released again
RESTARTS = 5
FEW_PODS, MANY_PODS = 10, 50
TURNS = 3
GROWTH = 1.5  # at most: what 1,000 claims make of a call, by what 100 make of it
RESTART = 2.0  # seconds
PER_CLAIM = 24.0  # KiB
_PATIENCE = 120.0  # seconds until the kubelet has registered the driver, also on an overloaded machine
DRIVERS = """
    import dra_kit as dra


    class Shelf(dra.DeviceProvider):
        def discover(self):
            yield [dra.Device(name=f"device-{{i}}") for i in range({devices})]


    class Clerk(dra.Preparer):
        async def prepare(self, claim, device):
            return dra.Prepared(env={{device.env_name: claim.name}})


    driver = dra.Driver({driver!r}, provider=Shelf(), preparer=Clerk())
"""


class Node:
    """One node with so many prepared claims.

    Attributes:
        prepared: milliseconds of each further prepare.
        released: milliseconds of each unprepare after it.
        restarted: milliseconds from exec until a prepared claim is answered, for each restart.
        memory: MiB of the process with the claims, after its last restart.
    """

    def __init__(self, directory: Path, kubeconfig: Path, number: int, claims: int) -> None:
        self._directory = directory / f"n{number}"
        self._kubeconfig = kubeconfig
        self._number = number
        self._target = _driver(directory / "driver.py", DRIVER, MANY + NEXT)
        self.claims: list[ClaimReference] = [claim_of(number, device) for device in range(claims)]
        self.further = [claim_of(number, device) for device in range(MANY, MANY + NEXT)]
        self.prepared: list[float] = []
        self.released: list[float] = []
        self.restarted: list[float] = []
        self.memory = 0.0
        (self._directory / "k" / "plugins_registry").mkdir(parents=True)

    async def __aenter__(self) -> Self:
        await self._start()
        caller = self.caller()
        for first in range(0, len(self.claims), 50):
            caller.prepare(self.claims[first : first + 50])
        caller.close()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _start(self) -> None:
        self._process = self._spawn()
        self._running = AsyncExitStack()
        self._running.callback(self._stop)
        try:
            self._kubelet = await self._running.enter_async_context(
                PluginManager(self._directory / "k", release=UNMODIFIED)
            )
            await self._kubelet.wait_for_plugin(DRIVER, timeout=_PATIENCE)
        except BaseException:
            await self._end()
            raise

    async def _end(self) -> None:
        await self._running.aclose()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [
            DRA_KIT, "node", self._target, "--node-name", f"node-{self._number}", "--kubeconfig", self._kubeconfig,
            "--kubelet-dir", self._directory / "k", "--cdi-dir", self._directory / "cdi", "--log-level", "error",
        ]  # fmt: skip
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen([str(item) for item in command], stdout=log, stderr=log)

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    async def restart(self) -> None:
        """Stop the process, and start it again."""
        await self._end()
        begun = time.perf_counter()
        await self._start()
        caller = self.caller()
        caller.prepare(self.claims[:1])
        self.restarted.append(timed(begun))
        caller.close()
        await until_idle(self._process.pid)
        self.memory = memory_mib(self._process.pid)

    def caller(self) -> Caller:
        return Caller(self._kubelet, DRIVER)


async def _claims(directory: Path) -> tuple[Node, Node]:
    with served(directory, 2, MANY + NEXT) as server:
        kubeconfig = server.directory / "kubeconfig"
        few, many = Node(directory, kubeconfig, 0, FEW), Node(directory, kubeconfig, 1, MANY)
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(node) for node in (few, many)]
            for _ in range(RESTARTS):
                for node in nodes:
                    await node.restart()
            callers = {node: node.caller() for node in nodes}
            for index in range(NEXT):
                for node in nodes:
                    node.prepared.append(callers[node].prepare([node.further[index]]))
                nodes.reverse()
            for index in range(NEXT):
                for node in nodes:
                    node.released.append(callers[node].unprepare([node.further[index]]))
                nodes.reverse()
            for caller in callers.values():
                caller.close()
        return few, many


async def _pods(directory: Path, number: int) -> float:
    """Return the milliseconds for each pod until so many, created at once on one node, run."""
    target = _driver(directory / "pizzeria.py", "dra.pizza", MANY_PODS)
    drivers = tuple(load_drivers(str(target), 1))
    async with Sandbox(SandboxDriver(drivers), SandboxSettings(nodes=1)) as sandbox:
        client, objects = sandbox.client, sandbox.informers.objects
        await client.create(DEVICE_CLASSES, MANIFESTS[0])
        await client.create(RESOURCE_CLAIM_TEMPLATES, MANIFESTS[1], "default")

        def running() -> int:
            return sum(item.get("status", {}).get("phase") == "Running" for item in objects(PODS).values())

        begun = time.perf_counter()
        await asyncio.gather(*(client.create(PODS, pod(index, "sleep", "3600")) for index in range(number)))
        await poll(lambda: running() == number)
        taken = timed(begun) / number
        names = [item["metadata"]["name"] for item in objects(PODS).values()]
        await asyncio.gather(*(client.delete(PODS, name, "default", grace_period_seconds=0) for name in names))
        await poll(lambda: not objects(PODS) and not objects(RESOURCE_CLAIMS))
    return taken


def _driver(path: Path, name: str, devices: int) -> Path:
    path.write_text(textwrap.dedent(DRIVERS.format(driver=name, devices=devices)))
    return path


def measure() -> Sequence[Row]:
    """All rows."""
    # a short path: the sockets of the nodes lie below it
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="crowd-") as name:
        few, many = asyncio.run(_claims(Path(name)))
        pods: dict[int, list[float]] = {FEW_PODS: [], MANY_PODS: []}
        for _ in range(TURNS):
            for number, taken in pods.items():
                taken.append(asyncio.run(_pods(Path(name), number)))
    print(f"processors: {os.cpu_count()}, load: {os.getloadavg()[0]:.1f}")
    median = statistics.median
    per_claim = (many.memory - few.memory) / (MANY - FEW) * 1024
    few_pods, many_pods = median(pods[FEW_PODS]), median(pods[MANY_PODS])
    return [
        Row(f"{MANY} claims: one more prepared, p50", median(many.prepared), "ms", None),
        Row(
            f"{MANY} claims: the same by that with {FEW}", median(many.prepared) / median(few.prepared), "times", GROWTH
        ),
        Row(f"{MANY} claims: it unprepared, p50", median(many.released), "ms", None),
        Row(
            f"{MANY} claims: the same by that with {FEW}", median(many.released) / median(few.released), "times", GROWTH
        ),
        Row(f"{MANY} claims: exec to the answer for one", median(many.restarted) / 1000, "s", RESTART),
        Row(
            f"{MANY} claims: the same by that with {FEW}",
            median(many.restarted) / median(few.restarted),
            "times",
            GROWTH,
        ),
        Row(f"{MANY} claims: memory after a restart", many.memory, "MiB", None),
        Row(f"{MANY} claims: memory for each claim", per_claim, "KiB", PER_CLAIM),
        Row(f"{MANY_PODS} pods at once on a node: until all run", many_pods * MANY_PODS / 1000, "s", None),
        Row(f"{MANY_PODS} pods: time per pod by that of {FEW_PODS}", many_pods / few_pods, "times", GROWTH),
    ]


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.crowded", __doc__, measure))
