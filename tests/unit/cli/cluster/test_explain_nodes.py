"""``dra-kit explain pod``: what nodes have besides claims, and pods that were put on one without kube-scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.cluster.saved import (
    CASES,
    CLASS,
    DRIVER,
    Document,
    claim,
    explained,
    node,
    pod,
    run,
    template,
    words,
)

CALZONE = "pizza.example/calzone"
PROVIDER: Document = {
    **CLASS,
    "metadata": {"name": "calzone"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}], "extendedResourceName": CALZONE},
}


def with_plugin(name: str, calzones: str = "2") -> Document:
    document = node(name)
    document["status"]["allocatable"][CALZONE] = calzones
    return document


def on(node_name: str, name: str = "guest", **more: Any) -> Document:
    return {**pod(name, nodeName=node_name, **more), "status": {"phase": "Pending"}}


# --- pods whose spec names a node


def test_a_pod_on_a_node_whose_claim_is_not_allocated_never_starts(tmp_path: Path) -> None:
    code, text = explained(tmp_path, on("node-2", claim="lunch"), claim("lunch"), what=("pod", "guest"))

    assert code == 3
    text = words(text)
    assert "✗ pod default/guest is on node-2 without having devices there" in text
    assert "claim food is neither allocated nor reserved for the pod, which only kube-scheduler does" in text
    assert "instead of nodeName: node-2 write nodeSelector: {kubernetes.io/hostname: node-2}" in text


def test_a_pod_on_a_node_whose_claim_is_not_made_never_starts(tmp_path: Path) -> None:
    code, text = explained(tmp_path, on("node-2", template="one"), template("one"), what=("pod", "guest"))

    assert code == 3
    assert "claim food is neither allocated nor reserved" in text


def test_a_pod_on_another_node_than_its_devices_never_starts(tmp_path: Path) -> None:
    documents = on("node-2", claim="lunch"), claim("lunch", held=("node-1", "rustica"))

    code, text = explained(tmp_path, *documents, what=("pod", "guest"))

    assert code == 3
    assert "  claim food has its devices on node-1\n" in text


def test_a_pod_on_the_node_of_its_devices_starts(tmp_path: Path) -> None:
    documents = on("node-1", claim="lunch"), claim("lunch", held=("node-1", "rustica"))

    code, text = explained(tmp_path, *documents, what=("pod", "guest"))

    assert code == 0
    assert "✓ pod default/guest is scheduled to node-1\n" in text


def test_a_pod_that_runs_has_what_it_needs(tmp_path: Path) -> None:
    running = {**on("node-1", claim="lunch"), "status": {"phase": "Running"}}

    assert explained(tmp_path, running, claim("lunch"), what=("pod", "guest"))[0] == 0


# --- taints


def test_explain_reports_only_taints_that_reject_the_pod(tmp_path: Path) -> None:
    taints = [
        {"key": "tolerated", "effect": "NoSchedule"},
        {"key": "prefer", "effect": "PreferNoSchedule"},
        {"key": "hard", "effect": "NoExecute"},
    ]
    eater = pod("guest", tolerations=[{"key": "tolerated", "operator": "Exists"}])

    _, text = explained(tmp_path, eater, node("node-3", taints=taints), what=("pod", "guest"))

    assert "taint that the pod does not tolerate (hard:NoExecute) (1 node)" in words(text)


# --- extended resources


def test_an_extended_resource_is_a_claims_where_no_device_plugin_has_it(tmp_path: Path) -> None:
    eater = pod("guest", requests={CALZONE: "1"})

    code, text = explained(tmp_path, PROVIDER, eater, with_plugin("node-3"), what=("pod", "guest"))

    assert code == 0
    assert "claim of extended resources\nrequest container-0-request-0: 1 device of class calzone" in text
    text = words(text)
    assert (
        f"{CALZONE} is provided by devices of class calzone on node-1 and node-2, by a device plugin on node-3" in text
    )
    assert text.endswith("✓ pod default/guest can run on node-1, node-2, node-3")


def test_a_device_plugin_whose_resources_are_taken_does_not_keep_claims_away(tmp_path: Path) -> None:
    documents = PROVIDER, with_plugin("node-3", "1"), on("node-3", "other", requests={CALZONE: "1"})

    code, text = explained(tmp_path, *documents, pod("guest", requests={CALZONE: "1"}), what=("pod", "guest"))

    assert code == 0
    text = words(text)
    assert f"{CALZONE}: 1 requested, 0 of 1 free (1 node)" in text
    assert text.endswith("✓ pod default/guest can run on node-1, node-2")


def test_a_plugin_with_nothing_to_give_provides_nothing(tmp_path: Path) -> None:
    documents = PROVIDER, with_plugin("node-3", "0"), pod("guest", requests={CALZONE: "1"})

    _, text = explained(tmp_path, *documents, what=("pod", "guest"))

    assert f"{CALZONE} is provided by devices of class calzone on node-1, node-2 and node-3\n" in text


def test_a_pod_with_resources_of_a_device_plugin_says_so(tmp_path: Path) -> None:
    documents = PROVIDER, with_plugin("node-3"), on("node-3", requests={CALZONE: "1"})

    code, text = explained(tmp_path, *documents, what=("pod", "guest"))

    assert code == 0
    assert text.startswith(f"{CALZONE} is provided by a device plugin on node-3\n")


def test_a_pod_with_resources_of_a_claim_says_so(tmp_path: Path) -> None:
    eater = on("node-1", requests={CALZONE: "1"})
    mapping = {"containerName": "eater", "resourceName": CALZONE, "requestName": "pizza"}
    eater["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "made", "requestMappings": [mapping]}
    documents = PROVIDER, with_plugin("node-3"), eater, claim("made", held=("node-1", "rustica"))

    code, text = explained(tmp_path, *documents, what=("pod", "guest"))

    assert code == 0
    assert "claim of extended resources\n✓ default/made is allocated\n" in text
    assert f"{CALZONE} is provided by devices of class calzone on node-1\n" in text


def test_a_resource_that_nothing_provides(tmp_path: Path) -> None:
    code, text = explained(tmp_path, pod("guest", requests={CALZONE: "1"}), what=("pod", "guest"))

    assert code == 3
    assert f"{CALZONE} is not provided: neither a device plugin" in text


DROPPED = CASES / "extended-name-dropped"


def release(tmp_path: Path, version: str) -> Path:
    """A snapshot of a cluster of this release whose API server dropped the name in the class."""
    folder = tmp_path / f"snapshot-{version}"
    folder.mkdir()
    (folder / "snapshot.json").write_text(json.dumps({"version": version}))
    (folder / "objects.yaml").write_bytes((DROPPED / "cluster" / "objects.yaml").read_bytes())
    return folder


def test_missing_name_of_an_extended_resource_may_be_dropped_by_an_old_release() -> None:
    result = run("explain", "pod", "old-style", "--from", DROPPED / "cluster")

    assert result.exit_code == 3
    text = words(result.output)
    assert (
        "A DeviceClass has it with extendedResourceName: example.net/gpu, which Kubernetes 1.34 and 1.35 drop" in text
    )
    assert "unless the feature gate DRAExtendedResource is on" in text


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_old_release_drops_the_name_of_an_extended_resource_in_a_manifest(tmp_path: Path, version: str) -> None:
    result = run("explain", "-f", DROPPED / "class-and-pod.yaml", "--from", release(tmp_path, version))

    assert result.exit_code == 3
    text = words(result.output)
    assert f"Kubernetes {version} drops extendedResourceName of DeviceClasses" in text
    assert "as the feature gate DRAExtendedResource is off" in text
    assert "example.net/gpu: 1 requested, 0 of 0 free (1 node)" in text


@pytest.mark.parametrize(("version", "alpha"), [("1.36", False), ("1.37", False), ("1.34", True)])
def test_extended_resource_of_a_manifest_is_provided_where_the_gate_is_on(
    tmp_path: Path, version: str, alpha: bool
) -> None:
    options = ["--alpha"] if alpha else []

    result = run("explain", "-f", DROPPED / "class-and-pod.yaml", "--from", release(tmp_path, version), *options)

    assert result.exit_code == 0
    assert "✓ pod default/old-style can run on n1\n" in result.output


def test_second_class_of_an_extended_resource_is_named(tmp_path: Path) -> None:
    older = {**PROVIDER, "metadata": {"name": "older", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    newer = {**PROVIDER, "metadata": {"name": "newer", "creationTimestamp": "2026-01-02T00:00:00Z"}}

    _, text = explained(tmp_path, older, newer, pod("guest", requests={CALZONE: "1"}), what=("pod", "guest"))

    text = words(text)
    assert f"{CALZONE} is provided by devices of class newer on node-1 and node-2; older has the same" in text
    assert "kube-scheduler uses the newest class" in text


def test_json_output_contains_providers_of_a_resource(tmp_path: Path) -> None:
    documents = PROVIDER, with_plugin("node-3"), pod("guest", requests={CALZONE: "1"})

    _, text = explained(tmp_path, *documents, what=("pod", "guest", "-o", "json"))

    [found] = json.loads(text)["explanations"]
    assert found["extendedResources"] == [CALZONE]
    by_claim = {"name": CALZONE, "deviceClass": "calzone", "byClaim": ["node-1", "node-2"]}
    assert found["resources"] == [{**by_claim, "byDevicePlugin": ["node-3"], "otherClasses": []}]
