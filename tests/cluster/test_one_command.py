"""One command installs the pizza driver, as its page says, and another one leaves nothing of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.deployed import Deployed, wait_until
from tests.cluster.installed import demo, helm, installed
from tests.cluster.pizza import PROJECT
from tests.cluster.plane import Plane, PlaneError
from tests.cluster.release import CLUSTER_SCOPED, Release


@pytest.mark.usefixtures("pizza_image")
def test_one_command_is_all_that_a_cluster_needs_and_another_leaves_nothing(node_plane: Plane) -> None:
    name, place = "kitchen.pizza.example", Release(node_plane, "pizza", "default", {})
    driver = Deployed(name, place, Path("/var/lib/pizza-kitchen"))
    command = "helm install pizza charts/dra-driver -f examples/pizza-driver/values.yaml"
    before = set(place.contents())
    with installed(node_plane, command, name):
        made = [item for item in CLUSTER_SCOPED if objects(driver, item)]
        with demo(node_plane, PROJECT) as output:
            assert re.search(r"^\w+_OVEN_TEMPERATURE=220$", output, re.MULTILINE)
            with pytest.raises(PlaneError, match="uninstall"):
                helm(node_plane, "helm uninstall pizza")
        helm(node_plane, "helm uninstall pizza")

        wait_until("the kubelet withdraws the slices", lambda: not driver.slices())
        assert made == list(CLUSTER_SCOPED)
        assert [item for item in CLUSTER_SCOPED if objects(driver, item)] == []
        classes = {item["metadata"]["name"] for item in node_plane.get("deviceclasses")["items"]}
        assert not classes & {"pizza", "pizza-vegetarian"}
        wait_until("the namespace is unchanged", lambda: set(place.contents()) <= before)
        assert driver.sockets() == []
        assert driver.cdi_files() == []


def objects(driver: Deployed, resource: str) -> list[str]:
    """Names of the release's objects of a kind in the whole cluster."""
    selector = f"app.kubernetes.io/instance={driver.release.name}"
    return driver.release.plane.kubectl("get", resource, "--selector", selector, "--output", "name").stdout.split()
