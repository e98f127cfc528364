"""``dra-kit explain pod``: the claims of a pod, and what is not the devices' fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.cluster.saved import (
    CASES,
    CHEESE,
    KITCHEN,
    Document,
    claim,
    event,
    explained,
    node,
    pod,
    run,
    save,
    slice_of,
    template,
    words,
)

HELD = claim("lunch", held=("node-1", "rustica"))
TAINT = {"key": "dedicated", "effect": "NoSchedule"}


def test_a_pod_that_no_node_has_the_cpu_for(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", requests={"cpu": "3"})
    cook = pod("cook", requests={"cpu": "2500m"}, nodeName="node-2")
    documents = claim("lunch"), eater, cook, slice_of("node-3"), node("node-3", taints=[TAINT])

    code, text = explained(tmp_path, *documents, what=("pod", "guest"))

    assert code == 0
    text = words(text)
    assert "2 nodes unsuitable for this pod, regardless of devices: " in text
    assert "cpu: 3 requested, 1500m of 4 free (1 node)" in text
    assert "taint that the pod does not tolerate (dedicated:NoSchedule) (1 node)" in text
    assert text.endswith("✓ pod default/guest can run on node-1")


def test_a_pod_whose_devices_are_on_nodes_that_do_not_take_it(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", requests={"cpu": "3"})
    cooks = [pod(f"cook-{name}", requests={"cpu": "2"}, nodeName=name) for name in ("node-1", "node-2")]

    code, text = explained(tmp_path, claim("lunch"), eater, *cooks, node("node-3"), what=("pod", "guest"))

    assert code == 3
    assert "✗ pod default/guest cannot be scheduled\n  nodes with devices for it are unsuitable" in text


def test_a_class_that_does_not_exist_is_an_error_also_if_no_node_takes_the_pod(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", nodeSelector={"oven": "stone"})

    code, text = explained(tmp_path, claim("lunch", device_class="pasta"), eater, what=("pod", "guest"))

    assert code == 3
    assert "DeviceClass pasta does not exist" in text
    assert "no node is suitable" not in text


def test_a_selector_that_fails_does_not_matter_if_no_node_takes_the_pod(tmp_path: Path) -> None:
    failing = claim("lunch", 'device.attributes["dra.pizza"].nothing')
    eater = pod("guest", claim="lunch", nodeSelector={"oven": "stone"})

    code, text = explained(tmp_path, failing, eater, what=("pod", "guest"))

    assert code == 3
    assert "no node is suitable, regardless of devices" in text


def test_a_pod_that_asks_for_a_node_that_does_not_exist(tmp_path: Path) -> None:
    code, text = explained(tmp_path, pod("guest", nodeSelector={"oven": "stone"}), what=("pod", "guest"))

    assert code == 3
    assert "not one of the pod's node selector or affinity (2 nodes)" in words(text)
    assert "no node is suitable, regardless of devices" in text


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


def test_a_misspelt_claim_or_template_is_known_by_the_nearest_of_the_namespace(tmp_path: Path) -> None:
    _, text = explained(tmp_path, pod("guest", claim="lnch"), claim("lunch"), what=("pod", "guest"))
    assert '✗ ResourceClaim lnch does not exist; did you mean "lunch"?\n' in text

    _, text = explained(tmp_path, pod("guest", template="one-piza"), template("one-pizza"), what=("pod", "guest"))
    assert '✗ ResourceClaimTemplate one-piza does not exist; did you mean "one-pizza"?\n' in text


def test_template_of_another_namespace_is_found_there(tmp_path: Path) -> None:
    file = CASES / "template-in-another-namespace" / "pod.yaml"

    result = run("explain", "-f", file, "--from", save(tmp_path / "cluster.yaml", *KITCHEN))

    assert result.exit_code == 3
    text = words(result.output)
    assert "✗ ResourceClaimTemplate one-tray-with-lid is in namespace oven-a, and pods only use those of" in text
    assert "did you mean" not in text


def test_a_pod_whose_claim_is_allocated_elsewhere(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", nodeSelector={"kubernetes.io/hostname": "node-2"})

    code, text = explained(tmp_path, eater, HELD, what=("pod", "guest"))

    assert code == 3
    assert "claim food has its devices on node-1 (1 node)" in text


def test_a_pod_that_the_kubelet_cannot_prepare(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", nodeName="node-1")
    eater["status"] = {"phase": "Pending"}
    failure = event("FailedPrepareDynamicResources", "guest", "the oven is cold")

    code, text = explained(tmp_path, eater, HELD, failure, what=("pod", "guest"))

    assert code == 3
    assert "✗ pod default/guest has its devices on node-1, and the kubelet cannot prepare them\n" in text
    assert "reported: FailedPrepareDynamicResources: the oven is cold\n" in text


def unprepared(note: str = "DRA driver dra.pizza is not registered") -> tuple[Document, ...]:
    """A pod with its devices on node-1, which the kubelet cannot prepare."""
    eater = pod("guest", claim="lunch", nodeName="node-1")
    eater["status"] = {"phase": "Pending"}
    return eater, HELD, event("FailedPrepareDynamicResources", "guest", note)


def driver_pod(name: str, **spec: Any) -> Document:
    document = pod(name, nodeName="node-1", **spec)
    return {**document, "metadata": {**document["metadata"], "namespace": "kitchen"}}


@pytest.mark.parametrize(("folder", "node_name"), [("cluster", "n1"), ("kubectl-saved", "node-1")])
def test_event_of_the_core_api_shows_that_devices_are_not_prepared(folder: str, node_name: str) -> None:
    result = run("explain", "pod", "worker-0", "--from", CASES / "driver-not-registered" / folder)

    assert result.exit_code == 3
    text = words(result.output)
    assert f"✗ pod default/worker-0 has its devices on {node_name}, and the kubelet cannot prepare them" in text
    assert f"→ fabric.example.net must run and register with the kubelet of {node_name}: does its pod" in text
    assert "prepare dynamic resources: DRA driver fabric.example.net is not registered" in text


def test_unprepared_devices_point_to_the_pod_of_the_driver_on_that_node(tmp_path: Path) -> None:
    agent = driver_pod("oven-x7")
    labels = {"app.kubernetes.io/name": "dra.pizza", "app.kubernetes.io/component": "node"}
    agent["metadata"]["labels"] = labels
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    agent["status"] = {"containerStatuses": [{"name": "eater", "state": waiting, "lastState": {}}]}

    code, text = explained(tmp_path, *unprepared(), agent, what=("pod", "guest"))

    assert code == 3
    assert "see the log of its pod there, kitchen/oven-x7 (container eater: CrashLoopBackOff)" in words(text)


def test_unprepared_devices_point_to_pods_with_the_folders_of_kubelet_plugins(tmp_path: Path) -> None:
    registry = {"name": "r", "hostPath": {"path": "/var/lib/kubelet/plugins_registry", "type": ""}}
    others = driver_pod("web", volumes=[{"name": "logs", "hostPath": {"path": "/var/log", "type": ""}}])
    saved = save(tmp_path / "cluster.yaml", *KITCHEN, *unprepared(), driver_pod("agent", volumes=[registry]), others)

    text = words(run("explain", "pod", "guest", "--from", saved).output)

    assert "one of those with the kubelet's plugin folders: kitchen/agent" in text
    assert "kitchen/web" not in text


def test_scheduler_message_is_reported_even_if_the_pod_would_fit_now(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch")
    condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    eater["status"] = {"phase": "Pending", "conditions": [condition]}

    code, text = explained(tmp_path, eater, claim("lunch"), what=("pod", "guest"))

    assert code == 0
    assert text.endswith("can run on node-1, node-2\n  reported: FailedScheduling: 0/2 nodes are available\n")


def test_a_pod_that_runs(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", nodeName="node-1")
    eater["status"] = {"phase": "Running"}

    code, text = explained(tmp_path, eater, HELD, what=("pod", "guest"))

    assert code == 0
    assert "✓ pod default/guest runs on node-1\n" in text


def test_a_pod_with_extended_resources_that_devices_provide(tmp_path: Path) -> None:
    eater = pod("guest", requests={"deviceclass.resource.kubernetes.io/pizza": "2"})

    code, text = explained(tmp_path, eater, what=("pod", "guest"))

    assert code == 0
    assert "claim of extended resources\nrequest container-0-request-0: 2 devices" in text
    resource = "deviceclass.resource.kubernetes.io/pizza"
    assert f"{resource} is provided by devices of class pizza on node-1 and node-2\n" in text
    assert "✓ pod default/guest can run on node-1, node-2\n" in text


def test_claims_that_only_together_do_not_fit(tmp_path: Path) -> None:
    cheddar = f'{CHEESE} == "cheddar"'
    eater = pod("guest", resourceClaims=[{"name": n, "resourceClaimName": n} for n in ("a", "b")])

    code, text = explained(tmp_path, eater, claim("a", cheddar), claim("b", cheddar), what=("pod", "guest"))

    assert code == 3
    assert "each claim alone finds devices, but no node has devices for all of them\n" in text


def test_claims_that_fit_on_different_nodes(tmp_path: Path) -> None:
    eater = pod("guest", resourceClaims=[{"name": n, "resourceClaimName": n} for n in ("a", "b")])
    claims = claim("a", f'{CHEESE} == "gouda"'), claim("b", f'{CHEESE} == "brie"')
    slices = slice_of("node-3", d="gouda"), node("node-3"), slice_of("node-4", d="brie"), node("node-4")

    code, text = explained(tmp_path, eater, *claims, *slices, what=("pod", "guest"))

    assert code == 3
    assert "no node has devices for all claims: claim a fits only on node-3, claim b only on node-4\n" in text


def test_what_was_reported_of_a_former_pod_of_the_same_name_is_not_told(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", nodeName="node-1")
    eater["status"] = {"phase": "Pending"}
    failure = event("FailedPrepareDynamicResources", "guest", "the oven is cold", uid="uid-of-the-former")

    code, text = explained(tmp_path, eater, HELD, failure, what=("pod", "guest"))

    assert code == 0
    assert "the oven is cold" not in text


def test_what_was_reported_of_a_live_pod_is_not_told_of_one_in_a_file(tmp_path: Path) -> None:
    live = pod("guest", claim="lunch")
    live["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes"}]}
    refusal = event("FailedScheduling", "guest", "0/2 nodes are available")
    file = save(tmp_path / "pod.yaml", live)

    code, text = explained(tmp_path, live, claim("lunch"), refusal, what=("-f", str(file)))

    assert code == 0
    assert "reported" not in text


def with_container(state: Document, before: Document | None = None) -> Document:
    """A pod with its devices, whose container is in this state."""
    eater = pod("guest", claim="lunch", nodeName="node-1")
    status = {"name": "eater", "state": state, "lastState": before or {}}
    eater["status"] = {"phase": "Running", "containerStatuses": [status]}
    return eater


def test_explain_reports_failing_container_and_its_devices(tmp_path: Path) -> None:
    eater = with_container(
        {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}},
        {"terminated": {"exitCode": 3, "reason": "Error"}},
    )

    code, text = explained(tmp_path, eater, HELD, what=("pod", "guest"))

    assert code == 3
    text = words(text)
    assert "✗ pod default/guest has its devices on node-1, and does not run" in text
    assert "container eater: CrashLoopBackOff: back-off 10s restarting failed container; " in text
    assert "it exited with code 3 (Error)" in text
    assert "its devices are allocated and prepared: they are not why its containers do not run" in text


def test_explain_reports_container_that_exited_with_error(tmp_path: Path) -> None:
    eater = with_container({"terminated": {"exitCode": 1, "reason": "Error"}})

    code, text = explained(tmp_path, eater, HELD, what=("pod", "guest"))

    assert code == 3
    assert "container eater: it exited with code 1 (Error)\n" in text


def test_explain_attributes_cdi_failure_to_the_devices(tmp_path: Path) -> None:
    message = "failed to inject CDI devices: unresolvable CDI devices dra.pizza/claim=x"
    eater = with_container({"waiting": {"reason": "CreateContainerError", "message": message}})

    code, text = explained(tmp_path, eater, HELD, what=("pod", "guest"))

    assert code == 3
    assert "is the driver's CDI spec on the node, and valid?" in words(text)
    assert "not why its containers" not in text


@pytest.mark.parametrize(
    "state", [{"waiting": {"reason": "ContainerCreating"}}, {"running": {}}, {"terminated": {"exitCode": 0}}]
)
def test_explain_ignores_starting_and_completed_containers(tmp_path: Path, state: Document) -> None:
    eater = with_container(state)

    code, text = explained(tmp_path, eater, HELD, what=("pod", "guest"))

    assert code == 0
    assert "✓ pod default/guest runs on node-1\n" in text


def test_claim_remedy_is_suggested_only_if_the_pod_would_fit(tmp_path: Path) -> None:
    eater = pod("guest", claim="lunch", nodeSelector={"kubernetes.io/hostname": "node-2"})
    wanted = claim("lunch", f'{CHEESE} == "gouda"', count=3)

    _, alone = explained(tmp_path, wanted, what=("claim", "lunch"))
    _, in_pod = explained(tmp_path, eater, wanted, what=("pod", "guest"))

    assert '→ without `cheese == "gouda"`, 5 devices fit\n' in alone
    assert '→ without `cheese == "gouda"` and with count: 2, it fits\n' in in_pod


@pytest.mark.parametrize(
    ("place", "fits"), [({"nodeSelector": {"kubernetes.io/hostname": "node-1"}}, True), ({}, False)]
)
def test_an_error_of_a_node_that_is_unsuitable_anyway_does_not_matter(
    tmp_path: Path, place: Document, fits: bool
) -> None:
    bare = slice_of("node-3", margherita="mozzarella")
    bare["spec"]["devices"][0]["attributes"] = {}
    asked = claim("lunch", f'{CHEESE} == "mozzarella"')

    code, text = explained(
        tmp_path, node("node-3"), bare, asked, pod("guest", claim="lunch", **place), what=("pod", "guest")
    )

    assert (code == 0) is fits
    assert ("✓ pod default/guest" in text) is fits
