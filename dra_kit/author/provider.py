"""``DeviceProvider``: finds the devices that exist, and what can be published about them."""

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
"""Where a provider runs and which devices it finds: those of one node, or those that belong to no node."""


class DeviceProvider(NodeComponent[HardwareT, AuthorSettingsT], ABC, Generic[DeviceT_co, HardwareT, AuthorSettingsT]):
    """Finds the devices on this node. ``DeviceProvider[Gpu]`` if you have your own device class.

    ``DeviceProvider[Gpu, Nvml, Settings]`` also gives ``self.hardware`` and ``self.context.settings`` their types.

    With ``class Warehouse(dra.DeviceProvider, scope="cluster")`` it finds devices that belong to no node, such as
    those on a network, and is passed to ``Driver(cluster_provider=…)``. It runs in the controller, has no hardware,
    and yields an :class:`Inventory` whose pools have names and define which nodes may use them. A node sees only the
    published part of such a device, so its class must not have its own fields.

    Raises:
        ConfigurationError: the scope is invalid.
    """

    provider_scope: ClassVar[ProviderScope] = "node"

    def __init_subclass__(cls, *, scope: ProviderScope | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if scope is None:
            return
        if scope not in get_args(ProviderScope):
            raise ConfigurationError(
                f'{cls.__name__}: scope={short_repr(scope)} is not valid; write scope="cluster", or "node"'
            )
        cls.provider_scope = scope

    if not TYPE_CHECKING:  # type checkers must see only the attributes of NodeComponent

        def __getattr__(self, name: str) -> Any:
            if name == "hardware" and self.provider_scope == "cluster":
                raise NotAvailableYet(
                    f'{type(self).__name__}.hardware is not there: a provider with scope="cluster" runs in the '
                    "controller, which has none; read what it needs from context.settings"
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

        For static hardware, yield once and return. For hot-plug hardware, wait for the next event and yield again; the
        framework computes the changes. It runs in its own thread, so it may block. A sequence of devices is
        one pool named after the node; yield an :class:`Inventory` if there are pools or counters.

        ``context.rescan()`` and ``Driver(rescan_every=…)`` restart it from the beginning. If it raises, the error is
        logged, the published devices stay, and it is restarted after a delay.
        """

    def startup(self, context: Context[Any]) -> Awaitable[None] | None:
        """Initialize, once, before ``discover``. May be ``def`` or ``async def``."""
        del context
        return None


class EmptyProvider(DeviceProvider):
    """The provider for nodes on which the driver has no devices."""

    def discover(self) -> Iterable[Inventory]:
        """Yield no inventory."""
        yield Inventory()


_OF_OTHER_NODES: Final = (
    "the node role publishes what belongs to its own node only; leave it out, or yield the pool from a provider with "
    'scope="cluster" (Driver(cluster_provider=…))'
)
_POOL_SCOPES: Final = ("node_selector", "all_nodes", "per_device_node_selection")
_CONDITIONS: Final = ("binding_conditions", "binding_failure_conditions")
_UNBOUND: Final = (
    "no controller sets these conditions, and the scheduler would wait; write Driver(…, binder=<your "
    "dra_kit.DeviceBinder>), binder=dra_kit.BoundElsewhere() if another controller sets them, or leave it out"
)
_NO_NODES: Final = "it has no nodes; write all_nodes=True, node_selector=… or per_device_node_selection=True"


@dataclass(frozen=True, slots=True)
class ProviderCapabilities:
    """The features that can be served for a provider of this scope; ``binds``: binding conditions are made true."""

    scope: ProviderScope
    binds: bool = False

    def problem(self, item: Device | Pool[Any]) -> str:
        """Return why a feature of a device or pool cannot be served, with the remedy; empty if it can."""
        if self.scope == "cluster" and isinstance(item, Pool) and not any(getattr(item, each) for each in _POOL_SCOPES):
            return _NO_NODES
        asked = (f"{field}: {why}" for field, why in self._unserved().items() if getattr(item, field, None))
        return next(asked, "")

    def check_device_class(self, driver: str, provider: DeviceProvider[Any, Any, Any]) -> None:
        """Reject a device class whose defaults request an unsupported feature for all its devices.

        Raises:
            ConfigurationError: naming class and field.
        """
        cls = provider_device_class(provider)
        for field, why in self._unserved().items():
            if field in cls.model_fields and cls.model_fields[field].get_default():
                raise ConfigurationError(f"driver {driver}: {cls.__name__}: {field}: {why}")

    def _unserved(self) -> dict[str, str]:
        """Return the fields that cannot be served, each with the reason and the remedy."""
        unserved: dict[str, str] = {}
        if self.scope == "node":
            unserved |= dict.fromkeys((*_POOL_SCOPES, "node_name"), _OF_OTHER_NODES)
        if not self.binds:
            unserved |= dict.fromkeys(_CONDITIONS, _UNBOUND)
        return unserved


def provider_device_class(provider: DeviceProvider[Any, Any, Any]) -> type[Device]:
    """Return the device class of a provider: that of ``DeviceProvider[Gpu]``, else ``Device``."""
    cls = next(iter(type_arguments(type(provider), DeviceProvider)), None)
    return cls if isinstance(cls, type) and issubclass(cls, Device) else Device
