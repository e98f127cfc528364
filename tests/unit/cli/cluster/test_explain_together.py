"""``dra-kit explain -f`` of several pods, which compete for devices, cpu and consumers of a claim."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.diagnosis.explain.pods import PodSequence
from tests.unit.cli.cluster.saved import (
    CASES,
    CHEESE,
    KITCHEN,
    claim,
    explained,
    explained_manifest,
    node,
    pod,
    run,
    save,
    slice_of,
    template,
    words,
)
from tests.unit.diagnosis.explain.world import cluster, device_class

ONE_POOL = CASES / "one-pool-name-on-three-nodes"
CHEDDAR = template("cheddar", f'{CHEESE} == "cheddar"')


def test_pods_of_one_file_compete_for_devices(tmp_path: Path) -> None:
    pods = [pod(name, template="cheddar") for name in ("a", "b", "c")]

    code, text = explained_manifest(tmp_path, CHEDDAR, *pods)

    assert code == 3
    text = words(text)
    assert "✓ pod default/a can run on node-1, node-2" in text
    assert "pod default/b comes after default/a on node-1, whose devices, cpu and memory are then in use" in text
    assert "✓ pod default/b can run on node-2" in text
    assert "pod default/c comes after default/a on node-1, default/b on node-2" in text
    assert "✗ rustica allocated to default/a-food-*" in text
    assert "✗ pod default/c cannot be scheduled without the pods before it, it could run on node-1 and node-2" in text


def test_pods_of_one_file_compete_for_extended_resources(tmp_path: Path) -> None:
    provider = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "rustica"},
        "spec": {
            "selectors": [{"cel": {"expression": f'{CHEESE} == "cheddar"'}}],
            "extendedResourceName": "dra.pizza/rustica",
        },
    }
    container = {"name": "eater", "image": "busybox", "resources": {"limits": {"dra.pizza/rustica": "1"}}}
    pods = [pod(name, containers=[container]) for name in ("a", "b", "c")]

    code, text = explained_manifest(tmp_path, provider, *pods)

    assert code == 3
    assert "✗ rustica allocated to default/a-extended-resources-*" in words(text)
    assert "✗ rustica allocated to default/b-extended-resources-*" in words(text)
    assert "✗ pod default/c cannot be scheduled" in text


def test_claim_that_has_devices_keeps_them_when_its_manifest_is_applied(tmp_path: Path) -> None:
    guest = pod("guest", claim="lunch", nodeName="node-1")
    saved = save(tmp_path / "cluster.yaml", *KITCHEN, claim("lunch", held=("node-1", "rustica")), guest)
    late = pod("late", claim="lunch", nodeSelector={"kubernetes.io/hostname": "node-2"})

    result = run("explain", "-f", save(tmp_path / "late.yaml", claim("lunch"), late), "--from", saved)

    assert result.exit_code == 3
    assert "the pod must run where the devices of claim food are, and only" in words(result.output)


def test_pods_of_one_file_compete_for_cpu(tmp_path: Path) -> None:
    pods = [pod(name, template="cheddar", requests={"cpu": "3"}) for name in ("a", "b")]
    cooks = [pod("cook", requests={"cpu": "3"}, nodeName="node-2")]
    saved = save(tmp_path / "cluster.yaml", *KITCHEN, *cooks)

    result = run("explain", "-f", save(tmp_path / "pods.yaml", CHEDDAR, *pods), "--from", saved)

    assert result.exit_code == 3
    assert "✓ pod default/a can run on node-1\n" in result.output
    assert "cpu: 3 requested, 1 of 4 free (2 nodes)" in words(result.output)


def test_pods_that_share_a_claim_run_where_its_devices_are(tmp_path: Path) -> None:
    pods = [pod(name, claim="lunch") for name in ("a", "b")]

    code, text = explained_manifest(tmp_path, claim("lunch"), *pods)

    assert code == 0
    assert "✓ pod default/b can run on node-1\n" in text


def test_pods_of_a_file_are_placed_in_json(tmp_path: Path) -> None:
    file = save(tmp_path / "pods.yaml", CHEDDAR, *(pod(name, template="cheddar") for name in ("a", "b")))

    result = run("explain", "-f", file, "--from", save(tmp_path / "cluster.yaml", *KITCHEN), "-o", "json")

    first, second = json.loads(result.output)["explanations"]
    assert first["after"] == []
    assert second["after"] == [{"name": "default/a", "node": "node-1"}]


def test_device_of_a_pool_that_several_nodes_publish_is_one_device() -> None:
    result = run("explain", "-f", ONE_POOL / "ask.yaml", "--from", ONE_POOL / "cluster")

    assert result.exit_code == 3
    assert "✓ pod default/a can run on n1, n2, n3\n" in result.output
    assert "✗ pod default/b cannot be scheduled\n" in result.output


def test_live_pods_are_explained_one_by_one(tmp_path: Path) -> None:
    pods = [pod(name, template="cheddar") for name in ("a", "b", "c")]

    code, text = explained(tmp_path, CHEDDAR, *pods, what=("pod", "a", "b", "c"))

    assert code == 0
    assert "comes after" not in text


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 12))
def test_as_many_pods_fit_as_there_are_devices(devices: list[int], count: int) -> None:
    names = [f"n{number}" for number in range(len(devices))]
    slices = [
        slice_of(name, **{f"d{number}": "brie" for number in range(number_of_devices)})
        for name, number_of_devices in zip(names, devices, strict=True)
        if number_of_devices
    ]
    pods = [pod(f"pod-{number}", template="one") for number in range(count)]

    def view() -> ClusterView:
        return cluster(
            *slices,
            classes=[device_class(name="pizza")],
            nodes=[node(name) for name in names],
            Pod=pods,
            ResourceClaimTemplate=[template("one")],
        )

    sequence = PodSequence(ClaimExplainer(view()), view)

    outcomes = [sequence.explain(each)[0].outcome for each in pods]

    free = sum(devices)
    assert outcomes == ["fits"] * min(free, count) + ["does-not-fit"] * max(count - free, 0)
