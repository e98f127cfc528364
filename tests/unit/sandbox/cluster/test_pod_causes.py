"""Why the sandbox says that pods are pending: the same as ``dra-kit explain``."""

from __future__ import annotations

from dra_kit.client.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.pod_causes import explain_pending_pods
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.cluster.scheduler.test_scheduler import READY, add_claim, add_pod, allocation_on, known

COUNTED = [{"counterSet": "oven", "counters": {"slots": {"value": "1"}}}]


async def test_holders_of_shared_counters_and_misspelled_attributes_are_named() -> None:
    async with ControlPlane() as plane:
        client = await plane.connect("test")
        await client.create(DEVICE_CLASSES, {"metadata": {"name": "pizza"}, "spec": {}})
        status = {"allocatable": {"pods": "10"}, "conditions": READY}
        await client.create(NODES, {"metadata": {"name": "node-1"}, "status": status})
        pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 2}
        common = {"driver": "dra.pizza", "nodeName": "node-1", "pool": pool}
        counters = [{"name": "oven", "counters": {"slots": {"value": "1"}}}]
        cheese = {"cheese": {"string": "gouda"}}
        devices = [{"name": f"pizza-{i}", "attributes": cheese, "consumesCounters": COUNTED} for i in range(2)]
        await client.create(
            RESOURCE_SLICES, {"metadata": {"name": "counters"}, "spec": {**common, "sharedCounters": counters}}
        )
        await client.create(RESOURCE_SLICES, {"metadata": {"name": "node-1"}, "spec": {**common, "devices": devices}})
        await known(plane, "node-1")
        claims, pods = plane.informers.objects(RESOURCE_CLAIMS), plane.informers.objects(PODS)
        await add_claim(client, "lunch")
        await add_pod(client, "guest", "lunch")
        await until(lambda: bool(claims.get(("default", "lunch"), {}).get("status", {}).get("allocation")))
        selector = {"cel": {"expression": 'device.attributes["dra.pizza"].chesse == "gouda"'}}
        await add_claim(client, "dinner")
        await add_claim(client, "typo", selectors=[selector])
        waiting = [await add_pod(client, name, name) for name in ("dinner", "typo")]
        await until(lambda: {("default", "dinner"), ("default", "typo")} <= pods.keys() & claims.keys())

        found = await explain_pending_pods(plane.informers, client, waiting, Release.of())

    dinner, typo = (list(map(str, found[pod["metadata"]["uid"]])) for pod in waiting)
    assert "claim dinner: oven is short of slots by 1: 1 needed, 0 left (devices of default/lunch)" in dinner
    assert any(text.startswith('claim typo: did you mean "cheese"?') for text in typo), typo


async def test_pod_that_waits_for_a_pool_with_overdrawn_counters_is_explained() -> None:
    async with ControlPlane() as plane:
        client = await plane.connect("test")
        await client.create(DEVICE_CLASSES, {"metadata": {"name": "pizza"}, "spec": {}})
        status = {"allocatable": {"pods": "10"}, "conditions": READY}
        await client.create(NODES, {"metadata": {"name": "node-1"}, "status": status})
        pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 2}
        common = {"driver": "dra.pizza", "nodeName": "node-1", "pool": pool}
        counters = [{"name": name, "counters": {"slots": {"value": "1"}}} for name in ("oven", "fridge")]
        cake = {"name": "cake", "consumesCounters": [{**COUNTED[0], "counterSet": "fridge"}]}
        devices = [cake, *({"name": f"pizza-{i}", "consumesCounters": COUNTED} for i in range(2))]
        await client.create(
            RESOURCE_SLICES, {"metadata": {"name": "counters"}, "spec": {**common, "sharedCounters": counters}}
        )
        await client.create(RESOURCE_SLICES, {"metadata": {"name": "node-1"}, "spec": {**common, "devices": devices}})
        await known(plane, "node-1")
        for number, name in enumerate(("lunch", "dinner")):  # as after an inventory with smaller counters
            allocation = allocation_on("node-1")
            allocation["devices"]["results"][0]["device"] = f"pizza-{number}"
            made = await add_claim(client, name)
            await client.update(RESOURCE_CLAIMS, {**made, "status": {"allocation": allocation}}, subresource="status")
        claims, pods = plane.informers.objects(RESOURCE_CLAIMS), plane.informers.objects(PODS)
        await until(lambda: all(claims.get(("default", name), {}).get("status") for name in ("lunch", "dinner")))
        await add_claim(client, "dessert")
        guest = await add_pod(client, "guest", "dessert")
        await until(lambda: ("default", "guest") in pods and ("default", "dessert") in claims)

        found = await explain_pending_pods(plane.informers, client, [guest], Release.of())

    texts = list(map(str, found[guest["metadata"]["uid"]]))
    assert any(text.startswith("claim dessert: request r: ") for text in texts), texts
