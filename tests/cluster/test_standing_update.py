"""Updates of the deployed driver that never become ready: pods with its devices start and end all the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.kubelet.sockets import registration_socket
from tests.cluster.deployed import KUBELET_DIR, Deployed, deployed, wait_until
from tests.cluster.plane import Plane
from tests.cluster.renamed import renamed_class
from tests.cluster.restaurant import Order, Restaurant
from tests.support.processes import processes

NOT_PREPARED = "FailedPrepareDynamicResources"
FAULTY = "/etc/faulty"
CODE = """
import asyncio, os, time
MODE = os.environ.get("FAULT", "")
if MODE:
    import pizza_driver.kitchen as kitchen
    good_discover, good_startup = kitchen.Kitchen.discover, kitchen.Kitchen.startup

    def startup(self, context):
        if MODE == "startup-raises":
            raise RuntimeError("cannot open /dev/oven")
        if MODE == "startup-hangs":
            time.sleep(3600)
        good_startup(self, context)

    async def discover(self):
        if MODE == "discover-raises":
            raise RuntimeError("no kitchen found")
        if MODE == "discover-blocks":
            time.sleep(3600)
        if MODE == "discover-waits":
            await asyncio.sleep(3600)
        if MODE == "exits-before-ready":
            await asyncio.sleep(4)
            os._exit(1)
        if MODE == "exits-when-ready":
            asyncio.get_running_loop().call_later(10, os._exit, 1)
        if MODE == "bad-device":
            yield [kitchen.Pizza.model_construct(name="Not Valid")]
        async for menu in good_discover(self):
            yield menu

    kitchen.Kitchen.startup, kitchen.Kitchen.discover = startup, discover
"""
MODES = ("discover-waits", "discover-blocks", "discover-raises", "bad-device", "startup-hangs")
CRASHES = ("startup-raises", "exits-before-ready")


@pytest.fixture(scope="module")
def driver(node_plane: Plane, pizza_image: str) -> Iterator[Deployed]:
    with deployed(node_plane, pizza_image, "standing.pizza.example") as driver:
        faulty = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "faulty", "namespace": driver.release.namespace},
            "data": {"sitecustomize.py": CODE},
        }
        node_plane.kubectl("apply", "-f", "-", stdin=json.dumps(faulty))
        yield driver


@pytest.fixture
async def restaurant(driver: Deployed) -> AsyncIterator[Restaurant]:
    """With a regular, who has a pizza since before the update."""
    credentials = await load_credentials(driver.release.plane.kubeconfig)
    async with (
        Client(credentials, user_agent="dra-kit-tests") as client,
        Restaurant.open(client, Order(renamed_class("pizza", driver.name))) as restaurant,
    ):
        await restaurant.seat("regular")
        yield restaurant


class Update:
    """An update that is rolled out and does not become ready.

    Args:
        driver: the deployed one.
        serving: its pod before.
    """

    def __init__(self, driver: Deployed, serving: Any) -> None:
        self._driver = driver
        self.serving: str = serving["metadata"]["uid"]
        self.serving_name: str = serving["metadata"]["name"]

    def new(self) -> list[Any]:
        """Its pod, once there is one."""
        return [pod for pod in self._driver.release.pods("node") if pod["metadata"]["uid"] != self.serving]

    def restarts(self) -> int:
        """How often its container has been started again."""
        return sum(item["restartCount"] for pod in self.new() for item in pod["status"].get("containerStatuses", ()))

    def waits(self) -> bool:
        """Whether the new process runs, and has said that the older one serves."""
        return any("registration is deferred" in self._log(pod) for pod in self.new())

    def is_ready(self, *, new: bool) -> bool:
        pods = self.new() if new else [p for p in self._driver.release.pods("node") if p not in self.new()]
        return any(
            (item["type"], item["status"]) == ("Ready", "True")
            for pod in pods
            for item in pod["status"].get("conditions", ())
        )

    def registered(self) -> set[str]:
        """UIDs of the pods whose registration sockets the kubelet finds."""
        pods = [self.serving, *(pod["metadata"]["uid"] for pod in self.new())]
        return {uid for uid in pods if registration_socket(KUBELET_DIR, self._driver.name, uid).exists()}

    def status(self) -> str:
        """What ``dra-kit status`` says in the pod that serves."""
        plane, namespace = self._driver.release.plane, self._driver.release.namespace
        command = ("exec", "--namespace", namespace, self.serving_name, "--", "dra-kit", "status")
        return plane.kubectl(*command, "--driver", self._driver.name, check=False).stdout

    def _log(self, pod: Any) -> str:
        plane, namespace = self._driver.release.plane, self._driver.release.namespace
        return plane.kubectl("logs", pod["metadata"]["name"], "--namespace", namespace, check=False).stdout


@asynccontextmanager
async def rolled_out(driver: Deployed, **changes: Any) -> AsyncIterator[Update]:
    """The update that these changes of the node's values make, while its new pod is there; taken back in the end."""
    (serving,) = driver.release.pods("node")
    update = Update(driver, serving)
    node = {**driver.release.values["node"], **changes}
    await asyncio.to_thread(driver.release.apply, {"node": node})
    try:
        await asyncio.to_thread(wait_until, "the new pod", update.new)
        yield update
    finally:
        await asyncio.to_thread(driver.release.apply)
        await asyncio.to_thread(driver.release.rolled_out, "daemonset", "node")
        await asyncio.to_thread(wait_until, "one pod", lambda: len(driver.release.pods("node")) == 1)


def faulty(driver: Deployed, mode: str) -> dict[str, Any]:
    """Values of the node role for a release with this fault."""
    node = driver.release.values["node"]
    return {
        "extraVolumes": [*node["extraVolumes"], {"name": "faulty", "configMap": {"name": "faulty"}}],
        "extraVolumeMounts": [*node["extraVolumeMounts"], {"name": "faulty", "mountPath": FAULTY}],
        "extraEnv": [{"name": "PYTHONPATH", "value": FAULTY}, {"name": "FAULT", "value": mode}],
    }


def changes_of(driver: Deployed, cause: str) -> dict[str, Any]:
    """Values of the node role with which an update never becomes ready."""
    settings: Mapping[str, Any] = driver.release.values["node"]["settings"]
    if cause == "typo-in-a-setting":
        return {"settings": {**settings, "menu": f"{settings['menu']}.of-tomorrow"}}
    if cause == "no-api-server":
        return {"extraEnv": [{"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"}]}
    return faulty(driver, cause)


async def come_and_go(restaurant: Restaurant, *guests: str) -> None:
    for guest in guests:
        await restaurant.seat(guest)
        await restaurant.leave(guest)


async def unprepared(restaurant: Restaurant) -> list[str]:
    return [text for text in await restaurant.events(kind="Warning") if NOT_PREPARED in text]


@pytest.mark.parametrize(
    "cause",
    [
        "typo-in-a-setting",
        pytest.param("no-api-server", marks=pytest.mark.long),
        *(pytest.param(mode, marks=pytest.mark.long) for mode in MODES),
    ],
)
async def test_pods_start_and_end_while_an_update_waits(driver: Deployed, restaurant: Restaurant, cause: str) -> None:
    async with rolled_out(driver, **changes_of(driver, cause)) as update:
        await asyncio.to_thread(wait_until, "the new process waits", update.waits)
        await restaurant.leave("regular")
        await come_and_go(restaurant, "first", "second")
        assert await asyncio.to_thread(update.is_ready, new=False)
        assert not await asyncio.to_thread(update.is_ready, new=True)
        assert await asyncio.to_thread(update.registered) == {update.serving}
        told = await asyncio.to_thread(update.status)
        assert "an update waits, and the kubelet calls the older process: pod " in told
        assert "calls it" in told
    assert await unprepared(restaurant) == []
    await come_and_go(restaurant, "after")


@pytest.mark.long
@pytest.mark.parametrize("cause", CRASHES)
async def test_a_crash_loop_that_is_never_ready_breaks_nothing_off(
    driver: Deployed, restaurant: Restaurant, cause: str
) -> None:
    async with rolled_out(driver, **faulty(driver, cause)) as update:
        served = 0
        while await asyncio.to_thread(update.restarts) < 2:
            served += 1
            await come_and_go(restaurant, f"guest-{served}")
            assert update.serving in await asyncio.to_thread(update.registered)
        assert served
        await restaurant.leave("regular")
    assert await unprepared(restaurant) == []


@pytest.mark.long
async def test_a_crash_loop_after_it_was_ready_takes_the_calls_once(driver: Deployed, restaurant: Restaurant) -> None:
    async with rolled_out(driver, **faulty(driver, "exits-when-ready")) as update:
        await asyncio.to_thread(wait_until, "its first end", lambda: update.restarts() >= 1)
        await asyncio.to_thread(wait_until, "the older one serves", lambda: update.registered() == {update.serving})
        before = await unprepared(restaurant)
        served = 0
        while await asyncio.to_thread(update.restarts) < 3:
            served += 1
            await come_and_go(restaurant, f"guest-{served}")
            assert await asyncio.to_thread(update.registered) == {update.serving}
        assert served
        await restaurant.leave("regular")
        assert await unprepared(restaurant) == before


@pytest.mark.long
async def test_a_kubelet_that_restarts_meanwhile_finds_the_older_process(
    driver: Deployed, restaurant: Restaurant
) -> None:
    plane = driver.release.plane
    async with rolled_out(driver, **faulty(driver, "discover-waits")) as update:
        await asyncio.to_thread(wait_until, "the new process waits", update.waits)
        await asyncio.to_thread(plane.component, "stop", "kubelet")
        await asyncio.to_thread(plane.component, "start", "kubelet")
        await come_and_go(restaurant, "first", "second")
        await restaurant.leave("regular")
        assert await asyncio.to_thread(update.registered) == {update.serving}


@pytest.mark.long
async def test_a_downgrade_that_waits_changes_nothing_and_the_next_update_is_served(
    driver: Deployed, restaurant: Restaurant
) -> None:
    async with rolled_out(driver, **faulty(driver, "discover-raises")) as update:
        await asyncio.to_thread(wait_until, "the new process waits", update.waits)
        # back to what was there, and on to another release, while the one that waits is on its way out
        good = {**driver.release.values["node"], "podAnnotations": {"release": "next"}}
        await asyncio.to_thread(driver.release.apply, {"node": good})
        await come_and_go(restaurant, "first", "second")
        await asyncio.to_thread(driver.release.rolled_out, "daemonset", "node")
        await restaurant.leave("regular")
    assert await unprepared(restaurant) == []
    await come_and_go(restaurant, "third")


def killed(driver: Deployed, update: Update) -> None:
    """End the older process as the kernel does; the kubelet starts its container again."""
    [pid] = [
        process.pid
        for process in processes()
        if f"DRA_POD_UID={update.serving}" in process.environment and "node" in process.command
    ]
    os.kill(pid, signal.SIGKILL)


def deleted(driver: Deployed, update: Update) -> None:
    """Delete its pod by force: the API server forgets it at once."""
    driver.release.kubectl("delete", "pod", update.serving_name, "--force", "--grace-period=0")


@pytest.mark.long
@pytest.mark.parametrize("end", [killed, deleted])
async def test_the_new_process_registers_at_once_when_the_older_one_is_gone(
    driver: Deployed, restaurant: Restaurant, end: Any
) -> None:
    async with rolled_out(driver, **faulty(driver, "discover-waits")) as update:
        await asyncio.to_thread(wait_until, "the new process waits", update.waits)
        (new,) = await asyncio.to_thread(update.new)
        end(driver, update)
        await asyncio.to_thread(wait_until, "it registers", lambda: new["metadata"]["uid"] in update.registered())
        await restaurant.leave("regular")
    await come_and_go(restaurant, "after")
