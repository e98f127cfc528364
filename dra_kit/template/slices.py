"""The slices that a driver would publish on a node."""

from __future__ import annotations

from typing import Any, Final

from dra_kit.author.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.inventory import Inventory
from dra_kit.client.server_version import ServerFeatures
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta, OwnerReference
from dra_kit.node.slices import desired_pool
from dra_kit.slices.planning import DesiredSlices, plan

_SUFFIX: Final = "tmpl0"  # as long as what the API server appends to generateName


def template_slices(
    driver: Driver[Any, Any], inventory: Inventory[Device], node: str, features: ServerFeatures
) -> list[v1.ResourceSlice]:
    """Return what the driver publishes of an inventory, by device; names lack the API server's suffix.

    Args:
        driver: whose slices they are.
        inventory: what its provider finds.
        node: the node's name.
        features: what the API server that they are for can do.

    Raises:
        ConfigurationError: the inventory cannot be published.
    """
    desired = DesiredSlices(driver=driver.name, pools=tuple(desired_pool(pool, node) for pool in inventory.pools))
    owner = OwnerReference(api_version="v1", kind="Node", name=node, uid="-")
    steps = plan(DesiredSlices(desired.driver, owner, desired.pools), [], features=features)
    # no Node is there that could own them
    return [
        v1.ResourceSlice(metadata=ObjectMeta(name=f"{item.metadata.generate_name}{_SUFFIX}"), spec=item.spec)
        for item in steps.creates
    ]
