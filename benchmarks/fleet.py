"""``python -m benchmarks.fleet``: the API server's side of 100 and of 1,000 nodes; exit 1 when a budget is exceeded.

Each node is the part of the node role that speaks with the API server: its publisher, its watch (kopf in its own
thread), and the reader of claims. All nodes are in one process. The API server is the embedded one, in another process.
With ``--cluster``, it is a real control plane's, with TLS; what it needs when idle is subtracted.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.table import Row, part
from benchmarks.world import cpu_seconds
from dra_kit.apiserver.server import ApiServer
from dra_kit.author.device import Device
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials, load_credentials
from dra_kit.client.resources import NODES, RESOURCE_CLAIMS
from dra_kit.client.transport import ClientRequest
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reader import ClaimReader
from dra_kit.node.context import ClusterFacts
from dra_kit.node.slices import NodeScope, SliceWatch
from dra_kit.slices.publisher import CHECK_AFTER_WRITE, CHECK_EVERY, Publisher
from tests.cluster.find import NotFound, find
from tests.cluster.plane import PlaneError, start

DRIVER = "bench.example.com"
DEVICES = 8  # per node
SMALL, LARGE = 100, 1000
TURNS = 2  # of both sizes
_OPEN = "apiserver_longrunning_requests"
_SAMPLE = re.compile(rf"^(apiserver_request_total|{_OPEN})\{{(.*)\}} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SETTLE = 5.0
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
        nodes: how many it has.
    """

    def __init__(self, pid: int, directory: Path, nodes: int) -> None:
        self.pid = pid
        self.directory = directory
        self.nodes = nodes

    idle = 0.0
    """Processor time that it needs without clients, in each second."""

    async def settle(self) -> None:
        """Wait until no request has come for a second."""
        before = await self.requests()
        while True:
            await asyncio.sleep(1)
            now = await self.requests()
            if now == before:
                return
            before = now

    async def claims(self) -> list[ClaimReference]:
        """Return the first claim of each node."""
        return [claim_of(number, 0) for number in range(self.nodes)]

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

    async def credentials(self) -> Credentials:
        return Credentials(Connection("http://localhost", socket=str(self.directory / "socket")))


class KubeServer(Server):
    """A real kube-apiserver; ``directory`` is its kubeconfig."""

    async def settle(self) -> None:
        """Wait some seconds: its metrics take more of its processor time than a request."""
        await asyncio.sleep(_SETTLE)

    async def measure_idle(self) -> None:
        """Find out what it needs without clients: the least of some seconds, while controllers see the new nodes."""
        found = []
        for _ in range(4):
            cpu = cpu_seconds(self.pid)
            await asyncio.sleep(_SETTLE)
            found.append((cpu_seconds(self.pid) - cpu) / _SETTLE)
        self.idle = min(found)

    async def fill(self) -> None:
        """Create the nodes, and an allocated claim of each."""
        limit = asyncio.Semaphore(AT_ONCE)
        async with Client(await self.credentials(), user_agent="bench") as client:

            async def one(number: int) -> None:
                async with limit:
                    await client.create(NODES, _node(number))
                    claim = _claim(number, 0)
                    created = await client.create(RESOURCE_CLAIMS, claim, claim["metadata"]["namespace"])
                    await client.update(RESOURCE_CLAIMS, created | {"status": claim["status"]}, subresource="status")

            await asyncio.gather(*map(one, range(self.nodes)))

    async def claims(self) -> list[ClaimReference]:
        async with Client(await self.credentials(), user_agent="bench") as client:
            listed = await client.list(RESOURCE_CLAIMS)
        uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in listed.items}
        return [replace(claim, uid=uids[claim.name]) for claim in await super().claims()]

    async def requests(self, agent: str = "") -> Counter[str]:
        del agent
        async with Client(await self.credentials(), user_agent="bench") as client:
            answer = await client.exchange(replace(ClientRequest.of_path("/metrics"), accept="text/plain"))
        found: Counter[str] = Counter()
        for name, labels, value in _SAMPLE.findall(answer.text.decode()):
            label = dict(_LABEL.findall(labels))
            verb, resource = label["verb"].lower(), label["resource"]
            # a watch is counted when it ends; before, it is one of those that are open
            is_current = (verb == "watch") == (name == _OPEN)
            if is_current and resource == "resourceslices":  # controllers of Kubernetes read new nodes, too
                found[f"{verb} {resource}"] += int(float(value))
        return found

    async def credentials(self) -> Credentials:
        return await load_credentials(self.directory)


@contextmanager
def real(nodes: int) -> Iterator[KubeServer]:
    """Run a real control plane with so many nodes, and an allocated claim of each.

    Raises:
        NotFound: there is none on this machine.
        PlaneError: it does not start.
    """
    with start(replace(find(), node=False)) as plane:
        port = (asyncio.run(load_credentials(plane.kubeconfig))).connection.server.rpartition(":")[2]
        server = KubeServer(_process_with(f"--secure-port={port}"), plane.kubeconfig, nodes)
        asyncio.run(server.fill())
        yield server


def _process_with(argument: str) -> int:
    """Return the process that was started with an argument."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and argument.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return int(folder.name)
    raise SystemExit(f"no process was started with {argument}")


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
            yield Server(process.pid, directory, nodes)
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

    def __init__(self, credentials: Credentials, number: int, claim: ClaimReference) -> None:
        self._claim = claim
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
        await self._reader.fetch(self._claim)


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


def run_fleet(directory: str, pid: int, nodes: int, idle: float, *, cluster: bool) -> None:
    """Measure one fleet, in a process of its own, and print the figures."""
    server = (KubeServer if cluster else Server)(pid, Path(directory), nodes)
    print(json.dumps(vars(asyncio.run(_measured(server, idle)))), flush=True)
    os._exit(0)  # the threads of a thousand watches are not worth a wait


class _Meter:
    """The API server's processor time from now on, in milliseconds, without that of an idle one."""

    def __init__(self, server: Server) -> None:
        self._server, self._cpu, self._begun = server, cpu_seconds(server.pid), time.monotonic()

    def read(self) -> float:
        idle = self._server.idle * (time.monotonic() - self._begun)
        return (cpu_seconds(self._server.pid) - self._cpu - idle) * 1000


async def _measured(server: Server, idle: float) -> Figures:
    nodes, credentials = server.nodes, await server.credentials()
    fleet = [FleetNode(credentials, number, claim) for number, claim in enumerate(await server.claims())]
    if isinstance(server, KubeServer):
        await server.measure_idle()
    before = await server.requests()
    meter, begun = _Meter(server), time.monotonic()
    limit = asyncio.Semaphore(AT_ONCE)

    async def start(node: FleetNode) -> None:
        async with limit:
            await node.start()

    async def read(node: FleetNode) -> None:
        async with (
            limit if isinstance(server, KubeServer) else nullcontext()
        ):  # new connections with TLS keep each other waiting
            await node.read_claim()

    await asyncio.gather(*map(start, fleet))
    while (await server.requests() - before)["watch resourceslices"] < nodes:  # noqa: ASYNC110 - another process counts
        await asyncio.sleep(0.1)
    seconds = time.monotonic() - begun
    await server.settle()
    started = meter.read() / nodes
    requests = await server.requests()

    await asyncio.sleep(CHECK_AFTER_WRITE * 1.5)  # each node checks what it has written at its start
    checked = await server.requests()
    meter = _Meter(server)
    for node in fleet[:: nodes // CHANGES][:CHANGES]:
        node.change()
        await node.publisher.up_to_date.wait()
    await server.settle()
    change, change_requests = meter.read() / CHANGES, await server.requests() - checked

    meter = _Meter(server)
    for _ in range(3):
        await asyncio.gather(*map(read, fleet))
    get = meter.read() / nodes / 3
    at_start = {key: number / nodes for key, number in (requests - before).items()}
    return Figures(
        seconds, started, at_start, change, change_requests.total() / CHANGES, get, await _per_second(server, idle)
    )


async def _per_second(server: Server, seconds: float) -> list[int]:
    found = []
    begun, before = time.monotonic(), (await server.requests()).total()
    while time.monotonic() - begun < seconds:
        await asyncio.sleep(1)
        now = (await server.requests()).total()
        found.append(now - before)
        before = now
    return found


def fleet(nodes: int, idle: float = 0.0, *, cluster: bool = False) -> Figures:
    """Measure one fleet at one API server; both are new."""
    with (
        tempfile.TemporaryDirectory() as directory,
        real(nodes) if cluster else served(Path(directory), nodes) as server,
    ):
        arguments = f"{str(server.directory)!r}, {server.pid}, {nodes}, {idle}, cluster={cluster}"
        code = f"from benchmarks.fleet import run_fleet; run_fleet({arguments})"
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


def measure_cluster() -> Sequence[Row]:
    """The rows of a real control plane: it is the judge of what an administrator sees."""
    try:
        small, large = fleet(SMALL, cluster=True), fleet(LARGE, cluster=True)
    except (NotFound, PlaneError) as error:
        raise SystemExit(f"no figures without a real control plane: {error}") from None
    started = sum(large.requests.values())
    print(f"processors: {os.cpu_count()}, load: {os.getloadavg()[0]:.1f}; requests at start: {large.requests}")
    name = f"kube-apiserver, {LARGE} nodes"
    return [
        Row(f"{name}, {AT_ONCE} at once: until all publish and watch", large.seconds, "s", None),
        Row(f"{name}: requests for slices at start, per node", started, "", 6),
        Row(f"{name}: the same by that of {SMALL}", started / sum(small.requests.values()), "times", 1.1),
        Row(f"{name}: its CPU at start, per node", large.server, "ms", None),
        Row(f"{name}: the same by that of {SMALL}", large.server / small.server, "times", GROWTH),
        Row(f"{name}: requests for one change of one", large.change_requests, "", 2.5),
        Row(f"{name}: its CPU for the GET of a claim", large.get, "ms", None),
        Row(f"{name}: the same by that of {SMALL}", large.get / small.get, "times", GROWTH),
    ]


if __name__ == "__main__":
    if "--cluster" in sys.argv[1:]:
        sys.argv.remove("--cluster")
        measure = measure_cluster
    sys.exit(part("python -m benchmarks.fleet", __doc__, measure))
