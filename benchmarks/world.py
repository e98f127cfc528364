"""The environment of measurements: a real API server, a kubelet directory, and allocated claims."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bench_driver import DEVICES
from benchmarks.bytecode import compile_package
from dra_kit.client.api import Client
from dra_kit.client.resources import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.errors import NotFound
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager

DRIVER = "bench.dra-kit.example"
NODE = "bench-node"
NAMESPACE = "default"
_IDLE = 0.02  # CPU seconds per second
DRA_KIT = Path(sys.executable).with_name("dra-kit")


@dataclass
class World:
    """One API server and one node directory."""

    client: Client
    kubeconfig: Path
    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def kubelet_dir(self) -> Path:
        return self.directory / "kubelet"

    @property
    def cdi_dir(self) -> Path:
        return self.directory / "cdi"

    def spawn(self, *, kubeconfig: Path | None = None, under: Sequence[str | Path] = ()) -> subprocess.Popen[bytes]:
        """Start the node role; its log goes to ``driver.log``.

        Args:
            kubeconfig: of another way to the API server.
            under: a module of this folder that runs ``dra-kit`` and looks at it, and its arguments.
        """
        log = (self.directory / "driver.log").open("ab")
        dra_kit = [sys.executable, "-m", *under] if under else [DRA_KIT]
        command = [
            *dra_kit, "node", Path(__file__).with_name("bench_driver.py"), "--node-name", NODE,
            "--kubeconfig", kubeconfig or self.kubeconfig, "--kubelet-dir", self.kubelet_dir, "--cdi-dir", self.cdi_dir,
            "--log-level", "warning",
        ]  # fmt: skip
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def stop(self, process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
        """Stop a process started by ``spawn``."""
        process.send_signal(number)
        process.wait(60)
        self.processes.remove(process)

    async def until_published(self) -> None:
        """Wait until slices contain all devices."""
        while True:
            listed = await self.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER}")
            if sum(len(item["spec"].get("devices", ())) for item in listed.items) == DEVICES:
                return
            await asyncio.sleep(0.005)

    async def withdraw(self, driver: str = DRIVER) -> None:
        """Remove a driver's slices."""
        for item in (await self.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")).items:
            await self.client.delete(RESOURCE_SLICES, item["metadata"]["name"])

    async def make_claims(self, count: int, driver: str = DRIVER, device: str = "device") -> list[ClaimReference]:
        """Create claims, each allocated to its own device ``<device>-<n>``."""
        limit = asyncio.Semaphore(16)

        async def one(index: int) -> ClaimReference:
            async with limit:
                body = {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"generateName": "bench-", "namespace": NAMESPACE},
                    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "bench"}}]}},
                }
                created = await self.client.create(RESOURCE_CLAIMS, body, NAMESPACE)
                result = {"request": "r", "driver": driver, "pool": NODE, "device": f"{device}-{index}"}
                created["status"] = {"allocation": {"devices": {"results": [result]}}}
                stored = await self.client.update(RESOURCE_CLAIMS, created, subresource="status")
                metadata = stored["metadata"]
                return ClaimReference(NAMESPACE, metadata["name"], metadata["uid"])

        return list(await asyncio.gather(*(one(index) for index in range(count))))

    async def delete_claims(self, claims: Sequence[ClaimReference]) -> None:
        """Remove claim objects."""
        for claim in claims:
            await self.client.delete(RESOURCE_CLAIMS, claim.name, claim.namespace)

    @asynccontextmanager
    async def running(
        self, *, under: Sequence[str | Path] = ()
    ) -> AsyncIterator[tuple[PluginManager, subprocess.Popen[bytes]]]:
        """Run an idle node and a kubelet that has registered it."""
        process = self.spawn(under=under)
        try:
            async with PluginManager(self.kubelet_dir, release=UNMODIFIED) as kubelet:
                await kubelet.wait_for_plugin(DRIVER)
                await self.until_published()
                await until_idle(process.pid)
                yield kubelet, process
        finally:
            self.stop(process)


@asynccontextmanager
async def world(client: Client, kubeconfig: Path, directory: Path) -> AsyncIterator[World]:
    """Yield a new environment, which is removed at the end."""
    compile_package()
    made = World(client, kubeconfig, directory)
    (made.kubelet_dir / "plugins_registry").mkdir(parents=True)
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    await _ensure(client, NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "bench"}}
    await _ensure(client, DEVICE_CLASSES, body | {"spec": {"selectors": [selector]}})
    try:
        yield made
    finally:
        for process in list(made.processes):
            made.stop(process, signal.SIGKILL)
        await made.withdraw()


async def _ensure(client: Client, resource: Any, body: dict[str, Any]) -> None:
    try:
        await client.get(resource, body["metadata"]["name"])
    except NotFound:
        await client.create(resource, body)


def memory_mib(pid: int) -> float:
    """Return the resident set of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def until_idle(pid: int) -> None:
    """Wait until a new process is idle, including its background work."""
    while True:
        before = cpu_seconds(pid)
        await asyncio.sleep(1)
        if cpu_seconds(pid) - before < _IDLE:
            return


def timed(start: float) -> float:
    """Return the milliseconds since ``start``."""
    return (time.perf_counter() - start) * 1000


def state(world_: World) -> dict[str, Any]:
    """Return the records of the node."""
    target = Path(__file__).with_name("bench_driver.py")
    command = [str(DRA_KIT), "node", str(target), "--kubelet-dir", str(world_.kubelet_dir), "--dump-state"]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result
