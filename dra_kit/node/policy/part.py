"""The policy as a part of the node process: what it watches, and what it decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.inventory import Inventory
from dra_kit.author.devices.policy import DevicePolicy
from dra_kit.author.devices.unserved import Serving
from dra_kit.kube.client import Client
from dra_kit.node.policy.filtering import PolicyFilter
from dra_kit.node.policy.watched import Watched
from dra_kit.publishing.inventory import CurrentInventory


class Policy:
    """See :class:`dra_kit.process.supervisor.Part`.

    Args:
        policy: the author's.
        client: of the node.
        node_name: of the node.
        current: knows the devices.
        publish: takes what is to be published.
        serving: what can be served of the devices.
    """

    name = "policy"

    def __init__(
        self,
        policy: DevicePolicy[Any, Any, Any],
        client: Client,
        node_name: str,
        *,
        current: CurrentInventory,
        publish: Callable[[Inventory[Device]], None],
        serving: Serving,
    ) -> None:
        self._filter = PolicyFilter(policy, current, publish, serving=serving)
        self.publish: Callable[[Inventory[Device]], None] = self._filter.publish
        self._watched: Watched | None = None
        if policy.watches is not None:
            self._watched = Watched(client, policy.watches, node_name, self._filter.watched_changed)

    async def run(self, ready: asyncio.Event) -> None:
        """Run until cancelled; ready when something was published."""
        async with asyncio.TaskGroup() as group:
            if self._watched is not None:
                group.create_task(self._watched.follow(), name="watched object")
            await self._filter.run(ready, self._watched)
