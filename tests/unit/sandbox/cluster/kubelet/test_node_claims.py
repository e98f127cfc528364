"""The claims of a node's pods: which drivers are called, when, how often, and how failures are reported."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import NotFound
from dra_kit.sandbox.records import PREPARE, UNPREPARE, CallEnded
from tests.unit.sandbox.cluster.kubelet.driver import DRIVER
from tests.unit.sandbox.cluster.kubelet.node import NAMESPACE, Node, Oven
from tests.unit.sandbox.cluster.kubelet.pods import SLEEPER, container, pod


async def refusal(kitchen: Node) -> str:
    """What the kubelet says of a pod that it cannot start."""
    events = await kitchen.events("FailedPrepareDynamicResources")
    notes = [note for reason, note in events if reason == "FailedPrepareDynamicResources"]
    waiting = await kitchen.pod()
    assert waiting["status"]["phase"] == "Pending"
    prefix = "Failed to prepare dynamic resources: prepare dynamic resources: "
    assert notes[0].startswith(prefix)
    return notes[0].removeprefix(prefix)


async def test_a_claim_that_does_not_exist(kitchen: Node) -> None:
    await kitchen.start(pod(SLEEPER), "lunch", reserved=False)
    assert await refusal(kitchen) == 'fetch ResourceClaim lunch: resourceclaims.resource.k8s.io "lunch" not found'
    waiting = await kitchen.until(lambda item: item["status"].get("containerStatuses"))
    assert waiting["status"]["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    conditions = {item["type"]: item.get("message") for item in waiting["status"]["conditions"]}
    assert conditions["PodReadyToStartContainers"] == "no pod sandbox exists"
    # tried again later
    await kitchen.order("lunch")
    await kitchen.reserve("lunch", waiting)
    await kitchen.phase("Running")


async def test_a_claim_that_is_not_reserved(kitchen: Node) -> None:
    claim = await kitchen.order("lunch")
    guest = await kitchen.start(pod(SLEEPER), "lunch", reserved=False)
    who = f"pod guest ({guest['metadata']['uid']})"
    assert await refusal(kitchen) == (f"{who} is not allowed to use ResourceClaim lunch ({claim['metadata']['uid']})")


async def test_a_claim_that_is_not_made_yet(kitchen: Node) -> None:
    entry = {"name": "lunch", "resourceClaimTemplateName": "lunch"}
    await kitchen.start(pod(SLEEPER, resourceClaims=[entry]))
    assert await refusal(kitchen) == 'pod "kitchen/guest": ResourceClaim not created yet'


async def test_a_driver_that_is_not_registered(kitchen: Node) -> None:
    await kitchen.order("lunch", driver="dra.pasta")
    await kitchen.start(pod(SLEEPER), "lunch")
    assert await refusal(kitchen) == "DRA driver dra.pasta is not registered"
    await kitchen.leave()
    assert kitchen.driver.calls == []


async def test_rejected_prepare_is_reported_and_retried(kitchen: Node) -> None:
    kitchen.driver.failing = {"lunch": "the oven is cold"}
    await kitchen.order("lunch")
    await kitchen.start(pod(SLEEPER), "lunch")
    assert await refusal(kitchen) == "NodePrepareResources failed for ResourceClaim lunch: the oven is cold"
    kitchen.driver.failing = {}
    await kitchen.phase("Running")
    errors = [item.error for item in kitchen.records if isinstance(item, CallEnded) and item.method == PREPARE]
    assert errors[0] == "NodePrepareResources failed for ResourceClaim lunch: the oven is cold"
    assert errors[-1] == ""


async def test_claims_of_a_pod_that_never_started_are_released(kitchen: Node) -> None:
    kitchen.driver.failing = {"lunch": "the oven is cold"}
    await kitchen.order("lunch")
    await kitchen.start(pod(SLEEPER), "lunch")
    await refusal(kitchen)
    kitchen.driver.failing = {}
    await kitchen.leave()
    assert kitchen.driver.calls[-1] == ("unprepare", "lunch")


async def test_all_claims_of_a_pod_come_in_one_call(kitchen: Node) -> None:
    for name in ("lunch", "dinner"):
        await kitchen.order(name)
    eater = container("eater", "sh", "-c", "env; exec sleep 3600", resources={"claims": [{"name": "lunch"}]})
    await kitchen.start(pod(eater), "lunch", "dinner")
    await kitchen.phase("Running")
    # also the one that no container uses
    assert kitchen.driver.calls == [("prepare", "lunch", "dinner")]
    await kitchen.is_so(lambda: "PIZZA_LUNCH" in kitchen.output())
    assert "PIZZA_DINNER" not in kitchen.output()
    await kitchen.leave()
    assert kitchen.driver.calls[1:] == [("unprepare", "lunch", "dinner")]


async def test_a_shared_claim_is_prepared_once_and_released_with_its_last_pod(kitchen: Node) -> None:
    first = await kitchen.run()
    second = pod(SLEEPER, name="friend")
    second["metadata"]["uid"] = "x"
    created = await kitchen.start(second, "lunch", reserved=False)
    await kitchen.reserve("lunch", first, created)
    await kitchen.phase("Running", "friend")
    assert kitchen.driver.calls == [("prepare", "lunch")]
    await kitchen.leave()
    assert kitchen.driver.calls == [("prepare", "lunch")]
    await kitchen.leave("friend")
    assert kitchen.driver.calls == [("prepare", "lunch"), ("unprepare", "lunch")]


async def test_a_pod_stays_until_its_driver_released_the_claim(kitchen: Node) -> None:
    await kitchen.order("lunch")
    await kitchen.start(pod(container("eater", "true")), "lunch")
    kitchen.driver.failing = {"lunch": "a guest still eats"}
    # whether the pod had started before the driver began to fail does not matter: it is released in the end
    await kitchen.is_so(lambda: len([item for item in kitchen.records if getattr(item, "error", "")]) >= 2)
    assert (await kitchen.pod())["status"]["phase"] not in {"Succeeded", "Failed"}
    kitchen.driver.failing = {}
    await kitchen.phase("Succeeded")
    released = [
        item for item in kitchen.records if isinstance(item, CallEnded) and item.method == UNPREPARE and not item.error
    ]
    assert [claim.name for claim in released[-1].claims] == ["lunch"]


async def test_a_claim_of_the_same_name_waits_for_the_old_one(kitchen: Node) -> None:
    old = await kitchen.order("lunch")
    await kitchen.start(pod(SLEEPER), "lunch")
    await kitchen.phase("Running")
    kitchen.driver.failing = {"lunch": "a guest still eats"}
    await kitchen.leave(grace=0)
    await kitchen.is_so(lambda: ("unprepare", "lunch") in kitchen.driver.calls)
    with suppress(NotFound):
        await kitchen.client.delete(RESOURCE_CLAIMS, "lunch", NAMESPACE)
    await kitchen.order("lunch")
    await kitchen.start(pod(SLEEPER), "lunch")
    uid = old["metadata"]["uid"]
    assert await refusal(kitchen) in {
        f"old ResourceClaim with same name lunch and different UID {uid} still exists (previous pod force-deleted?!)",
        "ResourceClaim lunch is being unprepared",
    }
    kitchen.driver.failing = {}
    await kitchen.phase("Running")


async def test_undefined_cdi_devices_fail_the_container(kitchen: Node) -> None:
    claim = await kitchen.order("lunch")
    await kitchen.start(pod(container("eater", "false"), restartPolicy="OnFailure"), "lunch")
    await kitchen.until(lambda item: item["status"].get("containerStatuses"))
    spec = Path(kitchen.driver.cdi_dir, f"{claim['metadata']['uid']}.json")
    content = spec.read_text()
    spec.unlink()
    name = f"{DRIVER}/claim={json.loads(content)['devices'][0]['name']}"
    waiting = await kitchen.until(
        lambda item: (
            item["status"]["containerStatuses"][0]["state"].get("waiting", {}).get("reason") == "CreateContainerError"
        )
    )
    message = waiting["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    assert f"CDI device injection failed: unresolvable CDI devices {name}" in message
    spec.write_text(content)
    tries = waiting["status"]["containerStatuses"][0]["restartCount"]
    await kitchen.until(lambda item: item["status"]["containerStatuses"][0]["restartCount"] > tries)


async def test_the_claim_of_extended_resources(kitchen: Node) -> None:
    await kitchen.order("guest-extended-resources-x")
    mapping = {"containerName": "eater", "resourceName": "example.com/pizza", "requestName": "pizza"}
    entry = {"resourceClaimName": "guest-extended-resources-x", "requestMappings": [mapping]}
    found = await kitchen.client.get(RESOURCE_CLAIMS, "guest-extended-resources-x", NAMESPACE)
    guest = await kitchen.created(pod(SLEEPER))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "guest", "uid": guest["metadata"]["uid"], "controller": True}
    await kitchen.client.patch(
        RESOURCE_CLAIMS, found["metadata"]["name"], {"metadata": {"ownerReferences": [owner]}}, NAMESPACE
    )
    await kitchen.reserve("guest-extended-resources-x", guest)
    await kitchen.set_status(guest, {"extendedResourceClaimStatus": entry})
    await kitchen.bind(guest)
    await kitchen.phase("Running")
    await kitchen.is_so(lambda: "PIZZA_GUEST_EXTENDED_RESOURCES_X=funghi" in kitchen.output())


async def test_during_a_rolling_update_the_newer_instance_is_called(kitchen: Node, kubelet_dir: Path) -> None:
    await kitchen.order("lunch")
    async with Oven(kubelet_dir, kitchen.driver.cdi_dir, "newer") as newer:
        await kitchen.is_so(
            lambda: (
                len(kitchen.kubelet.plugins.plugins(DRIVER)) == 2
                and all(item.connected for item in kitchen.kubelet.plugins.plugins(DRIVER))
            )
        )
        await kitchen.start(pod(SLEEPER), "lunch")
        await kitchen.phase("Running")
        assert newer.calls == [("prepare", "lunch")]
    await kitchen.leave()
    assert kitchen.driver.calls == [("unprepare", "lunch")]
