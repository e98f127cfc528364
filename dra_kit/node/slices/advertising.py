"""From what is found to what is published: with its health and by the author's policy, where there are any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dra_kit.author.driver import Driver
from dra_kit.kube.client import Client
from dra_kit.node.settings import NodeSettings
from dra_kit.publishing.inventory import CurrentInventory
from dra_kit.publishing.publisher import Publisher
from dra_kit.publishing.scope import Source

if TYPE_CHECKING:
    from dra_kit.author.devices.device import Device
    from dra_kit.author.devices.inventory import Inventory
    from dra_kit.node.health.monitor import Monitor
    from dra_kit.node.policy.part import Policy


class Advertising(NamedTuple):
    """The parts between inventory and publisher; what a driver does not have takes no memory."""

    health: Monitor | None = None
    policy: Policy | None = None


def advertise(
    driver: Driver[Any, Any],
    settings: NodeSettings,
    client: Client,
    *,
    source: Source,
    inventory: CurrentInventory,
    publisher: Publisher,
    changed: Callable[..., None],
) -> Advertising:
    """Notify the publisher of each inventory.

    Args:
        driver: with or without a health source and a policy.
        settings: of the node.
        client: of the node.
        source: of the inventory.
        inventory: what is found.
        publisher: of what is advertised.
        changed: notified of devices whose health changes.
    """
    publish: Callable[[Inventory[Device]], None] = publisher.publish
    policy: Policy | None = None
    if driver.policy is not None:
        from dra_kit.node.policy.part import Policy

        policy = Policy(
            driver.policy, client, settings.node_name, current=inventory, publish=publish, serving=source.serving
        )
        publish = policy.publish
    health: Monitor | None = None
    if driver.health is not None:
        from dra_kit.node.health.monitor import monitor_of

        health = monitor_of(
            driver.name,
            driver.health,
            state_dir=settings.state(driver.name),
            current=inventory,
            publish=publish,
            changed=changed,
        )
    inventory.listen(publish if health is None else health.inventory_changed)
    return Advertising(health, policy)
