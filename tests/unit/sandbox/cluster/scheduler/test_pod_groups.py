"""The scheduler with PodGroups; compared with Kubernetes 1.37.1 for the same objects."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Resource,
)
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.sandbox.control_plane import ControlPlane
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.cluster.scheduler.test_scheduler import (
    add_claim,
    add_node,
    add_pod,
    allocation_on,
    known,
    pizzas,
    pools,
)

Object = dict[str, Any]
_PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    """Two nodes with a device each."""
    async with ControlPlane(release=Release.alpha()) as plane:
        client = await plane.connect("test")
        await client.create(DEVICE_CLASSES, {"metadata": {"name": "pizza"}, "spec": {}})
        for node in ("node-1", "node-2"):
            await add_node(client, node, pizzas(1))
        await known(plane, "node-1", "node-2")
        yield plane


@pytest.fixture
async def client(plane: ControlPlane) -> Client:
    return await plane.connect("test")


async def add_group(client: Client, count: int, *claims: Object) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": count}}, "resourceClaims": list(claims)}
    await client.create(POD_GROUPS, {"metadata": {"name": "band"}, "spec": spec}, "default")


async def add_member(client: Client, name: str, *claims: str) -> None:
    spec = {
        "containers": [{"name": "eater", "image": "x"}],
        "schedulingGroup": {"podGroupName": "band"},
        "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
    }
    await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")


def on_nodes(plane: ControlPlane) -> list[str]:
    pods = plane.informers.objects(PODS).values()
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]


def message(plane: ControlPlane, name: str) -> str:
    pod = plane.informers.objects(PODS).get(("default", name), {})
    conditions = pod.get("status", {}).get("conditions", ())
    return next((item["message"] for item in conditions if item["type"] == "PodScheduled" and "message" in item), "")


def state(plane: ControlPlane) -> tuple[str, str]:
    """The status and the message of the group's condition."""
    group = plane.informers.objects(POD_GROUPS).get(("default", "band"), {})
    conditions = group.get("status", {}).get("conditions", ())
    return next(((item["status"], item["message"]) for item in conditions), ("", ""))


async def test_pods_wait_silently_for_their_group_and_for_each_other(plane: ControlPlane, client: Client) -> None:
    await add_member(client, "one")
    await until(lambda: bool(plane.informers.objects(PODS)))
    await add_group(client, 2)
    await until(lambda: bool(plane.informers.objects(POD_GROUPS)))
    await asyncio.sleep(0.1)

    assert (on_nodes(plane), message(plane, "one"), state(plane)) == ([], "", ("", ""))

    await add_member(client, "two")
    await until(lambda: on_nodes(plane) == ["one", "two"])
    await until(lambda: state(plane) == ("True", ""))


async def test_gang_gets_all_its_devices_or_none(plane: ControlPlane, client: Client) -> None:
    await add_group(client, 3)
    for name in ("one", "two", "three"):
        await add_claim(client, f"of-{name}")
        await add_member(client, name, f"of-{name}")
    problem = (
        "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining, pod group preemption: No preemption victims found "
        "for incoming preemptor"
    )
    await until(lambda: state(plane) == ("False", problem))

    await until(lambda: message(plane, "one") == f"pod group is unschedulable, {problem}")
    await until(lambda: message(plane, "three") == "0/2 nodes are available: 2 cannot allocate all claims.")
    claims = plane.informers.objects(RESOURCE_CLAIMS).values()
    assert (on_nodes(plane), [pools(claim) for claim in claims]) == ([], [[], [], []])

    await add_node(client, "node-3", pizzas(1))

    await until(lambda: len(on_nodes(plane)) == 3)
    await until(lambda: state(plane) == ("True", ""))


async def test_gang_that_needs_fewer_pods_is_tried_again(plane: ControlPlane, client: Client) -> None:
    await add_group(client, 3)
    await add_member(client, "one")
    await add_member(client, "two")
    await until(lambda: bool(plane.informers.objects(POD_GROUPS)))

    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    await client.patch(POD_GROUPS, "band", {"spec": spec}, "default")

    await until(lambda: on_nodes(plane) == ["one", "two"])


async def test_pods_of_a_gang_share_the_allocation_of_a_claim(plane: ControlPlane, client: Client) -> None:
    await add_claim(client, "lunch")
    await add_group(client, 2)
    await add_member(client, "one", "lunch")
    await add_member(client, "two", "lunch")

    await until(lambda: on_nodes(plane) == ["one", "two"])
    claim = await client.get(RESOURCE_CLAIMS, "lunch", "default")

    assert [item["name"] for item in claim["status"]["reservedFor"]] == ["one", "two"]
    assert len({pod["spec"]["nodeName"] for pod in plane.informers.objects(PODS).values()}) == 1


@pytest.mark.parametrize("reserved", [False, True])
async def test_claim_that_no_pod_uses_is_deallocated_for_a_gang(
    plane: ControlPlane, client: Client, *, reserved: bool
) -> None:
    await add_group(client, 2, {"name": "lunch", "resourceClaimName": "lunch"})
    group = await client.get(POD_GROUPS, "band", "default")
    claim = await add_claim(client, "lunch")
    status: Object = {"allocation": allocation_on("node-1")}
    if reserved:
        identity = {"name": "band", "uid": group["metadata"]["uid"]}
        status["reservedFor"] = [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", **identity}]
    await client.update(RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status")
    node = await client.get(NODES, "node-1")
    await client.update(NODES, {**node, "spec": {"unschedulable": True}})
    nodes, claims = plane.informers.objects(NODES), plane.informers.objects(RESOURCE_CLAIMS)
    await until(lambda: "status" in claims.get(("default", "lunch"), {}))
    await until(lambda: "unschedulable" in nodes["", "node-1"]["spec"])
    await add_member(client, "one")
    await add_member(client, "two", "lunch")

    await until(lambda: on_nodes(plane) == ["one", "two"])
    claim = await client.get(RESOURCE_CLAIMS, "lunch", "default")

    assert pools(claim) == ["node-2"]


async def test_pods_of_a_gang_do_not_disturb_each_other_at_their_claim() -> None:
    refusals: list[str] = []

    def observe(decision: SchedulingDecision) -> None:
        if decision.refusal is not None:
            refusals.append(decision.refusal.message)

    async with ControlPlane(release=Release.alpha(), observe=observe) as plane:
        client = await plane.connect("test")
        await client.create(DEVICE_CLASSES, {"metadata": {"name": "pizza"}, "spec": {}})
        await add_node(client, "node-1", pizzas(1))
        await known(plane, "node-1")
        await add_claim(client, "lunch")
        await add_group(client, 10)
        names = [f"guest-{i}" for i in range(10)]
        for name in names:
            await add_member(client, name, "lunch")

        await until(lambda: on_nodes(plane) == names)

    assert refusals == []


async def test_gang_that_cannot_be_tried_backs_off_as_one_pod() -> None:
    attempts: Counter[str] = Counter()
    scale, half_a_second = 20.0, 0.5
    high = {"metadata": {"name": "high"}, "value": 7}

    def observe(decision: SchedulingDecision) -> None:
        attempts[decision.pod["metadata"]["name"]] += 1

    async with ControlPlane(release=Release.alpha(), observe=observe, time_scale=scale) as plane:
        client = await plane.connect("test")
        await client.create(_PRIORITY_CLASSES, high)
        await add_group(client, 8)
        start = asyncio.get_running_loop().time()
        for i in range(8):
            spec = {
                "containers": [{"name": "eater", "image": "x"}],
                "schedulingGroup": {"podGroupName": "band"},
                "priorityClassName": "high",
            }
            await client.create(PODS, {"metadata": {"name": f"guest-{i}"}, "spec": spec}, "default")
        await until(lambda: attempts["guest-0"] >= 5)
        seconds = (asyncio.get_running_loop().time() - start) * scale

    assert seconds > 1 + 2 + 4 + 8 - half_a_second
    assert "same priority" in message(plane, "guest-0")


async def test_gang_waits_for_the_claim_of_one_of_its_pods(plane: ControlPlane, client: Client) -> None:
    await add_group(client, 2)
    await add_member(client, "one")
    await add_member(client, "two", "later")
    await until(lambda: len(plane.informers.objects(PODS)) == 2)
    await asyncio.sleep(0.1)

    assert (on_nodes(plane), message(plane, "one")) == ([], "")

    await add_claim(client, "later")
    await until(lambda: on_nodes(plane) == ["one", "two"])


async def add_sharing_gang(client: Client) -> None:
    """A gang of two whose pods share a claim from a template."""
    shared = {"name": "lunch", "resourceClaimTemplateName": "menu"}
    template = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "pizza"}}]}}}
    await client.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "menu"}, "spec": template}, "default")
    for name in ("one", "two"):
        spec = {
            "containers": [{"name": "eater", "image": "x"}],
            "schedulingGroup": {"podGroupName": "band"},
            "resourceClaims": [shared],
        }
        await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": [shared]}
    await client.create(POD_GROUPS, {"metadata": {"name": "band"}, "spec": spec}, "default")


async def test_pods_of_a_group_share_its_claim(plane: ControlPlane, client: Client) -> None:
    await add_sharing_gang(client)
    await until(lambda: on_nodes(plane) == ["one", "two"])

    group = await client.get(POD_GROUPS, "band", "default")
    (claim,) = (await client.list(RESOURCE_CLAIMS)).items

    uid, name = group["metadata"]["uid"], claim["metadata"]["name"]
    assert name.startswith("band-lunch-")
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "lunch"}
    assert claim["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "name": "band",
            "uid": uid,
            "controller": True,
        }
    ]
    assert claim["status"]["reservedFor"] == [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "band", "uid": uid}
    ]
    assert group["status"]["resourceClaimStatuses"] == [{"name": "lunch", "resourceClaimName": name}]
    for pod in plane.informers.objects(PODS).values():
        assert pod["status"]["resourceClaimStatuses"] == [{"name": "lunch", "resourceClaimName": name}]


async def test_claim_of_a_group_lasts_as_long_as_the_group(plane: ControlPlane, client: Client) -> None:
    await add_sharing_gang(client)
    await until(lambda: on_nodes(plane) == ["one", "two"])
    done = {"status": {"phase": "Succeeded"}}
    await client.patch(PODS, "one", done, "default", subresource="status")
    await client.patch(PODS, "two", done, "default", subresource="status")
    await asyncio.sleep(0.2)
    claims = plane.informers.objects(RESOURCE_CLAIMS)

    assert [len(claim["status"]["reservedFor"]) for claim in claims.values()] == [1]

    await client.delete(POD_GROUPS, "band", "default")
    await until(lambda: not claims)


async def test_named_claim_of_a_group_is_released_with_the_group(plane: ControlPlane, client: Client) -> None:
    await add_claim(client, "lunch")
    await add_group(client, 2, {"name": "lunch", "resourceClaimName": "lunch"})
    await add_member(client, "one", "lunch")
    await add_member(client, "two", "lunch")
    await until(lambda: on_nodes(plane) == ["one", "two"])
    claims = plane.informers.objects(RESOURCE_CLAIMS)
    (consumer,) = claims["default", "lunch"]["status"]["reservedFor"]
    assert consumer["resource"] == "podgroups"

    for pod in ("one", "two"):
        await client.delete(PODS, pod, "default", grace_period_seconds=0)
    await client.delete(POD_GROUPS, "band", "default")

    await until(lambda: not claims["default", "lunch"].get("status"))


async def test_gang_that_never_fits_does_not_block_other_pods(plane: ControlPlane, client: Client) -> None:
    await add_group(client, 3)
    for name in ("one", "two", "three"):
        await add_claim(client, f"of-{name}")
        await add_member(client, name, f"of-{name}")
    await until(lambda: state(plane)[0] == "False")
    for name in ("four", "five"):
        await add_claim(client, f"of-{name}")
        await add_pod(client, name, f"of-{name}")

    await until(lambda: on_nodes(plane) == ["four", "five"])


async def test_device_taint_evicts_the_pods_of_a_group(plane: ControlPlane, client: Client) -> None:
    await add_sharing_gang(client)
    await until(lambda: on_nodes(plane) == ["one", "two"])
    taint = {"key": "example.com/broken", "effect": "NoExecute"}
    selector = {"driver": "dra.pizza"}

    spec = {"taint": taint, "deviceSelector": selector}
    await client.create(DEVICE_TAINT_RULES, {"metadata": {"name": "broken"}, "spec": spec})

    pods = plane.informers.objects(PODS)
    await until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in pods.values()))
