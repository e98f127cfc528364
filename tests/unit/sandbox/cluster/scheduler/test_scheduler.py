"""The scheduler on the embedded API server; the words are those of Kubernetes 1.37.1 for the same objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from dra_kit.client.api import Client
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dra_kit.client.transport import ClientRequest
from dra_kit.kubernetes.allocator.allocation import AllocationAttempt
from dra_kit.kubernetes.scheduler.controllers import DELETE_PROTECTION
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.scheduler import DeviceTracker
from tests.unit.sandbox.cluster.kubelet.polling import until

Object = dict[str, Any]
READY = [{"type": "Ready", "status": "True"}]


async def add_node(client: Client, name: str, devices: list[Object], **resources: str) -> None:
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    status = {"allocatable": {"pods": "10", **resources}, "conditions": READY}
    await client.create(NODES, {"metadata": metadata, "status": status})
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "dra.pizza", "nodeName": name, "pool": pool, "devices": devices}
    await client.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})


async def known(plane: ControlPlane, *nodes: str) -> None:
    """Wait until the scheduler knows that these nodes are ready, their devices, and the class of these."""
    items, slices, classes = map(plane.informers.objects, (NODES, RESOURCE_SLICES, DEVICE_CLASSES))

    def is_known(name: str) -> bool:
        item = items.get(("", name))
        return item is not None and not item["spec"].get("taints") and ("", name) in slices

    await until(lambda: bool(classes) and all(map(is_known, nodes)))


async def add_claim(client: Client, name: str, count: int = 1, **exactly: Any) -> Object:
    requests = [{"name": "r", "exactly": {"deviceClassName": "pizza", "count": count, **exactly}}]
    spec = {"devices": {"requests": requests}}
    return await client.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")


async def add_pod(client: Client, name: str, *claims: str, node: str = "", **requests: str) -> Object:
    container = {"name": "eater", "image": "x", "resources": {"requests": requests, "limits": requests}}
    spec: Object = {
        "containers": [container],
        "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
        "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
    }
    return await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")


def allocation_on(node: str) -> Object:
    """An allocation of the first pizza of a node."""
    result = {"request": "r", "driver": "dra.pizza", "pool": node, "device": "pizza-0"}
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [selector]}}


def pools(claim: Object) -> list[str]:
    """Those of the devices that a claim has."""
    allocation = claim.get("status", {}).get("allocation", {"devices": {"results": []}})
    return [item["pool"] for item in allocation["devices"]["results"]]


def pizzas(number: int, **fields: Any) -> list[Object]:
    return [{"name": f"pizza-{i}", **fields} for i in range(number)]


class Refusal(NamedTuple):
    uid: str
    message: str


@asynccontextmanager
async def kitchen(
    devices: list[Object], *nodes: str, time_scale: float = 1.0, extended: str = ""
) -> AsyncIterator[tuple[ControlPlane, Client, list[Refusal]]]:
    """A control plane that knows nodes with devices and their class, a client, and the pods without a node."""
    refusals: list[Refusal] = []

    def observe(decision: SchedulingDecision) -> None:
        if decision.refusal is not None:
            refusals.append(Refusal(decision.pod["metadata"]["uid"], decision.refusal.message))

    async with ControlPlane(observe=observe, time_scale=time_scale) as plane:
        client = await plane.connect("test")
        spec = {"extendedResourceName": extended} if extended else {}
        await client.create(DEVICE_CLASSES, {"metadata": {"name": "pizza"}, "spec": spec})
        for node in nodes or ["node-1"]:
            await add_node(client, node, devices, **({extended: "1"} if extended else {}))
        await known(plane, *nodes or ["node-1"])
        yield plane, client, refusals


async def test_unused_claim_is_deallocated_for_a_pod_that_does_not_fit_its_node() -> None:
    async with kitchen(pizzas(1), "node-1", "node-2") as (plane, client, refusals):
        claim = await add_claim(client, "lunch")
        status = {"allocation": allocation_on("node-1")}
        await client.update(RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status")
        pods, claims = plane.informers.objects(PODS), plane.informers.objects(RESOURCE_CLAIMS)
        await until(lambda: bool(claims.get(("default", "lunch"), {}).get("status")))

        await add_pod(client, "guest", "lunch", node="node-2")
        await until(lambda: pods.get(("default", "guest"), {"spec": {}})["spec"].get("nodeName") == "node-2")

        (refusal,) = refusals
        assert refusal.message == (
            "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 resourceclaim not "
            "available on the node. deallocation of ResourceClaim completed, preemption: 0/2 nodes are available: "
            "2 Preemption is not helpful for scheduling."
        )
        await until(lambda: pools(claims["default", "lunch"]) == ["node-2"])


async def test_pods_with_anti_affinity_wait_for_each_other() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "cook"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    metadata = {"labels": {"app": "cook"}}
    spec: Object = {"containers": [{"name": "eater", "image": "x"}], "affinity": apart}
    async with kitchen(pizzas(1), "node-1") as (plane, client, refusals):
        pods = plane.informers.objects(PODS)
        await client.create(PODS, {"metadata": {"name": "first", **metadata}, "spec": spec}, "default")
        await until(lambda: pods.get(("default", "first"), {"spec": {}})["spec"].get("nodeName") == "node-1")
        await client.create(PODS, {"metadata": {"name": "second", **metadata}, "spec": spec}, "default")
        await client.create(
            PODS, {"metadata": {"name": "third", **metadata}, "spec": {**spec, "affinity": {}}}, "default"
        )
        await until(lambda: len(refusals) == 2)

        tail = "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
        assert {refusal.message for refusal in refusals} == {
            f"0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. {tail}",
            f"0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules. {tail}",
        }
        done = {"status": {"phase": "Succeeded"}}
        await client.patch(PODS, "first", done, "default", subresource="status")
        await until(lambda: any(pods["default", name]["spec"].get("nodeName") for name in ("second", "third")))


async def test_extended_resource_of_a_device_plugin_blocks_a_claim() -> None:
    """As in 1.37: an empty claim is created, and the pod's status cannot refer to it."""
    async with kitchen(pizzas(1), extended="example.com/pizza") as (plane, client, refusals):
        await add_claim(client, "lunch")
        await add_pod(client, "guest", "lunch", **{"example.com/pizza": "1"})
        claims = plane.informers.objects(RESOURCE_CLAIMS)

        await until(lambda: bool(refusals))
        await until(lambda: list(claims) == [("default", "lunch")])

        assert refusals[0].message == (
            'running PreBind plugin "DynamicResources": nil or empty request mappings, no update of pod default/guest '
            "ExtendedResourceClaimStatus"
        )
        await until(
            lambda: (
                pools(claims["default", "lunch"]) == ["node-1"]
                and not claims["default", "lunch"]["status"].get("reservedFor")
            )
        )


WRITTEN = pytest.mark.parametrize(
    "parameters",
    [
        r'{"note":"this \u0026 that \u003c \u003e"}',
        r'{"note":"\u0061\/\u00fc\ud83c\udf55\u2028"}',
        '{"note": "this & that < >\u2028 ü"}',
        '{"z": 1, "a": [1.0, 1e0, 1E+2, 100, -0, 0.10, 12345678901234567890]}',
        ' { "b" : { } ,\n\t"a" : [ ] } ',
        '{"a": 1, "a": 2}',
    ],
)
"""As kubectl writes them, for example, which escapes ``&``, and clients that escape all that is not ASCII."""


def opaque(parameters: str) -> str:
    """A claim's spec with opaque parameters."""
    return (
        '{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"pizza"}}],"config":[{"opaque":'
        f'{{"driver":"other.example.com","parameters":{parameters}}}}}]}}}}'
    )


async def post(client: Client, resource: Resource, name: str, spec: str) -> None:
    """Create an object with the text of a spec."""
    kind = f'"apiVersion":"{resource.api_version}","kind":"{resource.kind}"'
    body = f'{{{kind},"metadata":{{"name":"{name}"}},"spec":{spec}}}'
    call = ClientRequest.of_collection("create", resource, "default", query={})
    await client._object(replace(call, body=body.encode()))


@WRITTEN
async def test_a_claim_gets_devices_however_its_opaque_parameters_are_written(parameters: str) -> None:
    async with kitchen(pizzas(1)) as (plane, client, _):
        await post(client, RESOURCE_CLAIMS, "lunch", opaque(parameters))
        await add_pod(client, "guest", "lunch")

        claims = plane.informers.objects(RESOURCE_CLAIMS)
        await until(lambda: pools(claims["default", "lunch"]) == ["node-1"])
        assert claims["default", "lunch"]["metadata"]["finalizers"] == [DELETE_PROTECTION]

        await client.delete(PODS, "guest", "default", grace_period_seconds=0)
        await client.delete(RESOURCE_CLAIMS, "lunch", "default")
        await until(lambda: ("default", "lunch") not in claims)


@WRITTEN
async def test_an_allocation_has_the_bytes_of_the_parameters_of_claim_and_class(parameters: str) -> None:
    async with kitchen(pizzas(1)) as (plane, client, _):
        await client.delete(DEVICE_CLASSES, "pizza")
        config = f'{{"opaque":{{"driver":"other.example.com","parameters":{parameters}}}}}'
        await post(client, DEVICE_CLASSES, "pizza", f'{{"config":[{config}]}}')
        await post(client, RESOURCE_CLAIMS, "lunch", opaque(parameters))
        claims = plane.informers.objects(RESOURCE_CLAIMS)

        def consumers() -> list[str]:
            return [item["name"] for item in claims["default", "lunch"].get("status", {}).get("reservedFor", [])]

        for name in ("guest", "friend"):  # the second one keeps the allocation
            await add_pod(client, name, "lunch")
            await until(lambda: name in consumers())  # noqa: B023 - it is awaited here
            read = ClientRequest.of_object("get", RESOURCE_CLAIMS, "lunch", "default")
            stored = (await client.exchange(replace(read, accept="application/vnd.kubernetes.protobuf"))).text
            assert stored.count(parameters.strip().encode()) == 3


async def test_equal_parameters_of_claim_and_class_keep_their_own_bytes() -> None:
    async with kitchen(pizzas(1)) as (plane, client, _):
        await client.delete(DEVICE_CLASSES, "pizza")
        config = '{"opaque":{"driver":"other.example.com","parameters":{"heat":1}}}'
        await post(client, DEVICE_CLASSES, "pizza", f'{{"config":[{config}]}}')
        await post(client, RESOURCE_CLAIMS, "lunch", opaque('{"heat":1.0}'))
        await add_pod(client, "guest", "lunch")
        claims = plane.informers.objects(RESOURCE_CLAIMS)
        await until(lambda: pools(claims.get(("default", "lunch"), {})) == ["node-1"])

        read = ClientRequest.of_object("get", RESOURCE_CLAIMS, "lunch", "default")
        stored = (await client.exchange(replace(read, accept="application/vnd.kubernetes.protobuf"))).text
        assert [stored.count(text) for text in (b'{"heat":1.0}', b'{"heat":1}')] == [2, 1]


@WRITTEN
async def test_a_generated_claim_has_the_bytes_of_its_template(parameters: str) -> None:
    async with kitchen(pizzas(1)) as (plane, client, _):
        await post(client, RESOURCE_CLAIM_TEMPLATES, "menu", f'{{"spec":{opaque(parameters)}}}')
        entry = {"name": "r", "resourceClaimTemplateName": "menu"}
        spec = {"containers": [{"name": "c", "image": "i"}], "resourceClaims": [entry]}
        await client.create(PODS, {"metadata": {"name": "guest", "namespace": "default"}, "spec": spec})

        claims = plane.informers.objects(RESOURCE_CLAIMS)
        await until(lambda: any(pools(claim) for claim in claims.values()))
        [claim] = claims.values()
        assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "r"}
        assert claim["metadata"]["ownerReferences"][0]["name"] == "guest"
        read = ClientRequest.of_object("get", RESOURCE_CLAIMS, claim["metadata"]["name"], "default")
        stored = (await client.exchange(replace(read, accept="application/vnd.kubernetes.protobuf"))).text
        assert parameters.strip().encode() in stored


async def test_search_does_not_block_the_event_loop() -> None:
    """More combinations than can be tried within seconds; the search ends when the sandbox does."""
    large = {"allowMultipleAllocations": True, "capacity": {"slices": {"value": "10"}}}
    decisions: list[SchedulingDecision] = []
    async with ControlPlane(observe=decisions.append) as plane:
        client = await plane.connect("test")
        await client.create(DEVICE_CLASSES, {"metadata": {"name": "pizza"}, "spec": {}})
        await add_node(client, "node-1", pizzas(32, **large))
        await known(plane, "node-1")
        names = [f"lunch-{number}" for number in range(3)]
        for name in names:
            await add_claim(client, name, 16, capacity={"requests": {"slices": "6"}})
        pods = plane.informers.objects(PODS)

        await add_pod(client, "guest", *names)
        await until(lambda: ("default", "guest") in pods)
        for _ in range(20):
            await client.list(NODES)

        assert not decisions


async def test_recreated_pod_does_not_inherit_the_backoff() -> None:
    async with kitchen(pizzas(1)) as (plane, client, refusals):

        def refused(pod: Object) -> int:
            return sum(item.uid == pod["metadata"]["uid"] for item in refusals)

        fails = [{"cel": {"expression": 'device.attributes["dra.pizza"].absent == 1'}}]
        for name in ("lunch", "dinner"):
            await add_claim(client, name, selectors=fails)
        first = await add_pod(client, "guest", "lunch")
        await until(lambda: refused(first))
        await client.delete(PODS, "guest", "default")
        await client.delete(RESOURCE_CLAIMS, "lunch", "default")
        pods, claims = plane.informers.objects(PODS), plane.informers.objects(RESOURCE_CLAIMS)
        await until(lambda: ("default", "guest") not in pods and ("default", "lunch") not in claims)

        second = await add_pod(client, "guest", "lunch")
        other = await add_pod(client, "other", "dinner")
        await until(lambda: refused(other) >= 2)  # its back-off began later

        assert not refused(second)
        assert not pods["default", "guest"]["status"].get("conditions")


async def test_message_is_reported_later_if_its_event_was_deduplicated() -> None:
    async with kitchen(pizzas(1), time_scale=4) as (_, client, refusals):
        await add_claim(client, "lunch", selectors=[{"cel": {"expression": 'device.attributes["dra.pizza"].size > 1'}}])
        await add_pod(client, "guest", "lunch")
        await until(lambda: len(refusals) == 2)  # the second one about what the first one made of the pod
        assert "no such key" in refusals[1].message
        devices = pizzas(1, attributes={"size": {"string": "large"}})
        await client.patch(RESOURCE_SLICES, "node-1", {"spec": {"devices": devices}})

        async def told() -> list[str]:
            return [event["note"] for event in (await client.list(EVENTS, namespace="default")).items]

        await until(lambda: "no such overload" in refusals[-1].message)
        async with asyncio.timeout(60):
            while not any("no such overload" in note for note in await told()):  # noqa: ASYNC110 (asks the API server)
                await asyncio.sleep(0.05)


async def test_a_fault_in_the_search_for_one_pod_does_not_end_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt(tracker: DeviceTracker, claims: Sequence[Object]) -> AllocationAttempt:
        if any(claim["metadata"]["name"] == "cursed" for claim in claims):
            raise KeyError("counter")
        return search(tracker, claims)

    search = DeviceTracker.attempt
    monkeypatch.setattr(DeviceTracker, "attempt", attempt)
    async with kitchen(pizzas(2)) as (plane, client, refusals):
        for name in ("cursed", "plain"):
            await add_claim(client, name)
            await add_pod(client, name, name)
        pods = plane.informers.objects(PODS)
        await until(lambda: pods.get(("default", "plain"), {"spec": {}})["spec"].get("nodeName"))

    assert refusals[0].message == (
        "the simulated scheduler failed (KeyError: 'counter'); this is a bug in dra-kit, please report it"
    )
