"""``python -m benchmarks.fleet``: the API server's side of 100 and of 1,000 nodes; exit 1 when a budget is exceeded.

Each node is the part of the node role that speaks with the API server: its publisher, its watch (kopf in its own
thread), and the reader of claims. All nodes are in one process. The API server is the embedded one, in another process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.table import Row, part
from benchmarks.world import cpu_seconds
from dra_kit.apiserver.server import ApiServer
from dra_kit.author.device import Device
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reader import ClaimReader
from dra_kit.node.context import ClusterFacts
from dra_kit.node.slices import NodeScope, SliceWatch
from dra_kit.slices.publisher import CHECK_EVERY, Publisher

DRIVER = "bench.example.com"
DEVICES = 8  # per node
SMALL, LARGE = 100, 1000
TURNS = 2  # of both sizes
AT_ONCE = 50
"""Nodes that start at the same time: more in one process keep each other waiting, until their requests time out."""
CHANGES = 40  # of one device each, on different nodes
GROWTH = 1.5  # at most, for one node among 1,000 by one among 100
IDLE = 60.0
"""Seconds without a change: every node checks its slices once more in them, 35 s or more after its write."""


class Server:
    """An API server in a process of its own, with nodes and an allocated claim of each.

    Attributes:
        pid: of the process.
        directory: of its ``socket``, which takes any number of connections, and its ``kubeconfig``.
    """

    def __init__(self, pid: int, directory: Path) -> None:
        self.pid = pid
        self.directory = directory

    async def requests(self, agent: str = "") -> Counter[str]:
        """Return the requests for objects so far as ``verb resource``, of clients whose name contains ``agent``."""
        path = self.directory / "requests"
        path.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        while not path.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        found: Counter[str] = Counter()
        for name, verb, resource, number in json.loads(path.read_text()):
            if agent in name:
                found[f"{verb} {resource}"] += number
        return found

    @property
    def credentials(self) -> Credentials:
        return Credentials(Connection("http://localhost", socket=str(self.directory / "socket")))


@contextmanager
def served(directory: Path, nodes: int, claims: int = 1) -> Iterator[Server]:
    """Run an API server with so many nodes, and so many allocated claims of each."""
    code = f"from benchmarks.fleet import serve; serve({str(directory)!r}, {nodes}, {claims})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            while not (directory / "kubeconfig").exists():
                if process.poll() is not None:
                    raise SystemExit("the API server ended by itself")
                time.sleep(0.02)
            yield Server(process.pid, directory)
        finally:
            process.terminate()


def serve(directory: str, nodes: int, claims: int) -> None:
    """The API server, until SIGTERM; on SIGUSR1 it writes down what it was asked for."""
    folder = Path(directory)

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        server = ApiServer(garbage_collection=False)  # it would delete claims whose pods do not exist
        server.socket = folder / "socket"
        async with server:
            for number in range(nodes):
                _store(server, "nodes", "", _node(number))
                for device in range(claims):
                    _store(server, "resourceclaims.resource.k8s.io", "default", _claim(number, device))
            loop.add_signal_handler(signal.SIGUSR1, _write_requests, server, folder)
            _replace(folder / "kubeconfig", yaml.safe_dump(server.kubeconfig()))
            await stop.wait()

    asyncio.run(run())


def _store(server: ApiServer, resource: str, namespace: str, item: dict[str, Any]) -> None:
    kind = server.api.registry.by_name(resource)
    assert kind is not None
    server.api.storage.create(kind.resource, kind.key(namespace, item["metadata"]["name"]), item)


def _write_requests(server: ApiServer, folder: Path) -> None:
    _replace(folder / "requests", json.dumps([[*key, number] for key, number in server.requests.items()]))


def _replace(path: Path, text: str) -> None:
    part_ = path.with_suffix(".part")
    part_.write_text(text)
    part_.rename(path)


def _node(number: int) -> dict[str, Any]:
    metadata = {"name": f"node-{number}", "uid": f"node-{number}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def claim_of(node: int, device: int) -> ClaimReference:
    """Return the claim that has a device of a node."""
    name = f"claim-{node}-{device}"
    return ClaimReference("default", name, name)


def _claim(node: int, device: int) -> dict[str, Any]:
    result = {"request": "device", "driver": DRIVER, "pool": f"node-{node}", "device": f"device-{device}"}
    reference = claim_of(node, device)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": reference.name,
            "namespace": reference.namespace,
            "uid": reference.uid,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": "bench"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


class FleetNode:
    """The part of a node that speaks with the API server."""

    def __init__(self, credentials: Credentials, number: int) -> None:
        self._number = number
        self._credentials = credentials
        self._client = Client(credentials, user_agent=f"{DRIVER} dra-kit/node")
        name = f"node-{number}"
        facts = ClusterFacts(self._client, name, lambda _: None)
        self.publisher = Publisher(NodeScope(DRIVER, name, facts), self._client)
        self._watch = SliceWatch(credentials, DRIVER, name, self.publisher)
        self._reader = ClaimReader(self._client, DRIVER)
        self._state = 0

    async def start(self) -> None:
        """Publish the devices, then watch the slices, as a node does; return when it has opened the watch."""
        loop = asyncio.get_running_loop()
        published, watching = asyncio.Event(), asyncio.Event()
        self.change()
        self._tasks = [loop.create_task(self.publisher.run(published))]
        await published.wait()
        self._tasks.append(loop.create_task(self._watch.run(watching)))
        await watching.wait()

    def change(self) -> None:
        """Let one device of the node look different."""
        self._state += 1
        devices = [Device(name=f"device-{index}", attributes={"state": self._state}) for index in range(DEVICES)]
        self.publisher.publish(Inventory(pools=[Pool(devices=devices)]))

    async def read_claim(self) -> None:
        """GET the claim of this node, as for a prepare."""
        await self._reader.fetch(claim_of(self._number, 0))


@dataclass
class Figures:
    """What one fleet took.

    Attributes:
        seconds: from its start until all nodes have published, and watch.
        server: milliseconds of the API server's processor time in it, per node.
        requests: of its start, per node, by verb and resource; without discovery, whose number is fixed.
        change: milliseconds of the API server's processor time for one change of one node.
        change_requests: that one change took.
        get: milliseconds of the API server's processor time for the GET of one claim, all nodes at once.
        idle: requests in each second without changes.
    """

    seconds: float
    server: float
    requests: dict[str, float]
    change: float
    change_requests: float
    get: float
    idle: list[int]


def run_fleet(directory: str, pid: int, nodes: int, idle: float) -> None:
    """Measure one fleet, in a process of its own, and print the figures."""
    print(json.dumps(vars(asyncio.run(_measured(Server(pid, Path(directory)), nodes, idle)))), flush=True)
    os._exit(0)  # the threads of a thousand watches are not worth a wait


async def _measured(server: Server, nodes: int, idle: float) -> Figures:
    fleet = [FleetNode(server.credentials, number) for number in range(nodes)]
    cpu, begun = cpu_seconds(server.pid), time.monotonic()
    limit = asyncio.Semaphore(AT_ONCE)

    async def start(node: FleetNode) -> None:
        async with limit:
            await node.start()

    await asyncio.gather(*map(start, fleet))
    while (await server.requests())["watch resourceslices"] < nodes:  # noqa: ASYNC110 - another process counts
        await asyncio.sleep(0.1)
    seconds = time.monotonic() - begun
    requests = await _settled(server)
    started = (cpu_seconds(server.pid) - cpu) / nodes * 1000

    cpu = cpu_seconds(server.pid)
    for node in fleet[:: nodes // CHANGES][:CHANGES]:
        node.change()
        await node.publisher.up_to_date.wait()
    after = await _settled(server)
    change, change_requests = (cpu_seconds(server.pid) - cpu) / CHANGES * 1000, after - requests

    cpu = cpu_seconds(server.pid)
    for _ in range(3):
        await asyncio.gather(*(node.read_claim() for node in fleet))
    get = (cpu_seconds(server.pid) - cpu) / nodes / 3 * 1000
    return Figures(
        seconds, started, {key: number / nodes for key, number in requests.items()},
        change, change_requests.total() / CHANGES, get, await _per_second(server, idle),
    )  # fmt: skip


async def _settled(server: Server) -> Counter[str]:
    """Wait until no request has come for a second; return all so far."""
    before = await server.requests()
    while True:
        await asyncio.sleep(1)
        now = await server.requests()
        if now == before:
            return now
        before = now


async def _per_second(server: Server, seconds: float) -> list[int]:
    found = []
    begun, before = time.monotonic(), (await server.requests()).total()
    while time.monotonic() - begun < seconds:
        await asyncio.sleep(1)
        now = (await server.requests()).total()
        found.append(now - before)
        before = now
    return found


def fleet(nodes: int, idle: float = 0.0) -> Figures:
    """Measure one fleet at one API server; both are new."""
    with tempfile.TemporaryDirectory() as directory, served(Path(directory), nodes) as server:
        code = f"from benchmarks.fleet import run_fleet; run_fleet({directory!r}, {server.pid}, {nodes}, {idle})"
        done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, timeout=600)
    return Figures(**json.loads(done.stdout))


def measure() -> Sequence[Row]:
    """All rows; the sizes take turns, because the load of a shared machine changes."""
    found: dict[int, list[Figures]] = {SMALL: [], LARGE: []}
    for turn in range(TURNS):
        found[SMALL].append(fleet(SMALL))
        found[LARGE].append(fleet(LARGE, IDLE if turn == TURNS - 1 else 0.0))

    def median(nodes: int, name: str) -> float:
        values: list[float] = [getattr(figures, name) for figures in found[nodes]]
        return statistics.median(values)

    def grows(name: str) -> float:
        return median(LARGE, name) / median(SMALL, name)

    small, large = found[SMALL][-1], found[LARGE][-1]
    started = sum(large.requests.values())
    print(f"processors: {os.cpu_count()}, load: {os.getloadavg()[0]:.1f}; requests at start: {large.requests}")
    return [
        Row(f"{LARGE} nodes, {AT_ONCE} at once: until all publish and watch", median(LARGE, "seconds"), "s", None),
        Row(f"{LARGE} nodes: requests for objects at start, per node", started, "", 7),
        Row(f"{LARGE} nodes: the same by that of {SMALL}", started / sum(small.requests.values()), "times", 1.1),
        Row(f"{LARGE} nodes: watches per node", large.requests["watch resourceslices"], "", 1),
        Row(f"{LARGE} nodes: API server's CPU at start, per node", median(LARGE, "server"), "ms", None),
        Row(f"{LARGE} nodes: the same by that of {SMALL}", grows("server"), "times", GROWTH),
        Row(f"{LARGE} nodes: requests for one change of one", median(LARGE, "change_requests"), "", 2.5),
        Row(f"{LARGE} nodes: API server's CPU for it", median(LARGE, "change"), "ms", None),
        Row(f"{LARGE} nodes: the same by that of {SMALL}", grows("change"), "times", GROWTH),
        Row(f"{LARGE} nodes: API server's CPU for the GET of a claim", median(LARGE, "get"), "ms", None),
        Row(f"{LARGE} nodes: the same by that of {SMALL}", grows("get"), "times", GROWTH),
        Row(f"{LARGE} nodes: most requests in a second, unchanged", max(large.idle), "", LARGE / 10),
        Row(f"{LARGE} nodes: requests a second later, by schedule", LARGE / (CHECK_EVERY * 1.25), "", 2),
    ]


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.fleet", __doc__, measure))
