from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dra_kit.apiserver.api import RuntimeConfig
from dra_kit.client.resources import DEPLOYMENTS, DEVICE_TAINT_RULES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES
from dra_kit.diagnosis.live_cluster import ReadScope, read_live
from dra_kit.errors import InternalError, SandboxError
from dra_kit.kubernetes.release import SUPPORTED, KubernetesVersion, Release
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.stories.manifests import apply_files
from tests.unit.sandbox.cluster.kubelet.polling import until

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec: {containers: [{name: eater, image: x}]}
"""
TEMPLATE = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: lunch, namespace: team}
spec: {spec: {devices: {requests: [{name: a, exactly: {deviceClassName: pizza}}]}}}
"""
NAMESPACE = "{apiVersion: v1, kind: Namespace, metadata: {name: team}}"


async def test_failed_component_cancels_waiting_work() -> None:
    def fail(_: SchedulingDecision) -> None:
        raise SandboxError("no kitchen")

    async with ControlPlane(observe=fail) as control_plane:
        client = await control_plane.connect("test")
        pod = {"metadata": {"name": "guest"}, "spec": {"containers": [{"name": "eater", "image": "x"}]}}
        await client.create(PODS, pod, "default")

        with pytest.raises(SandboxError, match="no kitchen"):
            await control_plane.or_fail(asyncio.Event().wait())


async def test_control_plane_is_empty_before_its_start() -> None:
    with pytest.raises(InternalError, match="has not been started"):
        _ = ControlPlane().informers


@pytest.mark.parametrize(("room", "over_tls"), [("4096\n", False), ("128\n", True), ("", True)])
async def test_clients_in_the_process_use_a_unix_socket_with_a_large_backlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str, over_tls: bool
) -> None:
    monkeypatch.setattr("dra_kit.sandbox.control_plane.SOMAXCONN", tmp_path / "somaxconn")
    if room:
        (tmp_path / "somaxconn").write_text(room)
    control_plane = ControlPlane()
    control_plane.listen_at(tmp_path / "api.sock")

    async with control_plane:
        client = await control_plane.connect("test")
        assert (await client.list(NODES)).items == []
        assert (control_plane.credentials().ssl is not None) == over_tls
        assert (tmp_path / "api.sock").is_socket() != over_tls


async def test_controller_reconciles_the_first_workload() -> None:
    async with ControlPlane() as control_plane:
        client, known = await control_plane.connect("test"), control_plane.informers.objects(DEPLOYMENTS)
        requests = control_plane.server.requests
        labels = {"app": "a"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}

        assert DEPLOYMENTS.plural not in {resource for _, _, resource in requests}
        assert not known
        for name in ("first", "second"):
            await client.create(DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec}, "default")
        await until(lambda: {*known} == {("default", "first"), ("default", "second")})
        assert ("dra-kit-sandbox", "list", DEPLOYMENTS.plural) in {*requests}


async def test_a_node_takes_pods_once_it_is_ready() -> None:
    async with ControlPlane() as control_plane:
        client = await control_plane.connect("test")
        status = {"allocatable": {"pods": "10"}}
        await client.create(NODES, {"metadata": {"name": "node-1"}, "status": status})
        await client.create(
            PODS, {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}, "default"
        )
        nodes, pods = control_plane.informers.objects(NODES), control_plane.informers.objects(PODS)
        await until(lambda: bool(pods.get(("default", "a"), {}).get("status", {}).get("conditions")))
        assert pods["default", "a"]["status"]["conditions"][0]["reason"] == "Unschedulable"

        await client.patch(
            NODES, "node-1", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, subresource="status"
        )

        await until(lambda: pods["default", "a"]["spec"].get("nodeName") == "node-1")
        assert not nodes["", "node-1"]["spec"].get("taints")


async def test_files_are_applied_in_a_working_order_and_can_be_reapplied(tmp_path: Path) -> None:
    (tmp_path / "1-pod.yaml").write_text(f"{POD}---\n{TEMPLATE}")
    (tmp_path / "2-namespace.yml").write_text(NAMESPACE)
    async with ControlPlane() as control_plane:
        client = await control_plane.connect("test")

        applied = await apply_files(client, [tmp_path])
        (tmp_path / "1-pod.yaml").write_text(TEMPLATE.replace("name: lunch,", "name: lunch, labels: {a: b},"))
        await apply_files(client, [tmp_path])

        assert [str(item.object["kind"]) for item in applied] == ["Namespace", "ResourceClaimTemplate", "Pod"]
        assert applied[-1].namespace == "default"
        changed = await client.get(RESOURCE_CLAIM_TEMPLATES, "lunch", "team")
        assert changed["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize("version", SUPPORTED, ids=str)
async def test_a_cluster_of_each_release_has_its_default_versions(version: KubernetesVersion) -> None:
    async with ControlPlane(release=Release.of(version)) as plane:
        client = await plane.connect("test")

        assert (await client.list(NODES)).items == []
        assert not plane.informers.objects(DEVICE_TAINT_RULES)


@pytest.mark.parametrize(("minor", "served"), [(35, "v1alpha3"), (36, "v1alpha3"), (36, "v1beta2"), (37, "v1")])
async def test_taint_rules_are_followed_and_answered_in_the_version_that_is_served(minor: int, served: str) -> None:
    release = Release.alpha(KubernetesVersion(1, minor))
    config = RuntimeConfig.parse(f"resource.k8s.io/{served}=true")
    [rules] = [resource for resource in DEVICE_TAINT_RULES.versions if resource.version == served]
    spec = {"deviceSelector": {"driver": "dra.pizza"}, "taint": {"key": "cold", "effect": "NoExecute"}}

    async with ControlPlane(release=release, runtime_config=config) as plane:
        client = await plane.connect("test")
        await client.create(rules, {"metadata": {"name": "cold"}, "spec": spec})
        known = plane.informers.objects(DEVICE_TAINT_RULES)
        await until(lambda: bool(known.get(("", "cold"), {}).get("status")))
        live = await read_live(plane.credentials(), ReadScope("default"))

    assert [rule.metadata.name for rule in live.cluster().rules] == ["cold"]
