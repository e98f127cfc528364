"""Checks of a real cluster, against the project's API server; a coroutine stands for scheduler, kubelet and driver."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from dra_kit.apiserver.pod_log import PodLogOptions
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
    Resource,
)
from dra_kit.client.transport import ClientRequest, ClientResponse
from dra_kit.conformance import real_cluster
from dra_kit.conformance.kubelet import KubeletMetrics
from dra_kit.conformance.profile import DriverProfile, injected, printed_edits
from dra_kit.conformance.real_cluster import (
    LABELS,
    ClusterBench,
    RealClusterSettings,
    judge_in_cluster,
)
from dra_kit.conformance.runner import ConformanceReport, RunProgress
from dra_kit.errors import ConfigurationError, Forbidden, KubeError, NotFound, Unavailable
from dra_kit.kubelet.cdi.spec import DeviceNode, Mount, SpecEdits

DRIVER = "gpu.example.com"
NODE = "node-1"
slow = pytest.mark.processes  # each has an API server, which takes half a second
PASSED = {f"C{number}": "passed" for number in range(1, 8)}
SCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}


class Clock:
    """The time of the checks: it passes quickly while the simulated node does not do what it should."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def forward(self, seconds: float) -> None:
        self.ahead += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(real_cluster, "time", clock)
    monkeypatch.setattr(real_cluster, "STEADY_SECONDS", 0.2)
    return clock


def profile(**fields: Any) -> DriverProfile:
    waits = {"podWithin": 60, "startWithin": 60, "restoredWithin": 60, "steadyAfter": 0}
    return DriverProfile.model_validate({**waits, "expect": {"env": {"GPU": "gpu-*"}}, **fields})


class Told(RunProgress):
    """What a run says of its end."""

    def __init__(self) -> None:
        self.remaining: list[str] = []

    @override
    def remains(self, text: str) -> None:
        self.remaining.append(text)


_STEP = 5.0  # seconds that pass with each look at a pod that stays as it is


class SimulatedCluster:
    """Scheduler, kubelet and driver of a node with two devices; right in everything but one fault."""

    def __init__(self, client: Client, fault: str, clock: Clock) -> None:
        self._client = client
        self._fault = fault
        self._clock = clock

    async def publish(self) -> None:
        node = await self._client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await self._client.patch(NODES, NODE, ready, subresource="status")
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"]}
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 2 if self._fault == "incomplete" else 1}
        devices = [{"name": "gpu-0"}, {"name": "gpu-1"}]
        await self._client.create(RESOURCE_SLICES, {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "gpus", "ownerReferences": [] if self._fault == "ownerless" else [owner]},
            "spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices},
        })  # fmt: skip

    async def work(self) -> None:
        number = 0
        while True:
            if self._fault == "restless":
                number += 1
                labels = {"metadata": {"labels": {"number": str(number)}}}
                await self._client.patch(RESOURCE_SLICES, "gpus", labels)
            for pod in (await self._client.list(PODS)).items:
                with suppress(KubeError):  # the checks may just change it
                    await self._handle(pod)
            await asyncio.sleep(0.005)

    async def _handle(self, pod: Mapping[str, Any]) -> None:
        metadata, status = pod["metadata"], pod.get("status", {})
        name, namespace = metadata["name"], metadata["namespace"]
        if "deletionTimestamp" in metadata:
            if self._fault == "kept":
                self._clock.ahead += _STEP
            else:
                await self._client.delete(PODS, name, namespace, grace_period_seconds=0)
        elif not pod["spec"].get("nodeName"):
            if self._fault != "idle":
                await self._schedule(name, namespace)
        elif self._fault in {"refused", "unregistered"} or (self._fault == "spent" and name != "pod-1"):
            if "message" in status:
                self._clock.ahead += _STEP
            else:
                await self._event(pod)
                await self._client.patch(PODS, name, {"status": {"message": "told"}}, namespace, subresource="status")
        elif status.get("phase") != "Running":
            running = [
                {"name": item["name"], "image": "i", "imageID": "i", "ready": True, "restartCount": 0,
                 "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
                for item in pod["spec"]["containers"]
            ]  # fmt: skip
            patch = {"status": {"phase": "Running", "containerStatuses": running}}
            await self._client.patch(PODS, name, patch, namespace, subresource="status")

    async def _schedule(self, name: str, namespace: str) -> None:
        claims = (await self._client.list(RESOURCE_CLAIMS)).items
        used = {
            result["device"]
            for claim in claims
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        }
        if self._fault == "lost" and name != "pod-1":
            used.add("gpu-0")
            used.add("gpu-1")
        free = [device for device in ("gpu-0", "gpu-1") if device not in used]
        if not free or self._fault == "unschedulable":
            patch = {"status": {"conditions": [SCHEDULED]}}
            await self._client.patch(PODS, name, patch, namespace, subresource="status")
            self._clock.ahead += _STEP
            return
        claim = await self._client.get(RESOURCE_CLAIMS, name, namespace)
        driver = "other.example.com" if self._fault == "foreign" else DRIVER
        result = {"request": "device", "driver": driver, "pool": NODE, "device": free[0]}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}}
        await self._client.update(RESOURCE_CLAIMS, claim, subresource="status")
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self._client.create(PODS, binding, namespace, subresource="binding")

    async def _event(self, pod: Mapping[str, Any]) -> None:
        unknown = self._fault == "unregistered"
        note = f"DRA driver {DRIVER} is not registered" if unknown else "NodePrepareResources failed"
        metadata = pod["metadata"]
        await self._client.create(EVENTS, {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": "event-", "namespace": metadata["namespace"]},
            "regarding": {"kind": "Pod", "name": metadata["name"], "namespace": metadata["namespace"]},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "kubelet",
            "reportingInstance": NODE,
            "action": "Prepare",
            "type": "Warning",
            "reason": "FailedPrepareDynamicResources",
            "note": f"Failed to prepare dynamic resources: {note}",
        })  # fmt: skip

    async def log(self, pod: dict[str, Any], options: PodLogOptions) -> AsyncGenerator[bytes, None]:
        script = pod["spec"]["containers"][0]["command"][-1]
        mark = script.split()[1].removesuffix("env;")
        given = "GPU=gpu-0\0" if options.container == "with-claim" and self._fault != "bare" else ""
        yield f"{mark}env\nPATH=/bin\0{given}\n{mark}mounts\n{mark}files\n/dev/null\n{mark}end\n".encode()


@asynccontextmanager
async def cluster(clock: Clock, fault: str = "", made: type[Client] = Client) -> AsyncIterator[Client]:
    """A client of a cluster with a node."""
    async with ApiServer() as server, made(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        node = SimulatedCluster(client, fault, clock)
        server.serve_logs(node.log)
        await node.publish()
        task = asyncio.create_task(node.work())
        try:
            yield client
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def left(client: Client) -> list[str]:
    """Return the objects of a run that are still there."""
    namespaces, classes = await client.list(NAMESPACES), await client.list(DEVICE_CLASSES)
    names = [item["metadata"]["name"] for item in (*namespaces.items, *classes.items)]
    return [name for name in names if name.startswith("dra-conformance")]


async def verdict(
    client: Client, profile: DriverProfile, progress: RunProgress | None = None, *, only: str = ""
) -> ConformanceReport:
    settings = RealClusterSettings(subject=f"driver {DRIVER}", driver=DRIVER, profile=profile, only=only, poll=0.005)
    return await judge_in_cluster(client, settings, progress)


def statuses(report: ConformanceReport) -> dict[str, str]:
    return {item.check.id: str(item.status) for item in report.outcomes}


async def test_a_driver_that_does_all_of_it_passes_and_nothing_is_left(clock: Clock) -> None:
    told = Told()
    async with cluster(clock) as client:
        report = await verdict(client, profile(), told)
        assert statuses(report) == PASSED
        assert report.conforms
        assert report.subject == f"driver {DRIVER}, on node {NODE}"
        assert await left(client) == told.remaining == []


@slow
@pytest.mark.parametrize(
    ("fault", "fields", "changed", "evidence"),
    [
        ("ownerless", {}, {"C2": "failed"}, "slice gpus has ownerReferences []"),
        ("incomplete", {"restoredWithin": 0.05}, {"C2": "failed"}, "has 1 slices, and resourceSliceCount 2"),
        ("restless", {}, {"C2": "failed"}, "slice gpus was written"),
        ("bare", {}, {"C5": "failed"}, "variable GPU is missing"),
        ("bare", {"expect": None}, {"C5": "not applicable"}, "has the variables, mounts and files of one without"),
        (
            "unregistered", {},
            {"C1": "failed", **dict.fromkeys(["C4", "C5", "C6", "C7"], "not judged")},
            f"DRA driver {DRIVER} is not registered",
        ),
        (
            "refused", {}, {"C4": "failed", **dict.fromkeys(["C5", "C6", "C7"], "not judged")},
            "NodePrepareResources failed",
        ),
        ("kept", {}, {"C6": "failed", "C7": "not judged"}, "is still there after 60 s"),
        ("lost", {}, {"C7": "failed"}, "was released, and is not allocated again"),
        ("spent", {}, {"C7": "failed"}, "NodePrepareResources failed"),
        (
            "unschedulable", {},
            {"C3": "failed", **dict.fromkeys(["C1", "C4", "C5", "C6", "C7"], "not judged")},
            "PodScheduled: Unschedulable 0/1 nodes are available",
        ),
        (
            "foreign", {}, {"C3": "failed", **dict.fromkeys(["C1", "C4", "C5", "C6", "C7"], "not judged")},
            f"got devices of other.example.com, and none of {DRIVER}",
        ),
    ],
)  # fmt: skip
async def test_a_fault_fails_its_check(
    fault: str, fields: dict[str, Any], changed: dict[str, str], evidence: str, clock: Clock
) -> None:
    async with cluster(clock, fault) as client:
        report = await verdict(client, profile(**fields))
        assert statuses(report) == PASSED | changed
        told = "\n".join(line for item in report.outcomes if item.check.id in changed for line in item.evidence)
        assert evidence in told
        assert await left(client) == []


@slow
async def test_a_pod_that_does_not_end_is_deleted_by_force_and_named(clock: Clock) -> None:
    told = Told()
    async with cluster(clock, "kept") as client:
        await verdict(client, profile(), told, only="C6")
        assert len(told.remaining) == 1
        assert told.remaining[0].endswith("do not end, and are deleted by force: pod-1")
        assert (await client.list(PODS)).items == []


@slow
async def test_a_class_of_the_cluster_is_used_and_stays(clock: Clock) -> None:
    async with cluster(clock) as client:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
        await client.create(DEVICE_CLASSES, body)
        report = await verdict(client, profile(deviceClass="gpu"), only="C3")
        assert statuses(report) == {"C3": "passed"}
        assert [item["metadata"]["name"] for item in (await client.list(DEVICE_CLASSES)).items] == ["gpu"]


@slow
async def test_a_class_or_node_that_does_not_exist_is_named(clock: Clock) -> None:
    async with cluster(clock) as client:
        with pytest.raises(ConfigurationError, match="DeviceClass none does not exist; create it"):
            await verdict(client, profile(deviceClass="none"))
        settings = RealClusterSettings(subject="x", driver=DRIVER, profile=profile(), node="node-7")
        with pytest.raises(ConfigurationError, match="node node-7 does not exist"):
            await judge_in_cluster(client, settings)
        assert await left(client) == []


@slow
async def test_an_interrupted_run_leaves_nothing(clock: Clock) -> None:
    async with cluster(clock, "idle") as client:
        run = asyncio.create_task(verdict(client, profile(), only="C3"))
        while not (await client.list(PODS)).items:  # noqa: ASYNC110 - the API server tells
            await asyncio.sleep(0.005)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert await left(client) == []
        assert (await client.list(PODS)).items == []


class Measured(Client):
    """A client of a cluster whose kubelet has found the driver's socket.

    Attributes:
        unanswered: requests for its metrics without an answer that remain.
        unregistered: requests that remain until it has registered the driver.
        asked: called at each request.
    """

    unanswered: float = 0
    unregistered: float = 0
    asked: Callable[[], None] = staticmethod(lambda: None)

    @override
    async def exchange(self, call: ClientRequest) -> ClientResponse:
        if call.path != f"/api/v1/nodes/{NODE}/proxy/metrics":
            return await super().exchange(call)
        self.asked()
        self.unanswered -= 1
        if self.unanswered >= 0:
            raise Unavailable("the kubelet does not answer")
        self.unregistered -= 1
        states = ["desired"] if self.unregistered >= 0 else ["desired", "actual"]
        name, path = "plugin_manager_total_plugins", f"/reg/{DRIVER}-reg.sock"
        lines = [sample(name, 1, socket_path=path, state=f"{state}_state_of_world") for state in states]
        return ClientResponse(call, "\n".join(lines).encode())


@slow
async def test_a_registration_is_found_once_the_kubelet_answers(clock: Clock) -> None:
    async with cluster(clock, "unschedulable", Measured) as client:
        assert isinstance(client, Measured)
        client.unanswered = 2

        assert statuses(await verdict(client, profile(), only="C1")) == {"C1": "passed"}


@slow
async def test_a_kubelet_that_never_answers_is_named(clock: Clock) -> None:
    async with cluster(clock, "unschedulable", Measured) as client:
        assert isinstance(client, Measured)
        client.unanswered = math.inf
        client.asked = partial(clock.forward, _STEP)

        report = await verdict(client, profile(), only="C1")

        assert statuses(report) == {"C1": "not judged"}
        assert "metrics cannot be read: the kubelet does not answer" in report.outcomes[0].evidence[0]


@slow
@pytest.mark.parametrize(
    ("fault", "unregistered", "status"), [("", 20, "passed"), ("unregistered", math.inf, "failed")]
)
async def test_a_kubelet_that_waits_after_failures_at_the_socket_gets_the_time(
    fault: str, unregistered: float, status: str, clock: Clock
) -> None:
    async with cluster(clock, fault, Measured) as client:
        assert isinstance(client, Measured)
        client.unregistered = unregistered
        client.asked = partial(clock.forward, _STEP)
        start = clock.monotonic()

        report = await verdict(client, profile(startWithin=30), only="C1")

        assert statuses(report) == {"C1": status}
        assert clock.monotonic() - start > 90
        found = "; it has found /reg/gpu.example.com-reg.sock, and its log says why it is not registered"
        assert [found in line for line in report.outcomes[0].evidence[:1]] == [True] * (status == "failed")


CLASS = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: gpu, labels: {a: b}}\nspec: {}\n"


class Refusing(Client):
    """A client that may delete pods by force only, and no class of a run."""

    refused = 0

    @override
    async def delete(self, resource: Resource, name: str, namespace: str | None = None, **options: Any) -> None:
        by_force = options.get("grace_period_seconds") == 0
        if (resource == PODS and not by_force) or (resource == DEVICE_CLASSES and name != "gpu"):
            self.refused += 1
            raise Forbidden(f"{name} may not be deleted")
        await super().delete(resource, name, namespace, **options)


@slow
async def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "classes.yaml").write_text(CLASS)
    told = Told()
    async with cluster(clock, made=Refusing) as client:
        assert isinstance(client, Refusing)
        run = asyncio.create_task(
            verdict(client, profile(deviceClasses=str(tmp_path / "classes.yaml")), told, only="C3")
        )
        while not run.done():
            clock.ahead += _STEP * bool(client.refused)
            await asyncio.sleep(0.005)
        assert [item for item in told.remaining if "may not be deleted" in item] == [
            "pod-1 may not be deleted", f"{(await left(client))[0]} may not be deleted",
        ]  # fmt: skip
        assert (await client.list(PODS)).items == []
        assert [item["metadata"]["name"] for item in (await client.list(DEVICE_CLASSES)).items] == await left(client)


class Recording(Client):
    """A client that keeps what it created."""

    made: dict[str, dict[str, Any]]

    @override
    async def create(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, **options: Any
    ) -> dict[str, Any]:
        made = await super().create(resource, body, namespace, **options)
        self.__dict__.setdefault("made", {})[f"{resource.kind} {made['metadata']['name']}"] = made
        return made


@slow
async def test_all_that_a_killed_run_leaves_has_the_label(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "classes.yaml").write_text(CLASS)
    async with cluster(clock, made=Recording) as client:
        assert isinstance(client, Recording)
        await verdict(client, profile(deviceClasses=str(tmp_path / "classes.yaml")), only="C2")
        made = {name: item for name, item in client.made.items() if name.startswith(("DeviceClass", "Namespace"))}
        assert len(made) == 3
        assert all(LABELS.items() <= item["metadata"]["labels"].items() for item in made.values())
        assert made["DeviceClass gpu"]["metadata"]["labels"]["a"] == "b"


class Unhurried(Client):
    """A client of a cluster in which a namespace gets its service account once a client has missed it."""

    @override
    async def create(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, **options: Any
    ) -> dict[str, Any]:
        try:
            made = await super().create(resource, body, namespace, **options)
        except Forbidden:
            await self._add_account(body["metadata"]["namespace"])
            raise
        if resource == NAMESPACES:
            await self.delete(SERVICE_ACCOUNTS, "default", made["metadata"]["name"])
        return made

    @override
    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        try:
            return await super().get(resource, name, namespace)
        except NotFound:
            if resource == SERVICE_ACCOUNTS:
                await self._add_account(namespace)
            raise

    async def _add_account(self, namespace: str | None) -> None:
        await super().create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace)


@slow
async def test_a_pod_waits_for_the_service_account_of_its_namespace(clock: Clock) -> None:
    async with cluster(clock, made=Unhurried) as client:
        assert statuses(await verdict(client, profile(), only="C3")) == {"C3": "passed"}


def sample(name: str, value: int, **labels: str) -> str:
    shown = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{shown}}} {value}"


def test_metrics_of_a_kubelet_show_sockets_and_calls() -> None:
    plugins, calls = "plugin_manager_total_plugins", "dra_grpc_operations_duration_seconds_count"
    method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
    text = [
        "# HELP plugin_manager_total_plugins [ALPHA] Number of plugins in Plugin Manager.",
        sample(plugins, 1, socket_path=f"/reg/{DRIVER}-reg.sock", state="actual_state_of_world"),
        sample(plugins, 1, socket_path=f"/reg/{DRIVER}.sock", state="desired_state_of_world"),
        sample(calls, 3, driver_name=DRIVER, grpc_status_code="OK", method_name=method),
        sample(calls, 2, driver_name=DRIVER, grpc_status_code="Unknown", method_name=method),
        sample(calls, 9, driver_name="other", grpc_status_code="OK", method_name=method),
        sample(calls, 9, driver_name=DRIVER, grpc_status_code="OK", method_name="NodePrepareResources"),
    ]
    metrics = KubeletMetrics.parse("\n".join(text))
    assert metrics.sockets(DRIVER, state="actual") == [f"/reg/{DRIVER}-reg.sock"]
    assert metrics.sockets(DRIVER, state="desired") == [f"/reg/{DRIVER}.sock"]
    assert metrics.sockets("other", state="actual") == []
    assert metrics.calls(DRIVER, "NodeUnprepareResources") == {"OK": 3, "Unknown": 2}


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        (f"/reg/{DRIVER}-reg.sock", True),
        (f"/reg/{DRIVER}-0b9d8a7e-6c5f-4e3d-9b2a-1f0e9d8c7b6a-reg.sock", True),
        (f"/reg/{DRIVER}-Zm9_b2Jh-cg-reg.sock", True),
        (f"/reg/{DRIVER}.sock", True),
        (f"/reg/v{DRIVER}-reg.sock", False),
        (f"/reg/v-{DRIVER}-reg.sock", False),
        (f"/reg/{DRIVER}.cn-reg.sock", False),
        (f"/reg/{DRIVER}-share-reg.sock", False),
        (f"/{DRIVER}/other.example.com-reg.sock", False),
    ],
)
def test_a_socket_belongs_to_the_driver_whose_name_it_has(path: str, is_own: bool) -> None:
    metrics = KubeletMetrics.parse(
        sample("plugin_manager_total_plugins", 1, socket_path=path, state="actual_state_of_world")
    )
    assert metrics.sockets(DRIVER, state="actual") == [path] * is_own


def test_output_of_a_container_is_read_with_values_of_several_lines() -> None:
    text = (
        "noise\n#env\nA=1\0B-2=first\nsecond line\0\n#mounts\n"
        "36 35 98:0 /mnt1 /a\\040b rw - ext3 /dev/root rw\nnonsense\n"
        "#files\n/dev/gpu0\n#end\n"
    )
    seen = printed_edits(text, "#")
    assert seen.env == ("A=1", "B-2=first\nsecond line")
    assert [item.container_path for item in seen.mounts] == ["/a b"]
    assert [item.path for item in seen.device_nodes] == ["/dev/gpu0"]


def test_what_only_one_container_has_is_injected() -> None:
    without = SpecEdits(env=("A=1",), mounts=(Mount(host_path="", container_path="/proc"),))
    having = SpecEdits(
        env=("A=1", "GPU=0"), mounts=without.mounts, device_nodes=(DeviceNode(path="/dev/gpu0"),)
    )  # fmt: skip
    assert injected(having, without) == ["variable GPU=0", "file /dev/gpu0"]
    assert injected(without, having) == []


def bench() -> ClusterBench:
    """What checks work with, without a cluster."""
    settings = RealClusterSettings(subject="x", driver=DRIVER, profile=profile(), poll=0.005)
    client = Client(Credentials(Connection("http://127.0.0.1:1")), user_agent="tests/1")
    return ClusterBench(client, settings, RunProgress())


def test_names_of_runs_differ() -> None:
    assert len({bench().namespace for _ in range(3)}) == 3


@pytest.mark.parametrize("ends", [True, False])
async def test_a_wait_outlasts_an_api_server_that_is_away(clock: Clock, ends: bool) -> None:
    looks = 0

    async def condition() -> bool:
        nonlocal looks
        looks += 1
        if looks > 3 and ends:
            return True
        clock.ahead += _STEP
        raise Unavailable("the API server restarts")

    if ends:
        assert await bench().until(condition, 60)
    else:
        with pytest.raises(Unavailable):
            await bench().until(condition, 60)
        assert looks > 10
