"""``dra-kit explain`` of allocated claims: not ready, full, being deleted, reserved for pods that are gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.api import Api
from tests.unit.cli.cluster.saved import CASES, KITCHEN, Document, claim, explained, pod, run, save, slice_of, words

BINDING = CASES / "waits-for-a-binding-condition" / "cluster"
STUCK = CASES / "claim-that-does-not-go" / "cluster"
READY = "dra.pizza/hot"
BURNT = "dra.pizza/burnt"


def test_pod_waits_for_binding_condition_of_its_device() -> None:
    result = run("explain", "pod", "remote", "--from", BINDING)

    assert result.exit_code == 3
    text = words(result.output)
    assert "device card-7 of fabric.example.net, pool rack-1, is not ready: binding condition" in text
    assert "fabric.example.net/attached is not set" in text
    assert "It waits 600 s after the allocation (bindingTimeout, default), until 2026-09-16T10:10:00Z" in text
    assert "or until fabric.example.net/attach-failed is True" in text
    assert "→ the controller of driver fabric.example.net sets fabric.example.net/attached in status.devices" in text
    assert "✗ pod default/remote waits for its devices to become ready on n1" in text


def with_conditions(**states: str) -> Document:
    """A claim of a device with binding conditions, of which the driver reports these states."""
    held = claim("lunch", held=("node-1", "rustica"))
    [result] = held["status"]["allocation"]["devices"]["results"]
    result |= {"bindingConditions": [READY], "bindingFailureConditions": [BURNT]}
    device = {name: result[name] for name in ("driver", "pool", "device")}
    conditions = [
        {"type": f"dra.pizza/{name}", "status": status, "reason": "Oven", "message": "too cold"}
        for name, status in states.items()
    ]
    held["status"]["devices"] = [{**device, "conditions": conditions}]
    return held


def test_pod_can_run_once_binding_conditions_are_true(tmp_path: Path) -> None:
    code, text = explained(tmp_path, with_conditions(hot="True"), pod("guest", claim="lunch"), what=("pod", "guest"))

    assert code == 0
    assert "✓ pod default/guest can run on node-1\n" in text


def test_pod_waits_on_the_node_that_kube_scheduler_selected(tmp_path: Path) -> None:
    held = with_conditions(hot="False")
    del held["status"]["allocation"]["nodeSelector"]
    guest = pod("guest", claim="lunch")

    _, anywhere = explained(tmp_path, held, guest, what=("pod", "guest"))
    guest["status"] = {"phase": "Pending", "nominatedNodeName": "node-2"}
    _, text = explained(tmp_path, held, guest, what=("pod", "guest"))

    assert "waits for its devices to become ready on node-1, node-2\n" in anywhere
    assert "waits for its devices to become ready on node-2\n" in text


def test_binding_condition_that_is_false_is_shown_with_the_reason_of_the_driver(tmp_path: Path) -> None:
    code, text = explained(tmp_path, with_conditions(hot="False"), pod("guest", claim="lunch"), what=("pod", "guest"))

    assert code == 3
    assert f"binding condition {READY} is False (Oven: too cold)" in words(text)


@pytest.mark.parametrize("what", [("pod", "guest"), ("claim", "lunch")])
def test_binding_conditions_mean_nothing_once_the_pod_has_a_node(tmp_path: Path, what: tuple[str, str]) -> None:
    guest = pod("guest", claim="lunch", nodeName="node-1")
    guest["status"] = {"phase": "Running"}

    code, text = explained(tmp_path, with_conditions(hot="False"), guest, what=what)

    assert code == 0
    assert "is not ready" not in words(text)
    assert "kube-scheduler" not in text


def test_pod_waits_for_binding_conditions_of_a_claim_whose_other_pod_has_a_node(tmp_path: Path) -> None:
    guest, late = pod("guest", claim="lunch", nodeName="node-1"), pod("late", claim="lunch")

    code, text = explained(tmp_path, with_conditions(hot="False"), guest, late, what=("pod", "late"))

    assert code == 3
    assert f"binding condition {READY} is False (Oven: too cold)" in words(text)
    assert "✗ pod default/late waits for its devices to become ready on node-1" in words(text)


def test_binding_failure_is_shown(tmp_path: Path) -> None:
    code, text = explained(tmp_path, with_conditions(burnt="True"), pod("guest", claim="lunch"), what=("pod", "guest"))

    assert code == 3
    assert f"failed: its binding failure condition {BURNT} is True (Oven: too cold)" in words(text)
    assert "→ see the log of the controller of driver dra.pizza" in words(text)


def test_device_with_binding_conditions_would_make_the_pod_wait(tmp_path: Path) -> None:
    objects = [dict(document) for document in KITCHEN]
    for document in objects:
        if document["kind"] == "ResourceSlice":
            lists = {"bindingConditions": [READY], "bindingFailureConditions": [BURNT]}
            devices = [{**device, **lists} for device in document["spec"]["devices"]]
            document["spec"] = {**document["spec"], "devices": devices}
    saved = save(tmp_path / "cluster.yaml", *objects, claim("lunch"))

    text = run("explain", "claim", "lunch", "--from", saved).output

    assert f"kube-scheduler then waits until the driver sets the condition {READY}\n" in text


def test_device_in_use_that_is_tainted_needs_a_toleration_in_a_new_claim(tmp_path: Path) -> None:
    tainted = slice_of("node-1", rustica="cheddar")
    tainted["spec"]["devices"][0]["taints"] = [{"key": "dra.pizza/burnt", "effect": "NoExecute"}]
    objects = [tainted if each["metadata"]["name"] == tainted["metadata"]["name"] else each for each in KITCHEN]
    guest = pod("guest", claim="lunch", nodeName="node-1")
    saved = save(tmp_path / "cluster.yaml", *objects, claim("lunch", held=("node-1", "rustica")), guest)

    text = words(run("explain", "claim", "lunch", "--from", saved).output)

    assert "has the taint dra.pizza/burnt:NoExecute: the device taint eviction controller deletes pods" in text
    assert "a toleration of dra.pizza/burnt (effect: NoExecute) in a new claim" in text


def test_holder_that_is_being_deleted_for_a_pod_that_is_gone_is_named() -> None:
    result = run("explain", "pod", "next", "--from", STUCK)

    assert result.exit_code == 3
    text = words(result.output)
    assert "✗ gpu-0 allocated to default/gang-0-gpu-7r9 (being deleted)" in text
    assert "claim default/gang-0-gpu-7r9, which holds devices, is being deleted since 2025-11-18T01:00:00Z" in text
    assert "is still reserved for pod gang-0, which no longer exists, or was not saved" in text
    assert "→ the ResourceClaim controller of kube-controller-manager releases claim gang-0-gpu-7r9" in text


def test_claim_that_is_being_deleted_for_a_pod_that_is_gone_is_not_good() -> None:
    result = run("explain", "claim", "gang-0-gpu-7r9", "--from", STUCK)

    assert result.exit_code == 3
    text = words(result.output)
    assert text.startswith("✗ default/gang-0-gpu-7r9 is being deleted since 2025-11-18T01:00:00Z, and is still")
    assert "✓" not in text
    assert "does kube-controller-manager run" in text


def test_of_many_consumers_the_first_are_named(tmp_path: Path) -> None:
    held = claim("lunch", held=("node-1", "rustica"))
    held["status"]["reservedFor"] = [{"resource": "pods", "name": f"p{n}", "uid": f"uid-p{n}"} for n in range(256)]
    pods = [pod(f"p{number}", claim="lunch", nodeName="node-1") for number in range(256)]

    code, text = explained(tmp_path, held, *pods, what=("claim", "lunch"))

    assert code == 0
    assert "reserved for pod p0, pod p1, pod p2, pod p3, pod p4, pod p5, pod p6, pod p7, and 248 more" in words(text)


def test_claim_whose_only_consumer_is_gone_is_stale(tmp_path: Path) -> None:
    held = claim("lunch", held=("node-1", "rustica"))

    code, text = explained(tmp_path, held, pod("other"), what=("claim", "lunch", "-o", "json"))

    assert code == 3
    [found] = json.loads(text)["explanations"]
    assert found["outcome"] == "stale"
    assert found["release"] == "is still reserved for pod guest, which no longer exists, or was not saved"


@pytest.mark.parametrize("fate", ["has ended", "no longer exists (another pod has its name)"])
def test_consumer_that_ended_or_was_replaced_is_gone(tmp_path: Path, fate: str) -> None:
    guest = pod("guest", claim="lunch", nodeName="node-1")
    if fate == "has ended":
        guest["status"] = {"phase": "Succeeded"}
    else:
        guest["metadata"]["uid"] = "another"

    code, text = explained(tmp_path, claim("lunch", held=("node-1", "rustica")), guest, what=("claim", "lunch"))

    assert code == 3
    assert f"is still reserved for pod guest, which {fate}" in words(text)


def test_consumers_are_not_missed_where_no_pods_are_saved(tmp_path: Path) -> None:
    code, text = explained(tmp_path, claim("lunch", held=("node-1", "rustica")), what=("claim", "lunch"))

    assert code == 0
    assert "  reserved for pod guest\n" in text


def test_claim_that_is_being_deleted_gets_no_devices(tmp_path: Path) -> None:
    ending = claim("lunch")
    ending["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/kitchen"]}

    code, text = explained(tmp_path, ending, what=("claim", "lunch"))

    assert code == 3
    assert text == (
        "✗ default/lunch is being deleted since 2026-01-01T00:00:00Z\n"
        "  → finalizer example.com/kitchen: the controller that set it removes it\n"
    )


def full(count: int) -> Document:
    """A claim with a number of consumers."""
    held = claim("lunch", held=("node-1", "rustica"))
    held["status"]["reservedFor"] = [
        {"resource": "pods", "name": f"guest-{number}", "uid": f"uid-{number}"} for number in range(count)
    ]
    return held


def test_pod_cannot_become_one_more_consumer_than_the_api_allows(tmp_path: Path) -> None:
    code, text = explained(tmp_path, full(256), pod("late", claim="lunch"), what=("pod", "late"))

    assert code == 3
    text = words(text)
    assert "claim food has 256 consumers in status.reservedFor, the most that the API allows" in text
    assert "ResourceClaimTemplate" in text


@pytest.mark.parametrize(("count", "uid"), [(255, "uid-late"), (256, "uid-7")])
def test_pod_can_use_a_claim_that_has_room_or_is_reserved_for_it(tmp_path: Path, count: int, uid: str) -> None:
    late = pod("late", claim="lunch")
    late["metadata"]["uid"] = uid

    code, _ = explained(tmp_path, full(count), late, what=("pod", "late"))

    assert code == 0


def test_higher_priority_takes_no_devices_of_running_pods(tmp_path: Path) -> None:
    holders = [claim("a", held=("node-1", "rustica")), pod("guest", nodeName="node-1", priority=5)]
    wanted = claim("lunch", 'device.attributes["dra.pizza"].cheese == "cheddar" && device.driver == "dra.pizza"')
    other = claim("b", held=("node-2", "rustica"))
    important = pod("important", claim="lunch", priority=1000)

    code, text = explained(tmp_path, *holders, other, wanted, important, what=("pod", "important"))

    assert code == 3
    assert "its priority 1000 does not help: kube-scheduler preempts no pod for devices" in words(text)
    assert "delete a pod of lower priority that has them: default/guest (5)" in words(text)


@pytest.mark.parametrize(("other", "forbidden", "outcome"), [
    ("", "/nothing", "stale"), ("default", "/nothing", "stale"), ("kitchen", "/nothing", "stale"),
    ("", "/api/v1/pods", "stale"), ("", "/api/v1", "allocated"),
])  # fmt: skip
def test_consumers_are_read_from_an_api_server_if_pods_of_the_namespace_may_be_listed(
    tmp_path: Path, other: str, forbidden: str, outcome: str
) -> None:
    with Api() as api, api.failing(403, "GET", below=forbidden):
        api.put("resourceclaims", claim("lunch", held=("node-1", "rustica")))
        if other:
            document = pod("guest", nodeName="node-1")
            document["metadata"] |= {"namespace": other, "uid": "another"}
            api.put("pods", document)

        result = run("explain", "claim", "lunch", "-o", "json", "--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))

    [found] = json.loads(result.output)["explanations"]
    assert found["outcome"] == outcome
    assert "was not saved" not in found["release"]


def extended(request: str) -> tuple[Document, ...]:
    """A running pod with an extended resource, whose status maps it to this request of its claim."""
    held = claim("lunch", held=("node-1", "rustica"))
    guest = pod("guest", nodeName="node-1", requests={"dra.pizza/pizza": "1"})
    held["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Pod", "name": "guest", "uid": "uid-guest", "controller": True}
    ]
    mapping = {"containerName": "eater", "resourceName": "dra.pizza/pizza", "requestName": request}
    status = {"resourceClaimName": "lunch", "requestMappings": [mapping]}
    guest["status"] = {"phase": "Running", "extendedResourceClaimStatus": status}
    return held, guest


def test_extended_resource_of_a_request_that_the_claim_lacks_gets_no_device(tmp_path: Path) -> None:
    code, text = explained(tmp_path, *extended("container-0-request-0"), what=("pod", "guest"))

    assert code == 3
    text = words(text)
    assert "✗ pod default/guest is on node-1 without having devices there" in text
    assert "container eater gets no device for dra.pizza/pizza" in text
    assert "request container-0-request-0, which ResourceClaim lunch does not have (it has pizza)" in text


def test_extended_resource_of_a_request_of_the_claim_has_its_device(tmp_path: Path) -> None:
    code, text = explained(tmp_path, *extended("pizza"), what=("pod", "guest"))

    assert code == 0
    assert "✓ pod default/guest runs on node-1\n" in text


def test_scheduled_pod_whose_claim_does_not_exist_waits_for_it(tmp_path: Path) -> None:
    code, text = explained(tmp_path, pod("guest", claim="lunch", nodeName="node-1"), what=("pod", "guest"))

    assert code == 3
    assert "claim food: ResourceClaim lunch does not exist, so the kubelet waits for it\n" in text


def test_device_in_use_that_its_driver_no_longer_publishes_is_marked(tmp_path: Path) -> None:
    guest = pod("guest", claim="lunch", nodeName="node-1")
    guest["status"] = {"phase": "Running"}
    held = claim("lunch", held=("node-1", "calzone"))

    code, text = explained(tmp_path, guest, held, what=("pod", "guest"))

    assert code == 0
    text = words(text)
    assert "! device calzone of dra.pizza is in use, and its pool node-1 no longer has it" in text
    assert "→ if the hardware is gone, delete pod guest, which has it: the claim then releases it" in text


@pytest.mark.parametrize("count", [1, 2])
def test_device_is_not_missed_while_its_pool_is_incomplete(tmp_path: Path, count: int) -> None:
    published = slice_of("node-1", rustica="cheddar")
    published["spec"]["pool"]["resourceSliceCount"] = count
    guest = pod("guest", claim="lunch", nodeName="node-1")
    saved = save(tmp_path / "c.yaml", published, guest, claim("lunch", held=("node-1", "calzone")))

    text = run("explain", "claim", "lunch", "--from", saved).output

    assert ("no longer has it" in words(text)) == (count == 1)
