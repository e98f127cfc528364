"""``dra-kit explain pod``: the claims of a pod, and what is not the devices' fault."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.saved import CHEESE, claim, event, explained, node, pod, slice_of, template, words


def test_a_pod_that_no_node_has_the_cpu_for(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", requests={"cpu": "3"})
    cook = pod("cook", requests={"cpu": "2500m"}, nodeName="node-2")
    documents = claim("lunch"), eater, cook, slice_of("node-3"), node("node-3", taints=[TAINT])

    code, text = explained(tmp_path, *documents, what=("pod", "guest"))

    assert code == 0
    text = words(text)
    assert "2 nodes not for this pod, whatever its devices: " in text
    assert "cpu: 3 asked for, 1500m of 4 free (1 node)" in text
    assert "taint that the pod does not tolerate (dedicated:NoSchedule) (1 node)" in text
    assert text.endswith("✓ pod default/guest can run on node-1")


TAINT = {"key": "dedicated", "effect": "NoSchedule"}


def test_a_pod_whose_devices_are_on_nodes_that_do_not_take_it(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", requests={"cpu": "3"})
    cooks = [pod(f"cook-{name}", requests={"cpu": "2"}, nodeName=name) for name in ("node-1", "node-2")]

    code, text = explained(tmp_path, claim("lunch"), eater, *cooks, node("node-3"), what=("pod", "guest"))

    assert code == 3
    assert "✗ pod default/guest cannot be scheduled\n  nodes that have devices for it do not take it" in text


def test_a_pod_that_asks_for_a_node_that_does_not_exist(tmp_path: Path) -> None:
    code, text = explained(tmp_path, pod("guest", nodeSelector={"oven": "stone"}), what=("pod", "guest"))

    assert code == 3
    assert "not one of the pod's node selector or affinity (2 nodes)" in words(text)
    assert "no node would take it, whatever its devices" in text


def test_a_pod_whose_claim_is_not_made_yet(tmp_path: Path) -> None:
    waiting = pod("guest", template="one-pizza")
    waiting["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    refusal = event("FailedResourceClaimCreation", "guest", "PodResourceClaim food: quota exceeded")

    code, text = explained(tmp_path, waiting, template("one-pizza"), refusal, what=("pod", "guest"))

    assert code == 3
    assert "claim food (from template one-pizza)\n" in text
    assert "✗ pod default/guest waits for a claim\n" in text
    assert "claim food: the claim is not yet made from ResourceClaimTemplate one-pizza\n" in text
    assert "reported: FailedResourceClaimCreation: PodResourceClaim food: quota exceeded\n" in text


def test_a_pod_whose_template_does_not_exist(tmp_path: Path) -> None:
    code, text = explained(tmp_path, pod("guest", template="nix"), what=("pod", "guest"))

    assert code == 3
    assert "✗ ResourceClaimTemplate nix does not exist\n" in text


def test_a_pod_whose_claim_is_allocated_elsewhere(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", nodeSelector={"kubernetes.io/hostname": "node-2"})

    code, text = explained(tmp_path, eater, claim("lunch", held=("node-1", "rustica")), what=("pod", "guest"))

    assert code == 3
    assert "claim food is allocated elsewhere (1 node)" in text


def test_a_pod_that_the_kubelet_cannot_prepare(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", nodeName="node-1")
    eater["status"] = {"phase": "Pending"}
    failure = event("FailedPrepareDynamicResources", "guest", "the oven is cold")

    code, text = explained(tmp_path, eater, claim("lunch", held=("node-1", "rustica")), failure, what=("pod", "guest"))

    assert code == 3
    assert "✗ pod default/guest has its devices on node-1, and the kubelet cannot prepare them\n" in text
    assert "reported: FailedPrepareDynamicResources: the oven is cold\n" in text


def test_what_the_scheduler_said_is_told_also_where_it_could_go_on_now(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch")
    condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    eater["status"] = {"phase": "Pending", "conditions": [condition]}

    code, text = explained(tmp_path, eater, claim("lunch"), what=("pod", "guest"))

    assert code == 0
    assert text.endswith("can run on node-1, node-2\n  reported: FailedScheduling: 0/2 nodes are available\n")


def test_a_pod_that_runs(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", nodeName="node-1")
    eater["status"] = {"phase": "Running"}

    code, text = explained(tmp_path, eater, claim("lunch", held=("node-1", "rustica")), what=("pod", "guest"))

    assert code == 0
    assert "✓ pod default/guest runs on node-1\n" in text


def test_a_pod_with_extended_resources_that_devices_provide(tmp_path: Path) -> None:
    eater = pod("guest", requests={"deviceclass.resource.kubernetes.io/pizza": "2"})

    code, text = explained(tmp_path, eater, what=("pod", "guest"))

    assert code == 0
    assert "claim of extended resources\nrequest container-0-request-0: 2 devices" in text
    assert "provided by devices, not by a device plugin: deviceclass.resource.kubernetes.io/pizza\n" in text
    assert "✓ pod default/guest can run on node-1, node-2\n" in text


def test_claims_that_only_together_do_not_fit(tmp_path: Path) -> None:
    cheddar = f'{CHEESE} == "cheddar"'
    eater = pod("guest", resourceClaims=[{"name": n, "resourceClaimName": n} for n in ("a", "b")])

    code, text = explained(tmp_path, eater, claim("a", cheddar), claim("b", cheddar), what=("pod", "guest"))

    assert code == 3
    assert "each claim finds devices for itself, but no node has devices for all of them at once\n" in text
