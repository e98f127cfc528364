"""The driver as it is deployed: its image, its chart, its life from the first version to the last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme

from dra_kit.sandbox.stories.story import find_stories
from tests.cluster.deployed import Deployed, deployed, wait_until
from tests.cluster.manifests import claim, tls_secret
from tests.cluster.node_driver import RealCluster, play
from tests.cluster.pizza import STORIES
from tests.cluster.plane import Plane
from tests.cluster.pod_rights import PodRights, claim_of, empty_slice, pod_rights, release_of
from tests.cluster.renamed import renamed_class, renamed_story
from tests.cluster.restaurant import Order, Restaurant, served_throughout

CONTROLLER_STORY = Path(__file__).with_name("controller_events")
ONE_STORY = STORIES / "order-by-claim"
FEW, MANY = 4, 20
A_LOT = """pizzas:
  - {name: calzone, count: 16, dough: thin, sauce: tomato, cheese: mozzarella, slices: 8}
  - {name: marinara, count: 16, dough: thin, sauce: tomato, cheese: none, slices: 8}
"""
IMAGE_THAT_DOES_NOT_EXIST: Mapping[str, Any] = {"image": {"repository": "localhost/pizza-driver", "tag": "of-tomorrow"}}
DRIVER_THAT_DOES_NOT_START: Mapping[str, Any] = {"target": "pizza_driver.driver:of_tomorrow"}


@pytest.fixture(scope="module")
def driver(node_plane: Plane, pizza_image: str) -> Iterator[Deployed]:
    with deployed(node_plane, pizza_image, "deployed.pizza.example") as driver:
        yield driver


@pytest.fixture
async def cluster(driver: Deployed, tmp_path: Path) -> AsyncIterator[RealCluster]:
    """The cluster with the deployed driver, as stories see it."""
    with driver.node_driver(tmp_path / "node.log") as node:
        async with node.cluster() as real:
            yield real


async def tell(story: Path, cluster: RealCluster, directory: Path) -> None:
    """Fail unless a story is true of the deployed driver."""
    await play(renamed_story(story, cluster.driver, directory), cluster)


@pytest.mark.parametrize(
    "story",
    # the others are played with each change by a driver that is not deployed: test_stories.py
    [
        pytest.param(path, id=path.name, marks=[] if path in (ONE_STORY, CONTROLLER_STORY) else pytest.mark.long)
        for path in (*find_stories(STORIES), CONTROLLER_STORY)
    ],
)
async def test_story(story: Path, cluster: RealCluster, tmp_path: Path) -> None:
    await tell(story, cluster, tmp_path)


@pytest.mark.parametrize("guests", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
async def test_an_upgrade_with_claims_coming_and_going_loses_nothing(
    guests: int, driver: Deployed, cluster: RealCluster
) -> None:
    (former,) = driver.release.pods("node")
    before, offered = set(await cluster.node_state()), set(await asyncio.to_thread(driver.devices))
    menu = await cluster.replace_file("menu", A_LOT)

    async def roll() -> None:
        await asyncio.to_thread(driver.release.apply, upgraded(driver, f"with-{guests}-guests"))
        await asyncio.to_thread(driver.release.rolled_out, "daemonset", "node")
        await asyncio.to_thread(driver.release.rolled_out, "deployment", "controller")

    try:
        await asyncio.to_thread(wait_until, "a lot of pizzas", lambda: len(driver.devices()) > MANY)
        async with Restaurant.open(cluster.client, Order(renamed_class("pizza", driver.name))) as restaurant:
            await restaurant.seat("regular")
            failures = await served_throughout(restaurant, guests, roll)
            kept = set(await cluster.node_state()) - before
            await restaurant.leave("regular")
    finally:
        await cluster.replace_file("menu", menu)
        # the next tests count on them
        await asyncio.to_thread(wait_until, "the pizzas of the menu", lambda: set(driver.devices()) == offered)

    # when the rollout is over, the former pod may still be on its way out
    await asyncio.to_thread(wait_until, "one pod", lambda: len(driver.release.pods("node")) == 1)
    (successor,) = driver.release.pods("node")
    assert successor["metadata"]["uid"] != former["metadata"]["uid"]
    assert restaurant.lost == []
    assert failures == []
    assert len(kept) == 2, f"the CDI file and the record of the regular, and nothing of those who left: {kept}"
    assert set(await cluster.node_state()) == before


def upgraded(driver: Deployed, version: str) -> dict[str, Any]:
    """Values with which every role gets new pods, if it has not had this version."""
    annotations = {"podAnnotations": {"upgraded": version}}
    return {role: {**driver.release.values[role], **annotations} for role in ("node", "controller")}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(IMAGE_THAT_DOES_NOT_EXIST, id="image-that-does-not-exist", marks=pytest.mark.long),
        pytest.param(DRIVER_THAT_DOES_NOT_START, id="driver-that-does-not-start"),
    ],
)
async def test_a_failed_rollout_leaves_the_old_one_serving_and_can_be_taken_back(
    changes: Mapping[str, Any], driver: Deployed, cluster: RealCluster, tmp_path: Path
) -> None:
    (serving,) = driver.release.pods("node")

    await asyncio.to_thread(driver.release.apply, changes)
    try:
        await asyncio.to_thread(
            wait_until, "the new version fails", lambda: any(map(failed, driver.release.pods("node")))
        )
        during = {pod["metadata"]["uid"]: ready(pod) for pod in driver.release.pods("node")}
        await tell(ONE_STORY, cluster, tmp_path / "during")
    finally:
        await asyncio.to_thread(driver.release.helm, "rollback", driver.release.name)
    await asyncio.to_thread(driver.release.rolled_out, "daemonset", "node")
    await asyncio.to_thread(wait_until, "one pod", lambda: len(driver.release.pods("node")) == 1)
    (survivor,) = driver.release.pods("node")

    assert len(during) == 2
    assert during[serving["metadata"]["uid"]]
    assert survivor["metadata"]["uid"] == serving["metadata"]["uid"]
    await tell(ONE_STORY, cluster, tmp_path / "after")


def ready(pod: Any) -> bool:
    """The kubelet says so."""
    conditions = pod["status"].get("conditions", [])
    return any((item["type"], item["status"]) == ("Ready", "True") for item in conditions)


def failed(pod: Any) -> bool:
    """It waits for an image that is not there, or to be started once more."""
    states = [item["state"] for item in pod["status"].get("containerStatuses", [])]
    reasons = {state.get("waiting", {}).get("reason") for state in states}
    return bool(reasons & {"ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff"})


@pytest.fixture
def rights(driver: Deployed) -> PodRights:
    return pod_rights(driver)


def test_the_pod_may_write_its_own_slices(driver: Deployed, rights: PodRights) -> None:
    (own,) = driver.slices()

    assert rights.update_slice(own) == ""


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_slice_of_another_node_is_refused(version: str, driver: Deployed, rights: PodRights) -> None:
    answer = rights.create_slice(empty_slice(driver.name, "another-node", version=version))

    assert "may write only slices with this spec.nodeName, not with another-node" in answer


def test_a_slice_of_no_node_is_refused(driver: Deployed, rights: PodRights) -> None:
    body = empty_slice(driver.name, "any")
    del body["spec"]["nodeName"]
    body["spec"]["allNodes"] = True

    assert "may write only slices with this spec.nodeName, not with (none)" in rights.create_slice(body)


@pytest.mark.parametrize(
    ("of_driver", "of_node", "reason"),
    [
        ("deployed.pizza.example", "another-node", "not with another-node"),
        ("another.pizza.example", None, "driver deployed.pizza.example may write only its own slices"),
    ],
    ids=["of-another-node", "of-another-driver"],
)
def test_slices_of_others_can_be_neither_changed_nor_deleted(
    of_driver: str, of_node: str | None, reason: str, node_plane: Plane, rights: PodRights
) -> None:
    other = rights.created(empty_slice(of_driver, of_node or str(node_plane.node)))
    changed = {**other, "spec": {**other["spec"], "pool": {**other["spec"]["pool"], "generation": 2}}}
    try:
        update, delete = rights.update_slice(changed), rights.delete_slice(other["metadata"]["name"])
    finally:
        node_plane.kubectl("delete", "resourceslice", other["metadata"]["name"])

    assert reason in update
    assert reason in delete


def test_what_another_driver_says_of_its_devices_is_refused(driver: Deployed, rights: PodRights) -> None:
    plane = driver.release.plane
    by_the_server = release_of(plane) >= (1, 36)
    reason = 'requires resource="resourceclaims/driver"' if by_the_server else "may change only its own entries"
    drivers = [driver.name, "another.pizza.example"]
    with claim_of(plane, driver.release.namespace, drivers, [str(plane.node)]) as claim:
        own, other = (
            {"driver": name, "pool": plane.node, "device": "device", "data": {"oven": "hot"}} for name in drivers
        )

        refused = rights.report_devices(claim, [other])
        taken = rights.report_devices(claim, [own])

    assert reason in refused
    assert taken == ""


@pytest.mark.parametrize(
    "attempt",
    [
        ("get", "secrets"),
        ("get", "pods"),
        ("get", "resourceclaims"),
        ("get", "nodes"),
        ("create", "configmap", "refusals"),
        ("delete", "resourceclaim", "refusals"),
        ("create", "token", "default"),
    ],
    ids=" ".join,
)
def test_what_the_node_does_not_need_is_refused(attempt: tuple[str, ...], driver: Deployed, rights: PodRights) -> None:
    answer = rights.request(*attempt, "--namespace", driver.release.namespace)

    user = f"system:serviceaccount:{driver.release.namespace}:{driver.release.name}-node"
    assert f'is forbidden: User "{user}" cannot' in answer


def test_the_deployed_webhook_refuses_bad_config(driver: Deployed) -> None:
    plane, release = driver.release.plane, driver.release
    authority = trustme.CA()
    server = authority.issue_cert(f"{release.name}-webhook.{release.namespace}.svc")
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(tls_secret("webhook", release.namespace, server)))
    certificate = {"secretName": "webhook", "caBundle": authority.cert_pem.bytes().decode()}
    release.apply({"webhook": {**release.values["controller"], "certificate": certificate, "replicas": 1}})
    try:
        release.rolled_out("deployment", "webhook")
        # the address of the Service leads to the pod a moment after that
        wait_until("the webhook takes good config", lambda: not refusal(plane, driver.name, "basil"))
        # valid config is also accepted before the webhook is called, and a late answer is a rejection, too
        bad = 'extra_toppings[0]: "gravel"'
        wait_until("the webhook refuses bad config", lambda: bad in refusal(plane, driver.name, "gravel"))
    finally:
        release.apply()


def test_the_deployed_webhook_makes_its_certificate_itself(driver: Deployed) -> None:
    plane, release = driver.release.plane, driver.release
    release.apply({"webhook": {**release.values["controller"], "certificate": {"selfMade": True}, "replicas": 2}})
    try:
        release.rolled_out("deployment", "webhook")
        wait_until("the webhook takes good config", lambda: not refusal(plane, driver.name, "basil"))
        bad = 'extra_toppings[0]: "gravel"'
        wait_until("the webhook refuses bad config", lambda: bad in refusal(plane, driver.name, "gravel"))
        secret = f"{release.name}-webhook-self-made"
        before = plane.get("secret", secret, "--namespace", release.namespace)["data"]
        release.apply({"webhook": {**release.values["controller"], "certificate": {"selfMade": True}, "replicas": 1}})
        release.rolled_out("deployment", "webhook")
        assert plane.get("secret", secret, "--namespace", release.namespace)["data"] == before
        assert bad in refusal(plane, driver.name, "gravel")
    finally:
        release.apply()


def refusal(plane: Plane, driver: str, topping: str) -> str:
    """What the API server says against a claim with a topping; empty when it would take it."""
    parameters = {"apiVersion": "kitchen.pizza.example/v1", "kind": "PizzaConfig", "extra_toppings": [topping]}
    config = [{"opaque": {"driver": driver, "parameters": parameters}}]
    order = json.dumps(claim("order", renamed_class("pizza", driver), request="pizza", config=config))
    return plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=order, check=False).stderr
