"""``python -m benchmarks.loud_pods``: the cost of a hundred pods that write logs continuously."""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.table import Row, part
from benchmarks.world import DRA_KIT, cpu_seconds, memory_mib
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import PODS

BUDGET_GET = 20.0  # ms
BUDGET_GROWTH = 10.0  # MiB in a minute
NODES = 10
LOUD = 100
_FULL_SECONDS = 20.0  # until all logs have their maximum size
_MINUTE = 60.0
_PAUSE = 0.05
_DRIVER = """
    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self):
            yield [dra.Device(name="pizza")]


    class Waiter(dra.Preparer):
        def prepare(self, claim, device):
            return dra.Prepared()


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""


def pod(name: str, *command: str) -> dict[str, Any]:
    container = {"name": "singer", "image": "x", "command": list(command)}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


@asynccontextmanager
async def sandbox(directory: Path, pods: list[dict[str, Any]], nodes: int) -> AsyncIterator[tuple[Client, int]]:
    """Run ``dra-kit sandbox`` with running pods; yield a client and the process ID."""
    driver, manifests, kubeconfig = directory / "pizzeria.py", directory / "pods.json", directory / "kubeconfig"
    driver.write_text(textwrap.dedent(_DRIVER))
    manifests.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": pods}))
    options = ["--keep", "--nodes", str(nodes), "--timeout", "300", "--kubeconfig", str(kubeconfig)]
    command = [str(DRA_KIT), "sandbox", str(driver), "-f", str(manifests), *options]
    with (directory / "view").open("wb") as view:
        process = await asyncio.create_subprocess_exec(*command, stdout=view, stderr=view)
        try:
            while not kubeconfig.exists() or not kubeconfig.read_text():
                if process.returncode is not None:
                    raise RuntimeError((directory / "view").read_text())
                await asyncio.sleep(0.05)
            async with Client(await load_credentials(kubeconfig), user_agent="benchmark") as client:
                await _all_run(client, len(pods))
                yield client, process.pid
        finally:
            process.send_signal(signal.SIGINT)
            await process.wait()


async def _all_run(client: Client, number: int) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        found = (await client.list(PODS, "default")).items
        if sum(item.get("status", {}).get("phase") == "Running" for item in found) == number:
            return
        await asyncio.sleep(0.2)
    raise TimeoutError("the pods do not come to run")


async def gets(client: Client, name: str, seconds: float) -> list[float]:
    """Return the milliseconds of consecutive GETs of a pod."""
    taken = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter()
        await client.get(PODS, name, "default")
        taken.append((time.perf_counter() - begin) * 1000)
        await asyncio.sleep(_PAUSE)
    return taken


def p95(figures: list[float]) -> float:
    return statistics.quantiles(figures, n=20)[-1]


async def figures(directory: Path) -> dict[str, float]:
    """Measure for a minute after all logs have reached their maximum size."""
    pods = [pod(f"singer-{number}", "yes", "la la la") for number in range(LOUD)]
    async with sandbox(directory, pods, NODES) as (client, pid):
        await asyncio.sleep(_FULL_SECONDS)
        memory, cpu = memory_mib(pid), cpu_seconds(pid)
        taken = await gets(client, "singer-0", _MINUTE)
        return {
            "get": p95(taken),
            "growth": max(memory_mib(pid) - memory, 0.0),
            "memory": memory_mib(pid),
            "cpu": (cpu_seconds(pid) - cpu) / _MINUTE,
        }


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(figures(Path(directory)))
    return [
        Row(f"sandbox: GET p95 with {LOUD} loud pods", found["get"], "ms", BUDGET_GET),
        Row("sandbox: memory with them, growth in a minute", found["growth"], "MiB", BUDGET_GROWTH),
        Row("sandbox: memory with them", found["memory"], "MiB", None),
        Row("sandbox: processors that it takes with them", found["cpu"], "", None),
    ]


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.loud_pods", __doc__, measure))
