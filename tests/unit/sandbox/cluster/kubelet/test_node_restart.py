"""Restarts of the kubelet, and lost connections to drivers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.api import Client, ObjectList
from dra_kit.client.resources import LEASES, NODES, PODS, RESOURCE_SLICES, Resource
from dra_kit.sandbox.kubelet.plugin_manager import WIPING_DELAY
from dra_kit.sandbox.records import PluginConnected, PluginDisconnected, SlicesWiped
from tests.unit.sandbox.cluster.kubelet.driver import DRIVER
from tests.unit.sandbox.cluster.kubelet.node import NAMESPACE, NODE, Node, Oven, node
from tests.unit.sandbox.cluster.kubelet.pods import SLEEPER, container, pod


async def test_kubelet_restart_does_not_affect_running_pods(kitchen: Node) -> None:
    before = await kitchen.run()
    await kitchen.kubelet.restart()
    await kitchen.kubelet.plugins.wait_for_plugin(DRIVER)
    await kitchen.start(pod(SLEEPER, name="friend"))
    await kitchen.phase("Running", "friend")
    after = await kitchen.pod()
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    assert kitchen.driver.calls == [("prepare", "lunch")]
    await kitchen.leave()
    assert kitchen.driver.calls == [("prepare", "lunch"), ("unprepare", "lunch")]


async def test_pods_that_are_not_known_yet_after_a_restart_keep_their_claims(
    kitchen: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kitchen.run()
    monkeypatch.setattr("dra_kit.sandbox.kubelet.node.RECONCILE_SECONDS", 0.0)
    answering, original = asyncio.Event(), Client.list

    async def late(client: Client, resource: Resource, *place: str, **options: Any) -> ObjectList:
        if resource is PODS:
            await answering.wait()
        return await original(client, resource, *place, **options)

    monkeypatch.setattr(Client, "list", late)
    await kitchen.kubelet.restart()
    await kitchen.kubelet.plugins.wait_for_plugin(DRIVER)
    await asyncio.sleep(0.2)
    answering.set()
    await kitchen.start(pod(SLEEPER, name="friend"))
    await kitchen.phase("Running", "friend")
    assert kitchen.driver.calls == [("prepare", "lunch")]


async def test_after_a_restart_a_claim_is_prepared_again_for_a_new_pod(kitchen: Node) -> None:
    first = await kitchen.run()
    await kitchen.kubelet.restart()
    await kitchen.kubelet.plugins.wait_for_plugin(DRIVER)
    second = await kitchen.start(pod(SLEEPER, name="friend"), "lunch", reserved=False)
    await kitchen.reserve("lunch", first, second)
    await kitchen.phase("Running", "friend")
    # the checkpoint contains that the claim must be released, not that it is prepared
    assert kitchen.driver.calls == [("prepare", "lunch"), ("prepare", "lunch")]


async def test_pod_deleted_while_the_kubelet_was_down_is_cleaned_up(kitchen: Node) -> None:
    await kitchen.run()
    await kitchen.kubelet.__aexit__(None, None, None)
    await kitchen.delete(grace=0)
    assert kitchen.runtime.pods()
    await kitchen.kubelet.__aenter__()
    await kitchen.is_so(lambda: not kitchen.runtime.pods())
    assert kitchen.driver.calls == [("prepare", "lunch"), ("unprepare", "lunch")]


async def test_claim_of_a_vanished_pod_is_released(kitchen: Node) -> None:
    guest = await kitchen.run(pod(container("eater", "sleep", "3600")))
    await kitchen.kubelet.__aexit__(None, None, None)
    await kitchen.delete(grace=0)
    for status in kitchen.runtime.containers(guest["metadata"]["uid"]):
        kitchen.runtime.stop(status.id, 0)
    await kitchen.is_so(lambda: not any(item.running for item in kitchen.runtime.containers(guest["metadata"]["uid"])))
    kitchen.runtime.remove(guest["metadata"]["uid"])
    await kitchen.kubelet.__aenter__()
    await kitchen.is_so(lambda: ("unprepare", "lunch") in kitchen.driver.calls)


async def test_pod_that_exited_while_the_kubelet_was_down_is_reported(kitchen: Node) -> None:
    await kitchen.start(pod(container("eater", "sh", "-c", "until [ -e ../go ]; do sleep 0.01; done")))
    await kitchen.phase("Running")
    await kitchen.kubelet.__aexit__(None, None, None)
    report = kitchen.runtime.report(NAMESPACE, "guest", "eater")
    assert report is not None
    Path(report.environment["HOME"], "..", "go").touch()
    await kitchen.is_so(lambda: not kitchen.runtime.containers(report.config.pod.uid)[0].running)
    await kitchen.kubelet.__aenter__()
    await kitchen.phase("Succeeded")


async def test_restarted_kubelet_does_not_change_completed_pods(kitchen: Node) -> None:
    await kitchen.start(pod(container("eater", "true")))
    before = await kitchen.phase("Succeeded")
    await kitchen.kubelet.restart()
    await kitchen.start(pod(container("eater", "true"), name="friend"))
    await kitchen.phase("Succeeded", "friend")
    assert await kitchen.pod() == before
    await kitchen.leave()


async def slices(kitchen: Node) -> set[str]:
    return {item["metadata"]["name"] for item in (await kitchen.client.list(RESOURCE_SLICES)).items}


async def publish(kitchen: Node, name: str, driver: str, **where: Any) -> None:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    body = {"metadata": {"name": name}, "spec": {"driver": driver, "pool": pool, "devices": [], **where}}
    await kitchen.client.create(RESOURCE_SLICES, body)


async def test_slices_of_a_lost_driver_are_deleted(kubelet_dir: Path) -> None:
    async with node(kubelet_dir, time_scale=WIPING_DELAY / 0.05) as kitchen:
        await publish(kitchen, "mine", DRIVER, nodeName=NODE)
        await publish(kitchen, "of-another-node", DRIVER, nodeName="node-b")
        await publish(kitchen, "of-no-node", DRIVER, allNodes=True)
        await publish(kitchen, "of-another-driver", "dra.pasta", nodeName=NODE)
        await kitchen.is_so(lambda: PluginConnected(node=NODE, driver=DRIVER) in kitchen.records)
        await kitchen.driver.__aexit__()
        await kitchen.is_so(lambda: SlicesWiped(node=NODE, driver=DRIVER) in kitchen.records)
        assert await slices(kitchen) == {"of-another-node", "of-no-node", "of-another-driver"}
        assert PluginDisconnected(node=NODE, driver=DRIVER) in kitchen.records


async def test_a_driver_that_comes_back_in_time_keeps_its_slices(kubelet_dir: Path) -> None:
    async with node(kubelet_dir, time_scale=1.0) as kitchen:
        await publish(kitchen, "mine", DRIVER, nodeName=NODE)
        await kitchen.is_so(lambda: PluginConnected(node=NODE, driver=DRIVER) in kitchen.records)
        await kitchen.driver.__aexit__()
        lost = PluginDisconnected(node=NODE, driver=DRIVER)
        await kitchen.is_so(lambda: lost in kitchen.records)
        async with Oven(kubelet_dir, kitchen.driver.cdi_dir):
            back = PluginConnected(node=NODE, driver=DRIVER)
            await kitchen.is_so(lambda: kitchen.records.index(lost) < len(kitchen.records) - 1)
            assert kitchen.records[-1] == back
            assert await slices(kitchen) == {"mine"}


async def test_a_kubelet_deletes_the_slices_of_its_node_when_it_starts(kitchen: Node) -> None:
    await publish(kitchen, "mine", DRIVER, nodeName=NODE)
    await publish(kitchen, "of-another-node", DRIVER, nodeName="node-b")
    await kitchen.kubelet.restart()
    assert await slices(kitchen) == {"of-another-node"}


async def test_the_node_and_its_lease(kubelet_dir: Path) -> None:
    async with node(kubelet_dir, labels={"kitchen": "big"}) as kitchen:
        found = await kitchen.client.get(NODES, NODE)
        assert found["metadata"]["labels"]["kitchen"] == "big"
        assert found["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
        assert found["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.1"
        assert {item["type"]: item["status"] for item in found["status"]["conditions"]}["Ready"] == "True"
        assert found["status"]["allocatable"]["pods"] == "110"

        # the Lease comes beside the pods, so a pod that runs says nothing of it
        async def leases() -> list[dict[str, Any]]:
            return list((await kitchen.client.list(LEASES, "kube-node-lease")).items)

        while not await leases():
            pass
        (lease,) = await leases()
        assert lease["spec"]["holderIdentity"] == NODE
        assert lease["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]


async def test_a_node_that_exists_is_brought_up_to_date(kitchen: Node) -> None:
    await kitchen.client.patch(NODES, NODE, {"metadata": {"labels": {"kubernetes.io/hostname": "x", "own": "y"}}})
    await kitchen.kubelet.restart()
    labels = (await kitchen.client.get(NODES, NODE))["metadata"]["labels"]
    assert (labels["kubernetes.io/hostname"], labels["own"]) == (NODE, "y")


async def test_pods_of_other_nodes_are_ignored(kitchen: Node) -> None:
    foreign = await kitchen.created(pod(SLEEPER, name="foreign"))
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-b"}
    await kitchen.client.create(
        PODS, {"metadata": {"name": "foreign"}, "target": target}, NAMESPACE, subresource="binding"
    )
    await kitchen.start(pod(SLEEPER))
    await kitchen.phase("Running")
    assert "containerStatuses" not in (await kitchen.pod("foreign"))["status"]
    assert foreign["metadata"]["uid"] not in {item.uid for item in kitchen.runtime.pods()}
