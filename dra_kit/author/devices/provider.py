"""``DeviceProvider``: which devices exist here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Iterable, Sequence
from typing import Any, Generic

from dra_kit.author.context import Context
from dra_kit.author.devices.inventory import DeviceT_co, Inventory
from dra_kit.author.node_bound import NodeBound
from dra_kit.author.type_parameters import AuthorSettingsT, HardwareT


class DeviceProvider(NodeBound[HardwareT, AuthorSettingsT], ABC, Generic[DeviceT_co, HardwareT, AuthorSettingsT]):
    """Tells which devices exist on this node. ``DeviceProvider[Gpu]`` when you have a device class of your own.

    ``DeviceProvider[Gpu, Nvml, Settings]`` also gives ``self.hardware`` and ``self.context.settings`` their types.
    """

    @abstractmethod
    def discover(
        self,
    ) -> (
        AsyncIterable[Sequence[DeviceT_co] | Inventory[DeviceT_co]]
        | Iterable[Sequence[DeviceT_co] | Inventory[DeviceT_co]]
    ):
        """Yield *complete* inventories; write it as an ``async def`` or ``def`` generator.

        Static hardware yields once and returns. Hot-plug hardware waits for its next event and yields again; the
        framework finds out what changed. It runs in a thread of its own, so it may block. A sequence of devices is
        one pool named after the node; yield an :class:`Inventory` when there are pools, counters or node scopes.

        ``context.rescan()`` and ``Driver(rescan_every=…)`` start it again from the beginning. When it raises, the
        error is logged, what was published stays, and it is started again after a while.
        """

    def startup(self, context: Context[Any]) -> Awaitable[None] | None:
        """Called once before ``discover``: keep ``context`` if you need it. May be ``def`` or ``async def``."""
        del context
        return None
