"""The example driver kitchen.pizza.example in a real cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.cluster.find import REPOSITORY
from tests.cluster.node_driver import NodeDriver, node_driver
from tests.cluster.plane import Plane

PROJECT = REPOSITORY / "examples" / "pizza-driver"
STORIES = PROJECT / "stories"
DRIVER = "kitchen.pizza.example"


def pizza_driver(plane: Plane) -> AbstractContextManager[NodeDriver]:
    """The kitchen on the plane's node, with its DeviceClasses, menu and oven."""
    return node_driver(
        plane,
        PROJECT,
        DRIVER,
        classes=(PROJECT / "deviceclasses.yaml").read_text(encoding="utf-8"),
        files={"menu": PROJECT / "menu.yaml"},
        hardware=True,
    )
