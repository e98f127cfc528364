"""``dra-kit explain -f`` of Deployments and other objects with a pod template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.cluster.saved import (
    CASES,
    CHEESE,
    KITCHEN,
    Document,
    claim,
    explained_manifest,
    node,
    pod,
    run,
    save,
    slice_of,
    template,
    words,
)

CHEDDAR = template("cheddar", f'{CHEESE} == "cheddar"')
SHARED = CASES / "replicas-share-one-claim"


def pod_template(**spec: Any) -> Document:
    made = pod("unused", template="cheddar", **spec)
    return {"metadata": {"labels": {"app": "serve"}}, "spec": made["spec"]}


def workload(kind: str, api_version: str = "apps/v1", **spec: Any) -> Document:
    selector = {"selector": {"matchLabels": {"app": "serve"}}} if api_version == "apps/v1" else {}
    whole = {**selector, "template": pod_template(), **spec}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "serve"}, "spec": whole}


@pytest.mark.parametrize(
    ("document", "count"),
    [
        (workload("Deployment"), 1),
        (workload("Deployment", replicas=2), 2),
        (workload("StatefulSet", replicas=2), 2),
        (workload("ReplicaSet", replicas=2), 2),
        (workload("ReplicationController", "v1", replicas=2), 2),
        (workload("Job", "batch/v1"), 1),
        (workload("Job", "batch/v1", parallelism=5, completions=2), 2),
        (workload("CronJob", "batch/v1", schedule="* * * * *", jobTemplate=workload("Job", parallelism=2)), 2),
    ],
)
def test_pods_of_a_workload_are_explained(tmp_path: Path, document: Document, count: int) -> None:
    if document["kind"] == "CronJob":
        document["spec"].pop("template")
    code, text = explained_manifest(tmp_path, CHEDDAR, document)

    assert code == 0
    kind = document["kind"]
    assert text.startswith(f"{kind} default/serve: {count} pod")
    assert "✓ pod default/serve-0 can run on node-1, node-2\n" in text
    assert f"✓ {count} of {count} pod" in text


def test_replicas_compete_for_devices(tmp_path: Path) -> None:
    code, text = explained_manifest(tmp_path, CHEDDAR, workload("Deployment", replicas=5))

    assert code == 3
    assert "✓ pod default/serve-0 can run on node-1, node-2\n" in text
    assert "✗ pod default/serve-2 cannot be scheduled\n" in text
    assert "serve-1 " not in text.replace("default/serve-1 on node-2", "")
    assert text.endswith("✗ 2 of 5 pods of Deployment default/serve can run: 1 on node-1, 1 on node-2\n")


def test_replicas_that_share_a_claim_need_a_template() -> None:
    result = run("explain", "-f", SHARED / "deployment.yaml", "--from", SHARED / "cluster")

    assert result.exit_code == 3
    text = words(result.output)
    assert "the pod must run where the devices of claim gpu are, and only other nodes are suitable (n2)" in text
    assert "→ pods that share ResourceClaim the-gpu share its devices, and run where these are; with" in text
    assert "resourceClaimTemplateName instead of resourceClaimName this pod gets devices of its own" in text
    assert "✗ 1 of 2 pods of Deployment default/serve can run: 1 on n1" in text
    assert "! all pods share ResourceClaim the-gpu and its devices; with resourceClaimTemplateName each pod" in text


def test_live_pod_of_replicas_that_share_a_claim_needs_a_template() -> None:
    result = run("explain", "pod", "serve-6d4-bbbbb", "--from", SHARED / "cluster")

    assert result.exit_code == 3
    text = words(result.output)
    assert "claim gpu has its devices on n1 (1 node)" in text
    assert (
        "resourceClaimTemplateName instead of resourceClaimName this pod gets devices of its own, and can run" in text
    )
    assert "regardless of devices\n" not in result.output


def test_no_template_is_suggested_if_no_node_has_devices_for_a_claim_of_its_own(tmp_path: Path) -> None:
    holders = claim("a", held=("node-1", "rustica")), claim("b", held=("node-2", "rustica"))
    shared = claim("a", f'{CHEESE} == "cheddar"', held=("node-1", "rustica"))
    late = pod("late", claim="a", requests={"cpu": "3"})
    busy = pod("guest", requests={"cpu": "3"}, nodeName="node-1")
    saved = save(tmp_path / "cluster.yaml", *KITCHEN, holders[1], shared, late, busy)

    result = run("explain", "pod", "late", "--from", saved)

    assert result.exit_code == 3
    assert "resourceClaimTemplateName" not in result.output


def test_daemon_set_has_a_pod_for_each_suitable_node(tmp_path: Path) -> None:
    tainted = node("node-3", taints=[{"key": "dedicated", "effect": "NoSchedule"}])
    cordoned = node("node-4", taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])
    saved = save(tmp_path / "cluster.yaml", *KITCHEN, tainted, cordoned)

    result = run("explain", "-f", save(tmp_path / "d.yaml", CHEDDAR, workload("DaemonSet")), "--from", saved)

    assert result.exit_code == 3
    assert result.output.startswith("DaemonSet default/serve: 3 pods\n")
    assert "✗ pod default/serve-2 cannot be scheduled\n" in result.output
    assert "✗ 2 of 3 pods of DaemonSet default/serve can run: 1 on node-1, 1 on node-2\n" in result.output


def test_daemon_set_without_a_suitable_node_creates_no_pod(tmp_path: Path) -> None:
    document = workload("DaemonSet", template=pod_template(nodeSelector={"oven": "stone"}))

    code, text = explained_manifest(tmp_path, CHEDDAR, document)

    assert code == 3
    assert "✗ DaemonSet default/serve creates no pod: its node selector, affinity and tolerations suit no node" in text


def test_pod_templates_of_custom_resources_are_explained(tmp_path: Path) -> None:
    jobs = [{"name": name, "template": {"spec": {"template": pod_template()}}} for name in ("a", "b", "c")]
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"replicatedJobs": jobs},
    }

    code, text = explained_manifest(tmp_path, CHEDDAR, job_set)

    assert code == 3
    assert "JobSet default/train (spec.replicatedJobs[0].template.spec.template.spec): 1 pod; how many" in words(text)
    assert "✓ pod default/train-0-0 can run on node-1, node-2\n" in text
    assert "✗ pod default/train-2-0 cannot be scheduled\n" in text


def test_pods_of_another_shape_are_explained_as_far_as_they_are_known(tmp_path: Path) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "cheddar"}]
    devices = {"gpus": [{"name": "g", "claimName": "gpu", "requestName": "pizza"}]}
    machine = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "vm"},
        "spec": {"template": {"spec": {"resourceClaims": claims, "domain": {"devices": devices}}}},
    }

    code, text = explained_manifest(tmp_path, CHEDDAR, machine)

    assert code == 4
    text = words(text)
    assert "? pod default/vm-0-0 finds its devices on node-1, node-2; not examined: node selectors, cpu and" in text


def test_custom_resource_may_leave_images_to_its_controller(tmp_path: Path) -> None:
    spec = {"template": pod_template(containers=[{"name": "trainer", "resources": {"claims": [{"name": "food"}]}}])}
    document = {"apiVersion": "example.com/v1", "kind": "Training", "metadata": {"name": "t"}, "spec": spec}

    code, text = explained_manifest(tmp_path, CHEDDAR, document)

    assert code == 0
    assert "✓ pod default/t-0-0 can run on node-1, node-2\n" in text


def test_custom_resources_without_devices_are_passed_over(tmp_path: Path) -> None:
    pattern = {"spec": {"containers": [{"name": "*", "image": "?*", "resources": {"limits": {"cpu": "?*"}}}]}}
    policy = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [{"validate": {"pattern": pattern}}]},
    }

    code, text = explained_manifest(tmp_path, CHEDDAR, policy, pod("guest", template="cheddar"))

    assert code == 0
    assert "ClusterPolicy" not in text


@pytest.mark.parametrize(
    ("kind", "api_version", "spec"),
    [
        ("Deployment", "apps/v1", []),
        ("Deployment", "apps/v1", {"replicas": "many"}),
        ("Deployment", "apps/v1", {"selector": {"matchExpressions": [{}]}}),
        ("StatefulSet", "apps/v1", {"volumeClaimTemplates": ["data"]}),
        ("StatefulSet", "apps/v1", {"volumeClaimTemplates": [{"spec": {}}]}),
        ("Job", "batch/v1", {"parallelism": "many", "completions": []}),
        ("Job", "batch.volcano.sh/v1alpha1", {"parallelism": "many"}),
        ("CronJob", "batch/v1", {"jobTemplate": 5}),
        ("Anything", "example.com/v1", {"resourceClaims": [{"name": 5, "resourceClaimName": []}]}),
        ("Anything", "example.com/v1", {"resourceClaims": [{"resourceClaimName": "x", "name": None}]}),
        (
            "Anything",
            "example.com/v1",
            {"template": {**pod_template(), "spec": {**pod_template()["spec"], "volumes": 5}}},
        ),
    ],
)
def test_malformed_workload_is_an_error_or_explained(tmp_path: Path, kind: str, api_version: str, spec: Any) -> None:
    content = {"template": pod_template(), **spec} if isinstance(spec, dict) else spec
    document = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "serve"}, "spec": content}

    code, text = explained_manifest(tmp_path, CHEDDAR, document)

    assert code in {0, 1, 2}
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("kind", "api_version", "spec"),
    [
        ("Deployment", "apps/v1", {"selector": {}}),
        ("Deployment", "apps/v1", {"selector": None}),
        ("ReplicationController", "v1", {"selector": {"app": "serve"}}),
        ("Job", "batch/v1", {}),
    ],
)
def test_pods_of_others_are_not_replaced(tmp_path: Path, kind: str, api_version: str, spec: Document) -> None:
    other = pod("other", nodeName="node-1", requests={"cpu": "4"})
    document = workload(kind, api_version, **{"template": pod_template(requests={"cpu": "1"}), **spec})
    saved = save(tmp_path / "cluster.yaml", *KITCHEN, other)

    text = run("explain", "-f", save(tmp_path / "rc.yaml", CHEDDAR, document), "--from", saved).output

    assert "cpu: 1 requested, 0 of 4 free (1 node)" in words(text)


def test_volume_claims_of_a_stateful_set_are_not_examined(tmp_path: Path) -> None:
    volumes = [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]

    code, text = explained_manifest(tmp_path, CHEDDAR, workload("StatefulSet", volumeClaimTemplates=volumes))

    assert code == 4
    assert "not examined: volumes (data)" in words(text)


def test_volume_claim_of_a_stateful_set_replaces_a_volume_of_the_same_name(tmp_path: Path) -> None:
    volumes = [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
    document = workload("StatefulSet", volumeClaimTemplates=volumes)
    document["spec"]["template"]["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]

    code, text = explained_manifest(tmp_path, CHEDDAR, document)

    assert code == 4
    assert "not examined: volumes (data)" in words(text)


@pytest.mark.parametrize(
    ("document", "label"),
    [
        (workload("Deployment", replicas=2), "app"),
        (workload("ReplicationController", "v1", replicas=2, selector={"app": "serve"}), "app"),
        (workload("Job", "batch/v1", parallelism=2, completions=2), "batch.kubernetes.io/job-name"),
    ],
)
def test_live_pods_of_a_workload_are_replaced(tmp_path: Path, document: Document, label: str) -> None:
    live = pod("serve-6d4-x", claim="serve-6d4-x-food", nodeName="node-1", requests={"cpu": "4"})
    live["metadata"]["labels"] = {label: "serve"}
    made = claim("serve-6d4-x-food", held=("node-1", "rustica"))
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Pod", "name": "serve-6d4-x", "uid": "uid-serve-6d4-x", "controller": True}
    ]
    saved = save(tmp_path / "cluster.yaml", *KITCHEN, live, made)
    file = save(tmp_path / "d.yaml", CHEDDAR, document)

    result = run("explain", "-f", file, "--from", saved)

    assert result.exit_code == 0
    assert f"✓ 2 of 2 pods of {document['kind']} default/serve can run: 1 on" in words(result.output)


def test_workload_is_explained_in_json(tmp_path: Path) -> None:
    file = save(tmp_path / "d.yaml", CHEDDAR, workload("Deployment", replicas=3))

    result = run("explain", "-f", file, "--from", save(tmp_path / "cluster.yaml", *KITCHEN), "-o", "json")

    whole, first, third = json.loads(result.output)["explanations"]
    assert (whole["kind"], whole["workload"], whole["name"], whole["pods"]) == ("workload", "Deployment", "serve", 3)
    assert [each["node"] for each in whole["placed"]] == ["node-1", "node-2"]
    assert (first["outcome"], third["name"], third["outcome"]) == ("fits", "serve-2", "does-not-fit")


def test_workload_that_an_api_server_would_reject_is_not_explained(tmp_path: Path) -> None:
    wrong = workload("Deployment")
    wrong["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "food"}]

    code, text = explained_manifest(tmp_path, CHEDDAR, wrong)

    assert code == 1
    assert "the API server would reject" in text


def test_two_hundred_replicas_are_placed_without_explaining_each(tmp_path: Path) -> None:
    slices = slice_of("node-5", **{f"d{number}": "cheddar" for number in range(200)})
    saved = save(tmp_path / "cluster.yaml", *KITCHEN, slices, {**node("node-5", cpu="400"), "status": LARGE})
    file = save(tmp_path / "d.yaml", CHEDDAR, workload("Deployment", replicas=202))

    result = run("explain", "-f", file, "--from", saved)

    assert result.exit_code == 0
    assert "✓ 202 of 202 pods" in result.output
    assert len(result.output.splitlines()) < 40


def test_of_very_many_replicas_only_the_first_are_examined(tmp_path: Path) -> None:
    wide = {**node("node-5"), "status": {"allocatable": {"cpu": "400", "memory": "800Gi", "pods": "5000"}}}
    document = workload("Deployment", replicas=2_000_000_000)
    document["spec"]["template"]["spec"] = {"containers": [{"name": "app", "image": "app"}]}
    file = save(tmp_path / "d.yaml", document)

    result = run("explain", "-f", file, "--from", save(tmp_path / "cluster.yaml", *KITCHEN, wide))

    assert result.exit_code == 4
    text = words(result.output)
    assert "? 1000 of 2000000000 pods of Deployment default/serve can run:" in text
    assert text.endswith("; only the first 1000 were examined")


LARGE = {"allocatable": {"cpu": "400", "memory": "800Gi", "pods": "1000"}}
