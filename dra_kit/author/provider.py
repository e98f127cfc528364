"""``DeviceProvider``: which devices exist here, and what can be published of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeAlias, get_args

from dra_kit.author.context import Context, NodeComponent, NotAvailableYet
from dra_kit.author.device import Device
from dra_kit.author.inventory import DeviceT_co, Inventory, Pool
from dra_kit.author.model import AuthorSettingsT, HardwareT, short_repr, type_arguments
from dra_kit.errors import ConfigurationError

ProviderScope: TypeAlias = Literal["node", "cluster"]
"""Where a provider is run, and whose devices it finds: those of one node, or those of no node."""


class DeviceProvider(NodeComponent[HardwareT, AuthorSettingsT], ABC, Generic[DeviceT_co, HardwareT, AuthorSettingsT]):
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
            raise ConfigurationError(
                f'{cls.__name__}: scope={short_repr(scope)} is none; write scope="cluster", or "node"'
            )
        cls.provider_scope = scope

    if not TYPE_CHECKING:  # type checkers are to know what NodeBound has, and no other attribute

        def __getattr__(self, name: str) -> Any:
            if name == "hardware" and self.provider_scope == "cluster":
                raise NotAvailableYet(
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


class EmptyProvider(DeviceProvider):
    """Of a node where the driver has no devices of its own."""

    def discover(self) -> Iterable[Inventory]:
        """Yield no inventory."""
        yield Inventory()


_OF_OTHER_NODES: Final = (
    "the node role publishes what belongs to its own node only; leave it out, or yield the pool from a provider with "
    'scope="cluster" (Driver(cluster_provider=…))'
)
_POOL_SCOPES: Final = ("node_selector", "all_nodes", "per_device_node_selection")
_DEVICE_SCOPES: Final = ("node_name", "node_selector", "all_nodes")
_CONDITIONS: Final = ("binding_conditions", "binding_failure_conditions")
_UNBOUND: Final = (
    "nobody makes these conditions true, and the scheduler would wait; write Driver(…, binder=<your "
    "dra_kit.DeviceBinder>), or leave it out"
)
_NO_NODES: Final = (
    "it says nothing of nodes, and belongs to none; write all_nodes=True, node_selector=… or "
    "per_device_node_selection=True"
)


@dataclass(frozen=True, slots=True)
class ProviderCapabilities:
    """What can be served of the devices of one provider.

    Attributes:
        scope: of the provider.
        binds: the driver has a binder, which makes binding conditions true.
    """

    scope: ProviderScope
    binds: bool = False

    def problem(self, item: Device | Pool[Any]) -> str:
        """Return why what a device or pool asks for is not served, with the remedy; empty when it is."""
        if self.scope == "cluster" and isinstance(item, Pool) and not any(getattr(item, each) for each in _POOL_SCOPES):
            return _NO_NODES
        asked = (field for field in self._unserved() if getattr(item, field, None))
        return next((f"{field}: {self._why(field)}" for field in asked), "")

    def check_device_class(self, driver: str, provider: DeviceProvider[Any, Any, Any]) -> None:
        """Refuse a device class whose defaults ask all its devices for what is not served.

        Raises:
            ConfigurationError: naming class and field.
        """
        cls = provider_device_class(provider)
        for field, known in cls.model_fields.items():
            if field in self._unserved() and known.get_default():
                raise ConfigurationError(f"driver {driver}: {cls.__name__}: {field}: {self._why(field)}")

    def _unserved(self) -> tuple[str, ...]:
        of_others = (*_POOL_SCOPES, *_DEVICE_SCOPES) if self.scope == "node" else ()
        return of_others if self.binds else (*of_others, *_CONDITIONS)

    @staticmethod
    def _why(field: str) -> str:
        return _UNBOUND if field in _CONDITIONS else _OF_OTHER_NODES


def provider_device_class(provider: DeviceProvider[Any, Any, Any]) -> type[Device]:
    """Return the device class that a provider names: that of ``DeviceProvider[Gpu]``, else ``Device``."""
    cls = next(iter(type_arguments(type(provider), DeviceProvider)), None)
    return cls if isinstance(cls, type) and issubclass(cls, Device) else Device
