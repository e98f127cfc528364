"""Recordings of a live cluster, which ``dra-kit snapshot --follow`` makes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dra_kit.apiserver.api import RuntimeConfig
from dra_kit.apiserver.server import ApiServer
from dra_kit.cli.app import cli
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import DEVICE_CLASSES, DEVICE_TAINT_RULES, RESOURCE_CLAIMS
from dra_kit.client.transport import ClientRequest, Transport
from dra_kit.errors import Forbidden
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.sandbox.records import (
    ObjectChanged,
    PodScheduled,
    PodUnschedulable,
    RecordingStarted,
    ResourceNotRecorded,
    RunReported,
)
from dra_kit.sandbox.timeline.follow import ClusterRecorder, RecordingEnd
from dra_kit.sandbox.timeline.recording import RecordFile, Recording
from tests.support.api import Api
from tests.unit.sandbox.cluster.kubelet.polling import until

MIB = 1 << 20
SECRET = "correct-horse-battery-staple"
PATIENCE = 60.0


def node(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {}, "status": {"allocatable": {"cpu": "8"}, **status}}


def pod(name: str, namespace: str = "default", **fields: Any) -> dict[str, Any]:
    variables = [{"name": "OVEN_PASSWORD", "value": SECRET}]
    container = {"name": "eater", "image": "busybox", "command": ["eat", SECRET], "env": variables}
    spec = {"containers": [container], **fields.pop("spec", {})}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": {"phase": "Pending"}, **fields}


def claim(name: str, **status: Any) -> dict[str, Any]:
    config = {"opaque": {"driver": "dra.pizza", "parameters": {"recipe": SECRET}}}
    requests = [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]
    spec = {"devices": {"requests": requests, "config": [config]}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": status}


class Follower:
    """A recorder that runs.

    Attributes:
        file: what it writes.
    """

    def __init__(self, client: Client, file: Path, size: int, *, all_events: bool = False) -> None:
        self.file = file
        self._interrupted = asyncio.Event()
        self.recorder = ClusterRecorder(
            client, lambda: RecordFile(file, size, fixed=True), namespace="default", all_events=all_events
        )
        self.ending: asyncio.Task[RecordingEnd] = asyncio.create_task(self.recorder.run(PATIENCE, self._interrupted))

    async def stop(self) -> RecordingEnd:
        self._interrupted.set()
        return await self.ending

    def changes(self, resource: str = "") -> list[tuple[str, str]]:
        """The changes of objects so far, with their names."""
        if not self.file.exists() or not self.file.stat().st_size:
            return []
        return [
            (record.change, record.object["metadata"]["name"])
            for record in Recording(self.file).records()
            if isinstance(record, ObjectChanged) and record.resource.startswith(resource)
        ]

    def begun(self) -> bool:
        return self.file.exists() and b'"the recording begins"' in self.file.read_bytes()


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as running:
        yield running


@asynccontextmanager
async def following(url: str, file: Path, size: int = MIB, *, all_events: bool = False) -> AsyncIterator[Follower]:
    async with Client(Credentials(Connection(url)), user_agent="tests/1") as client:
        follower = Follower(client, file, size, all_events=all_events)
        try:
            yield follower
        finally:
            follower.ending.cancel()
            await asyncio.gather(follower.ending, return_exceptions=True)


async def test_what_is_there_and_each_change_are_recorded(api: Api, tmp_path: Path) -> None:
    api.put("nodes", node("node-1"))
    api.put("pods", pod("guest"))
    for name in ("pizza", "pasta"):
        api.put("deviceclasses", {"metadata": {"name": name}, "spec": {}})
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(follower.begun)
        api.put("resourceclaims", claim("lunch"))
        await until(lambda: ("ADDED", "lunch") in follower.changes())
        api.put("resourceclaims", claim("lunch", reservedFor=[{"resource": "pods", "name": "guest", "uid": "u"}]))
        await until(lambda: ("MODIFIED", "lunch") in follower.changes())
        api.delete("pods", "guest", "default")
        await until(lambda: ("DELETED", "guest") in follower.changes())
        end = await follower.stop()

    recording = Recording(tmp_path / "run.jsonl")
    first, *records = recording.records()
    assert isinstance(first, RecordingStarted)
    assert (first.source, first.version) == ("cluster", "v1.37")
    assert frozenset(first.gates) == Release.of().enabled
    assert end == RecordingEnd(len(records) + 1)
    changes = [item for item in records if isinstance(item, ObjectChanged)]
    assert {item.object["metadata"]["name"] for item in changes if item.existing} == {
        "node-1",
        "guest",
        "pizza",
        "pasta",
    }
    [begin] = [item for item in records if isinstance(item, RunReported)]
    assert begin.details == ("1 Node, 2 DeviceClasses, 1 Pod",)
    assert recording.problems == []


async def test_recording_of_the_sandboxs_own_api_server(tmp_path: Path) -> None:
    async with (
        ApiServer() as server,
        Client(Credentials(Connection(server.url)), user_agent="tests/1") as client,
        following(server.url, tmp_path / "run.jsonl") as follower,
    ):
        await until(follower.begun)
        await client.create(DEVICE_CLASSES, {"metadata": {"name": "pizza"}, "spec": {}})
        await client.create(RESOURCE_CLAIMS, {key: claim("lunch")[key] for key in ("metadata", "spec")}, "default")
        await until(lambda: {("ADDED", "pizza"), ("ADDED", "lunch")} <= set(follower.changes()))
        await follower.stop()

    assert b"recipe" not in (tmp_path / "run.jsonl").read_bytes()


async def test_secrets_are_removed_as_from_a_support_bundle(api: Api, tmp_path: Path) -> None:
    message = f"recipe '{SECRET}' is unknown"
    condition = {"type": "Ready", "status": "False", "message": message}
    api.put("resourceclaims", claim("lunch", devices=[{"driver": "dra.pizza", "conditions": [condition]}]))
    api.put("pods", pod("guest", status={"phase": "Pending", "conditions": [condition]}))
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(lambda: len(follower.changes()) == 2)
        api.put("pods", pod("guest", status={"phase": "Failed", "conditions": [condition]}))
        await until(lambda: len(follower.changes()) == 3)
        await follower.stop()

    text = (tmp_path / "run.jsonl").read_text()
    assert SECRET not in text
    assert "recipe '(removed)' is unknown" in text
    assert "busybox" not in text


async def test_names_and_references_are_recorded_whatever_a_claim_hides(api: Api, tmp_path: Path) -> None:
    words = ("gpu-node-1", "dra.pizza", "margherita", "Succeeded")
    hiding = claim("lunch")
    hiding["spec"]["devices"]["config"][0]["opaque"]["parameters"] = dict(zip("abcd", words, strict=True))
    result = {"request": "pizza", "driver": "dra.pizza", "pool": "gpu-node-1", "device": "margherita"}
    labels, spec = {"kubernetes.io/hostname": "gpu-node-1"}, {"nodeName": "gpu-node-1"}
    condition = {"type": "Ready", "status": "False", "message": "margherita burns"}
    status = {"phase": "Succeeded", "conditions": [condition]}
    api.put("resourceclaims", hiding)
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(follower.begun)
        api.put("nodes", {**node("gpu-node-1"), "metadata": {"name": "gpu-node-1", "labels": labels}})
        api.put("resourceclaims", claim("dinner", allocation={"devices": {"results": [result]}}))
        api.put("pods", pod("guest", spec=spec, status=status))
        await until(lambda: len(follower.changes()) == 4)

    records = Recording(tmp_path / "run.jsonl").records()
    found = {item.object["metadata"]["name"]: item.object for item in records if isinstance(item, ObjectChanged)}
    assert found["gpu-node-1"]["metadata"]["labels"] == labels
    assert found["dinner"]["status"]["allocation"]["devices"]["results"] == [result]
    assert found["guest"]["spec"]["nodeName"] == "gpu-node-1"
    assert found["guest"]["status"]["phase"] == "Succeeded"
    assert found["guest"]["status"]["conditions"][0]["message"] == "(removed) burns"


CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"


async def test_messages_of_pods_are_recorded_once_the_secrets_of_claims_are_known(api: Api, tmp_path: Path) -> None:
    condition = {"type": "Ready", "status": "False", "message": f"recipe '{SECRET}' is unknown"}
    api.put("resourceclaims", claim("lunch"))
    api.put("pods", pod("guest", status={"phase": "Pending", "conditions": [condition]}))
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        with api.failing(503, at=CLAIMS):
            await until(lambda: api.asked("GET", CLAIMS) >= 2)
        await until(follower.begun)

    assert follower.changes() == [("ADDED", "lunch"), ("ADDED", "guest")]
    assert SECRET not in (tmp_path / "run.jsonl").read_text()


async def test_claims_that_may_not_be_read_delay_no_pods(api: Api, tmp_path: Path) -> None:
    api.put("pods", pod("guest"))
    with api.failing(403, at=CLAIMS), api.failing(403, at=CLAIMS.replace("v1/", "v1/namespaces/default/")):
        async with following(api.url, tmp_path / "run.jsonl") as follower:
            await until(follower.begun)

    assert follower.changes() == [("ADDED", "guest")]


async def test_object_that_cannot_be_recorded_is_skipped_and_reported(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = 700 if sys.version_info < (3, 12) else 1_000  # as many as can be decoded, but not redacted
    deep = f'{{"containers":[],"affinity":{"[" * levels}{"]" * levels}}}'
    item = f'{{"metadata":{{"name":"guest","namespace":"default","uid":"1"}},"spec":{deep}}}'
    listed, really = f'{{"metadata":{{"resourceVersion":"1"}},"items":[{item}]}}'.encode(), Transport.send

    async def send(transport: Transport, call: ClientRequest) -> bytes:
        return listed if call.path.startswith("/api/v1/pods") else await really(transport, call)

    monkeypatch.setattr(Transport, "send", send)
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(follower.begun)
        api.put("pods", pod("waiter"))
        await until(lambda: ("ADDED", "waiter") in follower.changes())

    assert follower.changes() == [("ADDED", "waiter")]
    reports = [item.text for item in Recording(tmp_path / "run.jsonl").records() if isinstance(item, RunReported)]
    reason = "Pod default/guest is not recorded: it is nested too deeply, or has invalid Unicode"
    assert reports == [reason, "the recording begins"]


def event(name: str, note: str, namespace: str = "default", **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "regarding": {"kind": "Pod", "namespace": namespace, "name": "guest", "uid": "u"},
        "reason": "FailedPrepareDynamicResources",
        "note": note,
        "type": "Warning",
        "reportingController": "kubelet",
        "reportingInstance": SECRET,
        **fields,
    }


async def test_events_of_the_namespace_are_recorded_without_secrets_and_shown(api: Api, tmp_path: Path) -> None:
    api.put("resourceclaims", claim("lunch"))
    api.put("events", event("before", "long ago"))
    api.put("events", event("elsewhere", "of others", "elsewhere"))
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(follower.begun)
        api.put("events", event("now", f"recipe '{SECRET}' is unknown"))
        api.put("events", event("known", "0/1 nodes are available", reason="FailedScheduling"))
        await until(lambda: len(follower.changes("events")) == 3)
        api.delete("events", "before", "default")
        await until(lambda: ("DELETED", "before") in follower.changes())
        await follower.stop()

    assert set(follower.changes("events")) == {
        *(("ADDED", name) for name in ("before", "now", "known")),
        ("DELETED", "before"),
    }
    assert SECRET not in (tmp_path / "run.jsonl").read_text()
    shown = CliRunner().invoke(cli, ["replay", str(tmp_path / "run.jsonl")]).output
    assert "Event FailedPrepareDynamicResources about Pod guest, of kubelet" in shown
    assert "recipe '(removed)' is unknown" in shown
    assert "long ago" not in shown
    assert "FailedScheduling" not in shown


async def test_events_explain_a_pod_at_a_moment_of_a_recording(api: Api, tmp_path: Path) -> None:
    waiting = pod("guest", spec={"resourceClaims": [{"name": "pizza", "resourceClaimTemplateName": "absent"}]})
    api.put("nodes", node("node-1"))
    created = api.put("pods", waiting)
    about = {"kind": "Pod", "namespace": "default", "name": "guest", "uid": created["metadata"]["uid"]}
    refused = event("refused", "quota exceeded", reason="FailedResourceClaimCreation", regarding=about)
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        api.put("events", refused)
        await until(lambda: ("ADDED", "refused") in follower.changes())
        await follower.stop()

    shown = CliRunner().invoke(cli, ["replay", str(tmp_path / "run.jsonl"), "--at", "600"]).output

    assert "FailedResourceClaimCreation: quota exceeded" in shown


@pytest.mark.parametrize(("all_events", "names"), [(False, {"own"}), (True, {"own", "elsewhere"})])
async def test_events_of_all_namespaces_are_recorded_on_request(
    api: Api, tmp_path: Path, all_events: bool, names: set[str]
) -> None:
    api.put("events", event("elsewhere", "b", "elsewhere"))
    api.put("events", event("own", "a"))
    async with following(api.url, tmp_path / "run.jsonl", all_events=all_events) as follower:
        await until(follower.begun)

    assert {name for _, name in follower.changes("events")} == names


async def test_heartbeats_of_nodes_are_not_recorded(api: Api, tmp_path: Path) -> None:
    api.put("nodes", node("node-1"))
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(follower.begun)
        for number in range(3):
            api.put("nodes", node("node-1", conditions=[{"type": "Ready", "lastHeartbeatTime": str(number)}]))
        api.put("nodes", node("node-2"))
        await until(lambda: ("ADDED", "node-2") in follower.changes())

        assert follower.changes() == [("ADDED", "node-1"), ("ADDED", "node-2")]


async def test_decisions_of_the_scheduler_are_derived_from_pods(api: Api, tmp_path: Path) -> None:
    message = "0/1 nodes are available"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    api.put("pods", pod("guest", status={"phase": "Pending", "conditions": [condition]}))
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(follower.begun)
        api.put("pods", pod("guest", spec={"nodeName": "node-1"}))
        await until(lambda: len(follower.changes()) == 2)
        await follower.stop()

    records = list(Recording(tmp_path / "run.jsonl").records())
    assert [item.message for item in records if isinstance(item, PodUnschedulable)] == [message]
    assert [item.node for item in records if isinstance(item, PodScheduled)] == ["node-1"]


async def test_changes_while_the_server_is_away_are_recorded(api: Api, tmp_path: Path) -> None:
    api.put("nodes", node("node-1"))
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(follower.begun)
        api.go_away()
        api.put("nodes", node("node-2"))
        api.delete("nodes", "node-1")
        api.listen()
        await until(lambda: len(follower.changes()) == 3)

        assert set(follower.changes()) == {("ADDED", "node-1"), ("ADDED", "node-2"), ("DELETED", "node-1")}


async def test_expired_watches_are_resumed_without_repetition(api: Api, tmp_path: Path) -> None:
    api.put("nodes", node("node-1"))
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(follower.begun)
        with api.failing(410, "GET"):
            api.go_away()
            api.listen()
            before = len(api.requests)
            await until(lambda: len(api.requests) > before)
        api.put("nodes", node("node-2"))
        await until(lambda: ("ADDED", "node-2") in follower.changes())

        assert follower.changes() == [("ADDED", "node-1"), ("ADDED", "node-2")]


async def test_resources_that_may_not_be_read_are_named(api: Api, tmp_path: Path) -> None:
    api.put("pods", pod("guest"))
    api.put("pods", pod("stranger", "elsewhere"))
    with api.failing(403, at="/api/v1/nodes"), api.failing(403, at="/api/v1/pods"):
        async with following(api.url, tmp_path / "run.jsonl") as follower:
            await until(follower.begun)
            await follower.stop()

    found = [item for item in Recording(tmp_path / "run.jsonl").records() if isinstance(item, ResourceNotRecorded)]
    assert {(item.resource, item.namespace) for item in found} == {("nodes", ""), ("pods", "default")}
    assert follower.changes() == [("ADDED", "guest")]


@pytest.mark.parametrize("status", [401, 403])
async def test_recording_of_nothing_fails(api: Api, tmp_path: Path, status: int) -> None:
    places = ("/api/", "/apis/resource.k8s.io/v1/", "/apis/events.k8s.io/v1/")
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(api.failing(status, below=place))
        async with following(api.url, tmp_path / "run.jsonl") as follower:
            with pytest.raises(Forbidden):
                await follower.ending


async def test_full_file_ends_the_recording_with_what_it_has(api: Api, tmp_path: Path) -> None:
    async with following(api.url, tmp_path / "run.jsonl", 16 << 10) as follower:
        await until(follower.begun)
        for number in range(200):
            api.put("nodes", node(f"node-{number}"))
        end = await follower.ending

    assert "the newest state of all objects takes most of 16384 bytes" in end.problem
    assert (tmp_path / "run.jsonl").stat().st_size <= 16 << 10
    assert len(follower.changes()) > 20


async def test_full_disk_ends_the_recording_with_what_it_has(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.write

    def write(descriptor: int, data: memoryview) -> int:
        if b"node-2" in bytes(data):
            raise OSError(28, "No space left on device")
        return really(descriptor, data)

    api.put("nodes", node("node-1"))
    async with following(api.url, tmp_path / "run.jsonl") as follower:
        await until(follower.begun)
        monkeypatch.setattr(os, "write", write)
        api.put("nodes", node("node-2"))
        end = await follower.ending

    assert end.problem == "No space left on device"
    assert follower.changes() == [("ADDED", "node-1")]


# --- the command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--for", "10m", "saved"), "--for requires --follow"),
        (("-o", "run.jsonl", "saved"), "--output requires --follow"),
        ((), "Missing argument 'PATH'"),
        (("--follow",), "--follow requires -o FILE"),
        (("--follow", "-o", "run.jsonl", "saved"), "--follow cannot be combined with PATH"),
        (("--follow", "-o", "run.jsonl", "--max-size", "10KiB"), "10KiB is too small; use at least 1MiB."),
        (("--follow", "-o", "run.jsonl", "--max-size", "much"), "'much' is not a size; write it like 100MiB"),
    ],
)
def test_options_that_exclude_or_need_each_other(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(cli, ["snapshot", *arguments])

    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(("status", "reason"), [(0, "no connection"), (401, "401")])
def test_former_recording_stays_if_the_cluster_rejects_or_does_not_answer(
    api: Api, tmp_path: Path, status: int, reason: str
) -> None:
    config, file = api.kubeconfig(tmp_path / "config"), tmp_path / "run.jsonl"
    file.write_text("former")
    if not status:
        api.go_away()
    with api.failing(401):
        result = CliRunner().invoke(cli, ["snapshot", "--follow", "-o", str(file), "--kubeconfig", str(config)])

    assert result.exit_code != 0
    assert reason in result.output
    assert file.read_text() == "former"


def test_file_that_cannot_be_written_is_named(api: Api, tmp_path: Path) -> None:
    config = api.kubeconfig(tmp_path / "config")
    result = CliRunner().invoke(cli, ["snapshot", "--follow", "-o", "/proc/run.jsonl", "--kubeconfig", str(config)])

    assert result.exit_code == 2
    assert "-o /proc/run.jsonl cannot be written: No such file or directory; use another path" in result.output


@pytest.mark.processes
def test_command_records_for_a_time(api: Api, tmp_path: Path) -> None:
    api.put("nodes", node("node-1"))
    config, file = api.kubeconfig(tmp_path / "config"), tmp_path / "run.jsonl"
    arguments = ["snapshot", "--follow", "--for", "2s", "-o", str(file), "--kubeconfig", str(config)]
    with api.failing(403, at="/api/v1/pods"), api.failing(403, at="/api/v1/namespaces/default/pods"):
        result = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert result.returncode == 0, result.stderr
    assert re.search(r"^\d+ records in .*run\.jsonl$", result.stdout, re.MULTILINE)
    assert "pods are not recorded: you may not list and watch them: running pods are unknown" in result.stderr
    played = CliRunner().invoke(cli, ["replay", str(file)])
    assert "Kubernetes v1.37 at 127.0.0.1 is recorded\n" in played.stdout
    assert played.exit_code == 0


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_what_was_recorded_survives_any_end(api: Api, tmp_path: Path, number: signal.Signals) -> None:
    config, file = api.kubeconfig(tmp_path / "config"), tmp_path / "run.jsonl"
    arguments = ["snapshot", "--follow", "-o", str(file), "--kubeconfig", str(config)]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: file.exists() and b'"the recording begins"' in file.read_bytes())
        for index in range(50):
            api.put("nodes", node(f"node-{index}"))
        wait_for(lambda: b'"node-49"' in file.read_bytes())
        process.send_signal(number)
        code = process.wait(PATIENCE)

    assert code == (-number if number is signal.SIGKILL else 0)
    recording = Recording(file)
    names = [item.object["metadata"]["name"] for item in recording.records() if isinstance(item, ObjectChanged)]
    assert names == [f"node-{index}" for index in range(50)]
    assert recording.problems == []


COMMAND = (str(Path(sys.executable).with_name("dra-kit")),)


def wait_for(condition: Callable[[], bool]) -> None:
    asyncio.run(until(condition))


async def test_taint_rules_are_recorded_in_the_version_that_is_served(tmp_path: Path) -> None:
    release = Release.of(KubernetesVersion(1, 36))
    rule = {"deviceSelector": {"driver": "dra.pizza"}, "taint": {"key": "cold", "effect": "NoSchedule"}}
    async with ApiServer(release=release, runtime_config=RuntimeConfig.parse("resource.k8s.io/v1beta2")) as server:
        async with Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
            await client.create(DEVICE_TAINT_RULES.versions[1], {"metadata": {"name": "cold"}, "spec": rule})
        async with following(server.url, tmp_path / "run.jsonl") as follower:
            await until(lambda: follower.changes("devicetaintrules") == [("ADDED", "cold")])
            await follower.stop()
