"""``python -m benchmarks.controller``: what the controller takes with 10,000 claims; exit 1 when a budget is exceeded.

The API server is the embedded one, in a process of its own; the controller is ``dra-kit controller`` with an observer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.table import Row, part
from dra_kit.apiserver.server import ApiServer

CLAIMS = 10_000
DRIVER = "bench.example.com"
MEMORY = 150  # MiB
REPORTED = 30.0  # seconds of processor time from the start until the observer has all claims
SETTLE = 20.0  # idle seconds before memory and CPU time are measured
IDLE = 30.0

OBSERVED = """
import pathlib, dra_kit as dra
from collections.abc import Iterator, Sequence
class Provider(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield []
class Preparer(dra.Preparer):
    def prepare(self, claim, device):
        return dra.Prepared()
class Observer(dra.ClaimObserver):
    told = 0
    async def allocated(self, claim):
        self.told += 1
        if self.told == {claims}:
            pathlib.Path({file!r}).touch()
driver = dra.Driver({driver!r}, provider=Provider(), preparer=Preparer(), observer=Observer())
"""


def serve(directory: Path) -> None:
    """The API server with its claims, until SIGTERM."""

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with ApiServer(garbage_collection=False) as server:  # it would delete claims whose pods do not exist
            kind = server.api.registry.by_name("resourceclaims.resource.k8s.io")
            assert kind is not None
            for number in range(CLAIMS):
                made = allocated(number)
                server.api.storage.create(kind.resource, kind.key("default", made["metadata"]["name"]), made)
            (directory / "kubeconfig.part").write_text(yaml.safe_dump(server.kubeconfig()))
            (directory / "kubeconfig.part").rename(directory / "kubeconfig")
            await stop.wait()

    asyncio.run(run())


def allocated(number: int) -> dict[str, Any]:
    """Return an allocated claim that is reserved for a pod."""
    node, pod = f"node-{number // 8:04}", f"pod-{number}"
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    result = {"request": "device", "driver": DRIVER, "pool": node, "device": f"device-{number % 8}"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"claim-{number:05}",
            "namespace": "default",
            "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, pod)),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod, "controller": True}],
        },
        "spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": "bench"}}]}},
        "status": {
            "allocation": {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            },
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod}],
        },
    }


def resident(pid: int) -> float:
    """Resident set in MiB."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def highest(pid: int) -> float:
    """Peak resident set in MiB."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def processor(pid: int) -> float:
    """Seconds of user and system time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure() -> Sequence[Row]:
    """All rows."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        code = f"import pathlib; from benchmarks.controller import serve; serve(pathlib.Path({name!r}))"
        server = subprocess.Popen([sys.executable, "-c", code])
        try:
            _until((directory / "kubeconfig").exists, server, 600)
            return _of_controller(directory)
        finally:
            server.terminate()
            server.wait()


def _of_controller(directory: Path) -> Sequence[Row]:
    told = directory / "told"
    (directory / "driver.py").write_text(OBSERVED.format(claims=CLAIMS, file=str(told), driver=DRIVER))
    program, target = Path(sys.executable).with_name("dra-kit"), directory / "driver.py"
    command = list(map(str, (program, "controller", target, "--log-level", "warning")))
    controller = subprocess.Popen([*command, "--kubeconfig", str(directory / "kubeconfig")])
    try:
        _until(told.exists, controller, 300)
        first = processor(controller.pid)
        time.sleep(SETTLE)
        before = processor(controller.pid)
        time.sleep(IDLE)
        idle = (processor(controller.pid) - before) / IDLE * 1000
        return [
            Row("controller: CPU until 10,000 claims are observed", first, "s", REPORTED),
            Row("controller: memory, 10,000 claims", resident(controller.pid), "MiB", MEMORY),
            Row("controller: most memory ever", highest(controller.pid), "MiB", MEMORY),
            Row("controller: CPU idle, renewing its lease", idle, "mCPU", 10),
        ]
    finally:
        controller.terminate()
        controller.wait()


def _until(condition: Any, process: subprocess.Popen[bytes], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"{process.args!r} ended with {process.poll()}, or takes longer than {seconds:.0f} s")
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.controller", __doc__, measure))
