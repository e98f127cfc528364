"""``python -m benchmarks.sandbox``: the time until a pod runs in the sandbox, and the cost of a hundred pods."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

from benchmarks.table import Row, part

BUDGET_FIRST_LINE = 0.3  # seconds from exec to the first line
BUDGET_FIRST_POD = 1.5  # seconds from exec to the first pod that runs
BUDGET_IDLE = 2.0  # thousandths of a CPU, for an idle sandbox
IDLE_SECONDS = 30.0  # of the measurement
SETTLE_SECONDS = 5.0  # between the start and the measurement
NODES = 10
PODS = 100
DEVICES = 16  # per node

DRIVER = f"""
    from collections.abc import Iterator, Sequence

    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield [dra.Device(name=f"pizza-{{i}}", attributes={{"dough": "pan"}}) for i in range({DEVICES})]


    class Waiter(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared(env={{f"{{device.env_name}}_HOT": "yes"}})


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""
MANIFESTS: list[dict[str, Any]] = [
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "pizza"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "dra.pizza"'}}]},
    },
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-pizza"},
        "spec": {"spec": {"devices": {"requests": [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]}}},
    },
]


def pod(number: int, *command: str) -> dict[str, Any]:
    claims = [{"name": "pizza"}]
    container = {"name": "eater", "image": "x", "command": list(command), "resources": {"claims": claims}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"guest-{number}", "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "resourceClaims": [{"name": "pizza", "resourceClaimTemplateName": "one-pizza"}],
        },
    }


def first_pod(directory: Path) -> tuple[float, float]:
    """Seconds from exec of ``dra-kit sandbox`` to its first line, and to the line that says that a pod runs."""
    manifests = directory / "order.json"
    items = [*MANIFESTS, pod(0, "true")]
    manifests.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "metadata": {"name": "all"}, "items": items}))
    command = [str(Path(sys.executable).with_name("dra-kit")), "sandbox", str(driver(directory)), "-f", str(manifests)]
    begin = time.monotonic()
    line_after, pod_after = float("nan"), float("nan")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            if not number:
                line_after = time.monotonic() - begin
            if "has started and gets from its claims" in line:
                pod_after = time.monotonic() - begin
    return line_after, pod_after


def idle(directory: Path) -> float:
    """Return the CPU usage of an idle sandbox with a driver in thousandths."""
    command = [str(Path(sys.executable).with_name("dra-kit")), "sandbox", str(driver(directory))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "everything runs until Ctrl-C" in line:
                break
        time.sleep(SETTLE_SECONDS)
        before = cpu_seconds(process.pid)
        time.sleep(IDLE_SECONDS)
        taken = cpu_seconds(process.pid) - before
        process.send_signal(signal.SIGINT)
        process.communicate()
    return taken / IDLE_SECONDS * 1000


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def driver(directory: Path) -> Path:
    path = directory / "pizzeria.py"
    path.write_text(textwrap.dedent(DRIVER))
    return path


async def many_pods(directory: Path) -> dict[str, float]:
    """Return for a hundred pods with claims on ten nodes: seconds until all run and are deleted, and MiB of memory."""
    from dra_kit.author.target import load_drivers
    from dra_kit.client.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
    from dra_kit.client.resources import PODS as POD_RESOURCE
    from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
    from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver

    drivers = tuple(load_drivers(str(driver(directory)), NODES))
    begin = time.monotonic()
    async with Sandbox(SandboxDriver(drivers), SandboxSettings(nodes=NODES, time_scale=10)) as sandbox:
        start = time.monotonic() - begin
        client, objects = sandbox.client, sandbox.informers.objects
        await client.create(DEVICE_CLASSES, MANIFESTS[0])
        await client.create(RESOURCE_CLAIM_TEMPLATES, MANIFESTS[1], "default")
        begin = time.monotonic()
        await asyncio.gather(*(client.create(POD_RESOURCE, pod(number, "sleep", "3600")) for number in range(PODS)))

        def running() -> int:
            return sum(item.get("status", {}).get("phase") == "Running" for item in objects(POD_RESOURCE).values())

        await poll(lambda: running() == PODS)
        served = time.monotonic() - begin
        begin = time.monotonic()
        names = [item["metadata"]["name"] for item in objects(POD_RESOURCE).values()]
        await asyncio.gather(*(client.delete(POD_RESOURCE, name, "default") for name in names))
        await poll(lambda: not objects(POD_RESOURCE) and not objects(RESOURCE_CLAIMS))
        gone = time.monotonic() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    return {"start": start, "served": served, "gone": gone, "memory": memory, "cpu": cpu}


async def poll(condition: Any) -> None:
    end = time.monotonic() + 300
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the sandbox does not come to an end")
        await asyncio.sleep(0.02)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        firsts = [first_pod(directory) for _ in range(3)]
        at_rest = idle(directory)
        many = asyncio.run(many_pods(directory))
    return [
        Row("sandbox: exec to first line", min(line for line, _ in firsts), "s", BUDGET_FIRST_LINE),
        Row("sandbox: exec to first pod served", min(pod for _, pod in firsts), "s", BUDGET_FIRST_POD),
        Row("sandbox: CPU while nothing is done", at_rest, "mCPU", BUDGET_IDLE),
        Row(f"sandbox: start with {NODES} nodes", many["start"], "s", None),
        Row(f"sandbox: {PODS} pods on {NODES} nodes, all running", many["served"], "s", None),
        Row(f"sandbox: {PODS} pods on {NODES} nodes, all gone", many["gone"], "s", None),
        Row("sandbox: memory of it", many["memory"], "MiB", None),
        Row("sandbox: CPU of it", many["cpu"], "s", None),
    ]


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.sandbox", __doc__, measure))
