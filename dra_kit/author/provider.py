"""``DeviceProvider``: which devices exist here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, get_args

from dra_kit.author.context import Context
from dra_kit.author.devices.inventory import DeviceT_co, Inventory
from dra_kit.author.models.model import shown
from dra_kit.author.node_bound import NodeBound, NotBound
from dra_kit.author.type_parameters import AuthorSettingsT, HardwareT
from dra_kit.errors import ConfigurationError

ProviderScope: TypeAlias = Literal["node", "cluster"]
"""Where a provider is run, and whose devices it finds: those of one node, or those of no node."""


class DeviceProvider(NodeBound[HardwareT, AuthorSettingsT], ABC, Generic[DeviceT_co, HardwareT, AuthorSettingsT]):
    """Tells which devices exist on this node. ``DeviceProvider[Gpu]`` when you have a device class of your own.

    ``DeviceProvider[Gpu, Nvml, Settings]`` also gives ``self.hardware`` and ``self.context.settings`` their types.

    With ``class Warehouse(dra.DeviceProvider, scope="cluster")`` it tells of devices that belong to no node, such as
    those on a network, and is given to ``Driver(cluster_provider=…)``. It runs in the controller, has no hardware, and
    yields an :class:`Inventory` whose pools have names and say which nodes may use them. A node sees of such a device
    what is published, so that its class has no fields of its own.

    Raises:
        ConfigurationError: the scope is none.
    """

    provider_scope: ClassVar[ProviderScope] = "node"

    def __init_subclass__(cls, *, scope: ProviderScope | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if scope is None:
            return
        if scope not in get_args(ProviderScope):
            raise ConfigurationError(f'{cls.__name__}: scope={shown(scope)} is none; write scope="cluster", or "node"')
        cls.provider_scope = scope

    if not TYPE_CHECKING:  # type checkers are to know what NodeBound has, and no other attribute

        def __getattr__(self, name: str) -> Any:
            if name == "hardware" and self.provider_scope == "cluster":
                raise NotBound(
                    f'{type(self).__name__}.hardware is not there: a provider with scope="cluster" runs in the '
                    "controller, which has none; reach what it needs by context.settings"
                )
            return super().__getattr__(name)

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
        one pool named after the node; yield an :class:`Inventory` when there are pools or counters.

        ``context.rescan()`` and ``Driver(rescan_every=…)`` start it again from the beginning. When it raises, the
        error is logged, what was published stays, and it is started again after a while.
        """

    def startup(self, context: Context[Any]) -> Awaitable[None] | None:
        """Start, once, before ``discover``: keep ``context`` if you need it. May be ``def`` or ``async def``."""
        del context
        return None


class NoDevices(DeviceProvider):
    """Of a node where the driver has no devices of its own."""

    def discover(self) -> Iterable[Inventory]:
        """Yield no inventory."""
        yield Inventory()
