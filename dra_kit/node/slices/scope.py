"""The slices of this node: what selects them, who owns them, and which process of the driver publishes them."""

from __future__ import annotations

import logging
from typing import Final

from typing_extensions import override

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.inventory import Pool
from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.kube.versions import ServerFeatures
from dra_kit.kubernetes.resource.api_model import OwnerReference
from dra_kit.node.locks.processes import Processes
from dra_kit.node.server_facts import ServerFacts
from dra_kit.node.steps import Step, reached
from dra_kit.publishing.scope import SliceScope, Write
from dra_kit.slices.planning import DesiredPool

logger: logging.Logger = logging.getLogger(__name__)

_STEPS: Final = {
    Write.DELETED: Step.SLICE_DELETED,
    Write.UPDATED: Step.SLICE_UPDATED,
    Write.CREATED: Step.SLICE_CREATED,
}


def field_selector(driver: str, node_name: str) -> str:
    """Return what selects this driver's slices of this node on the server."""
    return f"spec.driver={driver},spec.nodeName={node_name}"


def desired_pool(pool: Pool[Device], node_name: str) -> DesiredPool:
    """Return an author's pool of this node as it is to be published."""
    return DesiredPool(
        name=pool.name or node_name,
        node_name=node_name,
        devices=tuple(device.to_v1() for device in pool.devices),
        counter_sets=tuple(pool.counter_sets_v1()),
        partition_type_attribute=pool.partition_type_attribute,
        skip_node_operations=tuple(pool.skip_node_operations),
    )


class NodeScope(SliceScope):
    """Of one driver on this node.

    Args:
        driver: the driver's name.
        node_name: the node that the slices belong to.
        facts: what the API server can do, and the Node as the slices' owner.
        processes: those of the driver on this node: what began earlier leaves slices to what began later, so that two
            releases with different inventories do not undo each other's writes. None when there is only this one.
    """

    def __init__(self, driver: str, node_name: str, facts: ServerFacts, *, processes: Processes | None = None) -> None:
        self._driver = driver
        self._node_name = node_name
        self._facts = facts
        self._processes = processes
        self._succeeded = False

    @property
    @override
    def driver(self) -> str:
        return self._driver

    @property
    @override
    def field_selector(self) -> str:
        return field_selector(self._driver, self._node_name)

    @override
    async def features(self) -> ServerFeatures:
        return await self._facts.features()

    @override
    async def owner(self) -> OwnerReference | None:
        return await self._facts.owner()

    @override
    def forget(self) -> None:
        self._facts.forget()

    @override
    def desired(self, pool: Pool[Device]) -> DesiredPool:
        return desired_pool(pool, self._node_name)

    @override
    async def publishable(
        self, pools: tuple[DesiredPool, ...]
    ) -> tuple[tuple[DesiredPool, ...], ConfigurationError | None]:
        return pools, None  # whether pools of no node have such names, the controller asks once, not every node

    @override
    def left_to_another(self) -> bool:
        if self._processes is None:
            return False
        try:
            self._processes.publishes()
            succeeded = self._processes.is_succeeded()
        except StoreError as error:  # a disk that does not work now is no reason to publish nothing
            logger.warning("other processes not looked for", extra={"error": str(error), "code": error.code})
            succeeded = False
        if succeeded != self._succeeded:
            text = "slices are left to a process that began later" if succeeded else "slices are taken over again"
            logger.info(text)
        self._succeeded = succeeded
        return succeeded

    @override
    def wrote(self, what: Write) -> None:
        reached(_STEPS[what])
