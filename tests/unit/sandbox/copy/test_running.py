"""A copy of a saved cluster at work: what stays, what changes, and where its pods go."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kit.cli.app import cli
from dra_kit.client.api import Client, discover_release
from dra_kit.client.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_QUOTAS
from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.documents import pod_document
from dra_kit.diagnosis.explain.pods import explain_pod
from dra_kit.diagnosis.live_cluster import ReadScope, read_live
from dra_kit.diagnosis.snapshot import load
from dra_kit.errors import ConfigurationError, Forbidden
from dra_kit.kubernetes.release import UNMODIFIED, KubernetesVersion, Release
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.cluster_copy import ClusterCopy
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.page.history import PageHistory
from dra_kit.sandbox.records import ClusterCopied, ObjectChanged, Record, RunReported
from dra_kit.sandbox.run.session import RunTask, SandboxSession
from dra_kit.sandbox.timeline.recording import Recording, TimelineFile
from dra_kit.sandbox.views.live import LiveView
from tests.support import saved_cluster as saved
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.copy.test_reading import PLACES, WRONG, put
from tests.unit.sandbox.timeline.feeding import feeding

pytestmark = pytest.mark.processes
Object = dict[str, Any]
PLAIN: Object = {"containers": [{"name": "main", "image": "example.com/app:1"}]}


@asynccontextmanager
async def copied(path: Path, *objects: Object, patience: float = 60) -> AsyncIterator[tuple[ControlPlane, Client]]:
    """A control plane with a copy of a cluster, whose pods have been scheduled.

    With corrupt objects, a pod may be tried again and again: ``patience`` is how long that takes, in seconds.
    """
    copy = ClusterCopy.read(saved.write(path / "saved.json", objects))
    async with ControlPlane(release=copy.release, copy=copy, time_scale=1000) as plane:
        await plane.calm()
        plane.schedule()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await plane.calm()
        yield plane, await plane.connect("test")


async def run(path: Path, objects: list[Object], release: str = "1.37", **task: Any) -> tuple[int, str]:
    """Run ``dra-kit sandbox --from``; return its exit code and what it prints."""
    (folder := path / "saved").mkdir()
    saved.write(folder / "objects.json", objects)
    (folder / "snapshot.json").write_text(json.dumps({"version": release}))
    copy = ClusterCopy.read(folder)
    printed = io.StringIO()
    settings_ = SandboxSettings(nodes=0, copy=copy, release=copy.release)
    code = await SandboxSession([], settings_, RunTask(**task), LiveView(printed)).run()
    return code, printed.getvalue()


def manifests(path: Path, *objects: Object) -> tuple[Path, ...]:
    return (saved.write(path / "remedy.json", objects),)


def evict(device: str) -> Object:
    """A rule that evicts the pods of a device."""
    selector = {"driver": saved.DRIVER, "pool": "gpu-1", "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": f"broken-{device}"},
        "spec": {"deviceSelector": selector, "taint": {"key": "broken", "effect": "NoExecute"}},
    }


async def test_controllers_leave_alone_what_was_not_saved_completely(tmp_path: Path) -> None:
    taint = {"key": "broken", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "not-saved", "controller": True}
    of_pod = {"apiVersion": "v1", "kind": "Pod", "name": "absent", "uid": "pod-absent", "controller": True}
    absent, on_tainted = saved.pod("absent"), saved.pod("patient", "two", "gpu-1")
    held = saved.claim("one", "gpu-0", absent)
    held["metadata"]["ownerReferences"] = [of_pod]
    owned, lost, leaving = (
        saved.pod("owned", node_name="gpu-1"),
        saved.pod("lost", node_name="gone"),
        saved.pod("leaving", node_name="gpu-1"),
    )
    owned["metadata"]["ownerReferences"] = [owner]
    leaving["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    orphan = saved.resource_slice("gone")
    objects = [
        *(saved.node(), saved.resource_slice(taints=[taint]), orphan, saved.device_class()),
        *(held, on_tainted, saved.claim("two", "gpu-1", on_tainted), owned, lost, leaving),
    ]

    async with copied(tmp_path, *objects) as (plane, _):
        await asyncio.sleep(0.2)  # of which 40 s are nothing, at this time scale
        await plane.calm()
        storage = plane.server.api.storage
        kinds = ("nodes", "pods", "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io")
        there = {(kind, key): stored.object for kind in kinds for key, stored in storage.items(kind)}

    assert len(there) == len(objects) - 1
    assert all(int(item["metadata"]["resourceVersion"]) <= len(objects) + 200 for item in there.values())
    assert "taints" not in there["nodes", "gpu-1"]["spec"]
    assert there["resourceclaims.resource.k8s.io", "train/one"]["status"]["allocation"]
    assert "deletionTimestamp" not in there["pods", "train/patient"]["metadata"]
    assert "deletionTimestamp" in there["pods", "train/leaving"]["metadata"]


async def test_a_deleted_pod_frees_its_device_for_one_that_waits(tmp_path: Path) -> None:
    async with copied(tmp_path, *saved.full_cluster()) as (plane, client):
        waits = await client.get(PODS, "third", "train")
        await client.delete(PODS, "first", "train")
        await plane.calm()
        placed = await client.get(PODS, "third", "train")
        claim = await client.get(RESOURCE_CLAIMS, "three", "train")

    assert "nodeName" not in waits["spec"]
    assert placed["spec"]["nodeName"] == "gpu-1"
    assert [item["device"] for item in claim["status"]["allocation"]["devices"]["results"]] == ["gpu-0"]


async def test_a_pod_bound_to_a_copy_of_a_node_stays_pending(tmp_path: Path) -> None:
    objects = [*saved.full_cluster()[:3], saved.pod("third", "three"), saved.claim("three")]
    remedy = manifests(tmp_path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "unrelated"}})

    code, text = await run(tmp_path, objects, files=remedy)

    assert code == 0
    assert "scheduler: Pod train/third goes to gpu-1" in text
    assert "scheduled; the node is a copy and runs nothing" in text
    assert "Pod train/third is on gpu-1, with gpu-0 of pool gpu-1" in text
    assert "is Running" not in text


async def test_a_remedy_gives_the_waiting_pod_its_place(tmp_path: Path) -> None:
    new = saved.node("gpu-2")
    del new["metadata"]["uid"]
    more = saved.resource_slice("gpu-2", 1)
    more["metadata"] = {"name": "gpu-2-slice"}

    code, text = await run(tmp_path, saved.full_cluster(), files=manifests(tmp_path, new, more))

    before, _, after = text.partition("applied to the copy: 2 objects")
    assert code == 0
    assert "pods that waited: 0 of 1 have a place" in before
    assert "Pod train/third has no place: 0/1 nodes are available" in before
    assert "with what was applied, pods that waited: 1 of 1 have a place" in after
    assert "Pod train/third is on gpu-2, with gpu-0 of pool gpu-2" in after


async def test_a_remedy_that_does_not_help_ends_with_the_causes_and_1(tmp_path: Path) -> None:
    changed = saved.device_class()
    changed["metadata"] = {"name": "gpu"}
    changed["spec"]["selectors"] = [{"cel": {"expression": "device.driver == 'other.example.com'"}}]

    code, text = await run(tmp_path, saved.full_cluster(), files=manifests(tmp_path, changed), timeout=600)

    after = text.partition("applied to the copy: 1 object")[2]
    assert code == 1
    assert "0 of 1 have a place" in after
    assert "Pod train/third has no place: 0/1 nodes are available: 1 cannot allocate all claims" in after
    assert "claim gpu: request gpu: 2 devices" in after


def quota(hard: Object, used: Object) -> Object:
    metadata = {"name": "limits", "namespace": saved.SPACE, "uid": "quota-limits"}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": used},
    }


async def test_a_remedy_that_exceeds_a_quota_is_rejected_with_the_message_of_kubernetes(tmp_path: Path) -> None:
    devices = "gpu.deviceclass.resource.k8s.io/devices"
    objects = [*saved.full_cluster(), quota({devices: "3"}, {devices: "3"})]
    more = saved.claim("four")
    del more["metadata"]["uid"]

    with pytest.raises(ConfigurationError) as refusal:
        await run(tmp_path, objects, files=manifests(tmp_path, more))

    assert (
        f'resourceclaims.resource.k8s.io "four" is forbidden: exceeded quota: limits, requested: {devices}=1, '
        f"used: {devices}=3, limited: {devices}=3"
    ) in str(refusal.value)


async def test_a_full_quota_of_the_copy_permits_changes_of_what_there_is(tmp_path: Path) -> None:
    template: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu", "namespace": saved.SPACE, "uid": "template-gpu"},
        "spec": {"spec": saved.claim("any")["spec"]},
    }
    name = "count/resourceclaimtemplates.resource.k8s.io"
    objects = [*saved.full_cluster(), template, quota({name: "1"}, {name: "1"})]
    del objects[7:9]  # nothing waits
    changed = {**template, "metadata": {"name": "gpu", "namespace": saved.SPACE, "labels": {"team": "vision"}}}

    code, text = await run(tmp_path, objects, files=manifests(tmp_path, changed))

    assert code == 0
    assert "1 ResourceQuota of it limits what you apply" in text
    assert "applied to the copy: 1 object" in text


async def test_usage_that_was_saved_counts_objects_that_were_not(tmp_path: Path) -> None:
    objects = [*saved.full_cluster(), quota({"pods": "10", "secrets": "9"}, {"pods": "10", "secrets": "7"})]

    async with copied(tmp_path, *objects) as (plane, client):
        with pytest.raises(Forbidden, match="exceeded quota: limits, requested: pods=1, used: pods=10"):
            await client.create(PODS, {"metadata": {"name": "new"}, "spec": PLAIN}, saved.SPACE)
        await client.delete(PODS, "first", saved.SPACE)
        await plane.calm()
        await client.create(PODS, {"metadata": {"name": "new"}, "spec": PLAIN}, saved.SPACE)
        used = (await client.get(RESOURCE_QUOTAS, "limits", saved.SPACE))["status"]["used"]

    assert used == {"pods": "10", "secrets": "7"}


@pytest.mark.parametrize("spec", [{}, {"hard": None}, {"hard": {"pods": "-1", "memory": "1e400", "count/": "1"}}])
async def test_a_quota_with_unusual_limits_ends_nothing(tmp_path: Path, spec: Object) -> None:
    odd = {**quota({}, {}), "spec": spec, "status": {}}

    async with copied(tmp_path, *saved.full_cluster(), odd) as (plane, client):
        await client.delete(PODS, "first", saved.SPACE)
        await plane.calm()
        placed = await client.get(PODS, "third", saved.SPACE)

    assert placed["spec"]["nodeName"] == "gpu-1"


async def test_a_claim_that_a_quota_forbids_is_the_reason_why_a_pod_waits(tmp_path: Path) -> None:
    devices = "gpu.deviceclass.resource.k8s.io/devices"
    template: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu", "namespace": saved.SPACE, "uid": "template-gpu"},
        "spec": {"spec": saved.claim("any")["spec"]},
    }
    waiting = saved.pod("third")
    waiting["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    objects = [*saved.full_cluster()[:3], template, waiting, quota({devices: "0"}, {devices: "0"})]
    unrelated = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "unrelated"}}

    code, text = await run(tmp_path, objects, files=manifests(tmp_path, unrelated))

    assert code == 1
    assert "exceeded quota: limits" in text


@pytest.mark.parametrize(
    ("remedy", "message"),
    [
        ("kind: [", "remedy.yaml"),
        ("a: b", "document 1 lacks apiVersion"),
        ("# nothing", "no Kubernetes object found"),
        (
            "{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpu}, spec: {suitable: true}}",
            'unknown field "spec.suitable"',
        ),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: b}, spec: {}}", 'namespaces "b" not found'),
        ("{apiVersion: example.com/v1, kind: Pizza, metadata: {name: a}}", "has no kind Pizza of example.com/v1"),
    ],
)
def test_an_invalid_remedy_is_refused_before_anything_is_scheduled(tmp_path: Path, remedy: str, message: str) -> None:
    (file := tmp_path / "remedy.yaml").write_text(remedy)
    saved.write(tmp_path / "saved.json", saved.full_cluster())

    result = CliRunner().invoke(cli, ["sandbox", "--from", str(tmp_path / "saved.json"), "-f", str(file)])

    assert result.exit_code == 2
    assert message in result.output
    assert "in one process" not in result.output


async def test_a_remedy_may_need_what_it_brings_itself(tmp_path: Path) -> None:
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pizzas.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "pizzas", "kind": "Pizza"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
    objects: list[Object] = [
        {"apiVersion": "example.com/v1", "kind": "Pizza", "metadata": {"name": "a", "namespace": "new"}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}},
        definition,
    ]

    code, text = await run(tmp_path, saved.full_cluster()[:3], files=manifests(tmp_path, *objects))

    assert code == 0
    assert "applied to the copy: 3 objects" in text


async def test_a_rule_of_the_remedy_evicts_pods_of_the_copy(tmp_path: Path) -> None:
    code, text = await run(tmp_path, saved.full_cluster(), files=manifests(tmp_path, evict("gpu-1")))

    assert code == 1
    assert "1 pod of the copy ended" in text
    assert "Pod train/second was evicted by device-taint-eviction-controller" in text


async def test_a_waiting_pod_that_a_rule_of_the_remedy_evicts_has_no_place(tmp_path: Path) -> None:
    objects = [*saved.full_cluster()[:3], saved.pod("third", "three"), saved.claim("three")]

    code, text = await run(tmp_path, objects, files=manifests(tmp_path, evict("gpu-0")), record=tmp_path / "r.jsonl")

    said = [item for item in Recording(tmp_path / "r.jsonl").records() if isinstance(item, RunReported)]
    verdicts = [(item.text.rpartition(": ")[2], item.colour) for item in said if "that waited" in item.text]
    assert verdicts == [("1 of 1 have a place", "green"), ("0 of 1 have a place", "red")]
    after = text.partition("applied to the copy: 1 object")[2].partition("0 of 1 have a place")[2]
    assert "Pod train/third was evicted by device-taint-eviction-controller: device gpu-0 of pool gpu-1" in after
    assert code == 1


async def test_a_pod_of_the_remedy_that_is_evicted_at_once_has_no_place(tmp_path: Path) -> None:
    toleration = {"key": "broken", "effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 0}
    tolerant, added = saved.claim("three"), saved.pod("third", "three")
    tolerant["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [toleration]
    for item in (tolerant, added):
        del item["metadata"]["uid"]
    added["spec"]["containers"][0]["image"] = "registry.example.com/main"
    remedy = manifests(tmp_path, evict("gpu-0"), evict("gpu-1"), tolerant, added)
    objects = [*saved.full_cluster()[:3], saved.pod("other", node_name="gpu-1")]

    code, text = await run(tmp_path, objects, files=remedy)

    after = text.partition("applied to the copy: 4 objects")[2]
    assert "pods that waited: 0 of 1 have a place" in after
    assert "Pod train/third was evicted by device-taint-eviction-controller: device gpu-" in after
    assert code == 1


async def test_older_pods_come_first_and_the_same_copy_gives_the_same_places(tmp_path: Path) -> None:
    objects = [saved.node(), saved.resource_slice(devices=3), saved.device_class()]
    for number, name in enumerate("dacbe"):
        item = saved.pod(name, f"of-{name}")
        item["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{number}Z"
        objects += [item, saved.claim(f"of-{name}")]
    found = []
    for _ in range(2):
        async with copied(tmp_path, *objects) as (_, client):
            claims = (await client.list(RESOURCE_CLAIMS)).items
        found.append({
            item["metadata"]["name"]: item["status"]["allocation"]["devices"]["results"][0]["device"]
            for item in claims
            if (item.get("status") or {}).get("allocation")
        })  # fmt: skip

    assert found == [{"of-d": "gpu-0", "of-a": "gpu-1", "of-c": "gpu-2"}] * 2


async def test_explanations_of_the_copy_and_of_the_file_agree(tmp_path: Path) -> None:
    file = saved.write(tmp_path / "saved.json", saved.full_cluster())
    index = tmp_path / "snapshot.json"
    index.write_text(json.dumps({"version": "1.36"}))
    copy = ClusterCopy.read(tmp_path)
    async with ControlPlane(release=copy.release, copy=copy) as plane:
        await plane.calm()
        plane.schedule()
        await plane.calm()
        client = await plane.connect("test")
        release = await discover_release(client)
        live = await read_live(plane.credentials(), ReadScope("train", all_events=False))
    documents = []
    for objects in (load(tmp_path), live):
        cluster = objects.cluster()
        document = pod_document(explain_pod(ClaimExplainer(cluster), cluster.pods["train", "third"]))
        document.pop("events", None)  # the scheduler of the copy has reported its own attempt
        documents.append(document)

    assert file.exists()
    assert str(release) == copy.version == live.version == "1.36"
    assert documents[0] == documents[1]


async def test_timeline_and_page_have_the_objects_of_the_copy(tmp_path: Path) -> None:
    history = PageHistory(UNMODIFIED)

    await run(tmp_path, saved.full_cluster(), files=manifests(tmp_path, saved.device_class("more")),
              record=tmp_path / "t.jsonl")  # fmt: skip

    records = list(Recording(tmp_path / "t.jsonl").records())
    copied_ = [item for item in records if isinstance(item, ObjectChanged) and item.existing]
    [summary] = [item for item in records if isinstance(item, ClusterCopied)]
    for record in records:
        history.read(record)
    assert {item.object["metadata"]["name"] for item in copied_} >= {"gpu-1", "first", "one", "gpu-1-slice", "gpu"}
    assert summary.number > max(item.number for item in copied_)
    assert summary.summary.startswith("1 node, 2 devices")


async def test_a_recording_of_a_copy_is_explained_by_the_rules_of_its_release(tmp_path: Path) -> None:
    objects = [*saved.full_cluster()[:3], saved.pod("third", "three"), saved.claim("three")]
    [request] = objects[4]["spec"]["devices"]["requests"]
    request["exactly"]["selectors"] = [{"cel": {"expression": "!cidr('10.0.0.0/8').isMask()"}}]  # unknown in 1.37
    remedy, file = manifests(tmp_path, saved.device_class("more")), tmp_path / "t.jsonl"

    code, text = await run(tmp_path, objects, release="1.38", files=remedy, record=file)

    recording, history = Recording(file), PageHistory(Release.parse("1.38"))
    for record in recording.records():
        history.read(record)
    assert recording.header is not None
    explanation = history.explanation("pod-third", history.last)
    assert explanation is not None
    replayed = await asyncio.to_thread(CliRunner().invoke, cli, ["replay", str(file), "--at", "1h"])
    assert code == 1
    assert KubernetesVersion.parse(recording.header.version) == (1, 38)
    assert "gives up" not in text + replayed.output
    assert "pod train/third cannot be scheduled" in replayed.output
    assert "Kubernetes 1.38 · " in explanation().html(dt.datetime.now(dt.UTC))


async def test_objects_that_change_while_a_copy_is_recorded_have_their_newest_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [saved.claim(f"claim-{number:04}") for number in range(1_500)]
    copy = ClusterCopy.read(saved.write(tmp_path / "saved.json", [saved.node(), saved.device_class(), *claims]))
    records = list[Record]()
    settings_ = SandboxSettings(nodes=0, copy=copy, release=copy.release)
    sandbox = Sandbox([], settings_, observers=(feeding(records.append),))
    waited = list[None]()

    async def room(_: TimelineFile) -> None:
        waited.append(None)
        if len(waited) == 1:
            there = sandbox.informers.objects(RESOURCE_CLAIMS)
            await sandbox.client.patch(RESOURCE_CLAIMS, "claim-1498", {"metadata": {"labels": {"a": "b"}}}, "train")
            await sandbox.client.delete(RESOURCE_CLAIMS, "claim-1499", "train")
            await until(lambda: ("train", "claim-1499") not in there)
            await until(lambda: "labels" in there["train", "claim-1498"]["metadata"])

    monkeypatch.setattr(TimelineFile, "room", room)
    async with sandbox:
        pass

    newest = {item.object["metadata"]["name"]: item for item in records if isinstance(item, ObjectChanged)}
    assert waited
    assert newest["claim-1497"].existing
    assert newest["claim-1498"].object["metadata"]["labels"] == {"a": "b"}
    assert newest["claim-1499"].change == "DELETED"


async def test_a_node_of_the_copy_can_be_cordoned_and_deleted(tmp_path: Path) -> None:
    async with copied(tmp_path, *saved.full_cluster()) as (plane, client):
        await client.patch(NODES, "gpu-1", {"spec": {"unschedulable": True}})
        await client.delete(NODES, "gpu-1")
        pods = plane.informers.objects(PODS).values()
        await until(lambda: [item["metadata"]["name"] for item in pods] == ["third"])
        await plane.calm()
        left = [item["metadata"]["name"] for item in (await client.list(PODS)).items]

    assert left == ["third"]


async def test_an_object_that_cannot_be_scheduled_with_costs_its_pod_the_place_alone(tmp_path: Path) -> None:
    nameless = saved.resource_slice("gpu-2", 1)
    nameless["spec"]["devices"][0]["name"] = ""

    async with copied(
        tmp_path, saved.node("gpu-2"), nameless, saved.device_class(), saved.pod("plain"),
        saved.pod("third", "three"), saved.claim("three"), patience=1,
    ) as (plane, _):  # fmt: skip
        pods = plane.informers.objects(PODS).values()

        def placed() -> dict[str, str | None]:
            return {item["metadata"]["name"]: item["spec"].get("nodeName") for item in pods}

        await until(lambda: placed().get("plain"))

        assert placed() == {"third": None, "plain": "gpu-2"}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(PLACES), WRONG), min_size=1, max_size=3))
def test_a_corrupt_cluster_never_ends_the_control_plane(tmp_path: Path, damages: list[tuple[Any, Any]]) -> None:
    objects: Any = saved.full_cluster()
    for place, value in damages:
        put(objects, place, value)

    async def play() -> None:
        async with copied(tmp_path, *objects, patience=2) as (_, client):
            await client.list(PODS)

    try:
        asyncio.run(play())
    except ConfigurationError as error:
        assert "\n" not in str(error)  # noqa: PT017 - it may be taken, or refused in words
