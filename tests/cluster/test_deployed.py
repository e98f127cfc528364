"""The driver as it is deployed: its image, its chart, its life from the first version to the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kit.errors import KubeError, NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import EVENTS, NAMESPACES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_kit.sandbox.story import find_stories, load_story
from dra_kit.sandbox.story_run import run_story
from tests.cluster.deployed import DEADLINE_SECONDS, Deployed, deployed, wait_until
from tests.cluster.find import find
from tests.cluster.image import CannotBuild, load_image
from tests.cluster.node_driver import RealCluster
from tests.cluster.pizza import STORIES
from tests.cluster.plane import Plane
from tests.cluster.release import CLUSTER_SCOPED
from tests.cluster.renamed import renamed_class, renamed_story

CONTROLLER_STORY = Path(__file__).with_name("controller_events")
GUESTS = 20
A_LOT = """pizzas:
  - {name: calzone, count: 12, dough: thin, sauce: tomato, cheese: mozzarella, slices: 8}
  - {name: marinara, count: 12, dough: thin, sauce: tomato, cheese: none, slices: 8}
"""


@pytest.fixture(scope="module")
def image(node_plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The example driver's image, on the node."""
    try:
        return load_image(find(), node_plane.kubeconfig.parent, tmp_path_factory.mktemp("image"))
    except CannotBuild as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def driver(node_plane: Plane, image: str) -> Iterator[Deployed]:
    with deployed(node_plane, image, "deployed.pizza.example") as driver:
        yield driver


@pytest.fixture
async def cluster(driver: Deployed, tmp_path: Path) -> AsyncIterator[RealCluster]:
    """The cluster with the deployed driver, as stories see it."""
    with driver.node_driver(tmp_path / "node.log") as node:
        async with node.cluster() as real:
            yield real


async def tell(folder: Path, driver: str, cluster: RealCluster, directory: Path) -> None:
    """Fail unless a story is true of the driver of that name."""
    result = await run_story(load_story(renamed_story(folder, driver, directory)), cluster)
    if not result.passed:
        log = "\n".join((await cluster.driver_log())[-30:])
        pytest.fail(f"{result.report()}\nnode role:\n{log}", pytrace=False)


@pytest.mark.parametrize("folder", [*find_stories(STORIES), CONTROLLER_STORY], ids=lambda path: path.name)
async def test_story(folder: Path, driver: Deployed, cluster: RealCluster, tmp_path: Path) -> None:
    await tell(folder, driver.name, cluster, tmp_path)


async def test_a_restart_with_claims_coming_and_going_loses_nothing(driver: Deployed, cluster: RealCluster) -> None:
    (former,) = driver.release.pods("node")
    menu = await cluster.replace_file("menu", A_LOT)
    await asyncio.to_thread(wait_until, "a lot of pizzas", lambda: len(driver.devices()) == 24)
    before = set(await cluster.node_state())
    try:
        async with Restaurant.open(cluster.client, driver.name) as restaurant:
            await restaurant.seat("regular")
            arrived = asyncio.Event()
            guests = [asyncio.create_task(restaurant.come_and_go(f"guest-{i}")) for i in range(GUESTS)]
            arrived.set()
            await restaurant.served(GUESTS)
            await asyncio.to_thread(
                driver.release.plane.kubectl,
                "rollout", "restart", f"daemonset/{driver.release.name}-node", "--namespace", driver.release.namespace,
            )  # fmt: skip
            await asyncio.to_thread(driver.release.rolled_out, "daemonset", "node")
            await restaurant.served(GUESTS)
            restaurant.last_orders.set()
            await asyncio.gather(*guests)
            (successor,) = driver.release.pods("node")
            state_of_regular = set(await cluster.node_state()) - before
            warnings = await restaurant.warnings()
            await restaurant.leave("regular")
    finally:
        await cluster.replace_file("menu", menu)

    assert successor["metadata"]["uid"] != former["metadata"]["uid"]
    assert restaurant.lost == []
    assert warnings == []
    assert len(state_of_regular) == 2, "the CDI file and the record of the regular, and nothing of those who left"
    assert set(await cluster.node_state()) == before
