"""What the API knows of devices and pools and is not served where they are published: it could only mislead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dra_kit.author.generics import type_arguments
from dra_kit.errors import ConfigurationError

if TYPE_CHECKING:
    from dra_kit.author.devices.device import Device
    from dra_kit.author.devices.inventory import Pool
    from dra_kit.author.devices.provider import DeviceProvider, ProviderScope

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
class Serving:
    """What can be served of the devices of one provider.

    Attributes:
        scope: of the provider.
        binds: the driver has a binder, which makes binding conditions true.
    """

    scope: ProviderScope
    binds: bool = False

    def problem(self, item: Device | Pool[Any]) -> str:
        """Return why what a device or pool asks for is not served, with the remedy; empty when it is."""
        from dra_kit.author.devices.inventory import Pool

        if self.scope == "cluster" and isinstance(item, Pool) and not any(getattr(item, each) for each in _POOL_SCOPES):
            return _NO_NODES
        asked = (field for field in self._unserved() if getattr(item, field, None))
        return next((f"{field}: {self._why(field)}" for field in asked), "")

    def check_device_class(self, driver: str, provider: DeviceProvider[Any, Any, Any]) -> None:
        """Refuse a device class whose defaults ask all its devices for what is not served.

        Raises:
            ConfigurationError: naming class and field.
        """
        cls = device_class(provider)
        for field, known in cls.model_fields.items():
            if field in self._unserved() and known.get_default():
                raise ConfigurationError(f"driver {driver}: {cls.__name__}: {field}: {self._why(field)}")

    def _unserved(self) -> tuple[str, ...]:
        of_others = (*_POOL_SCOPES, *_DEVICE_SCOPES) if self.scope == "node" else ()
        return of_others if self.binds else (*of_others, *_CONDITIONS)

    @staticmethod
    def _why(field: str) -> str:
        return _UNBOUND if field in _CONDITIONS else _OF_OTHER_NODES


def device_class(provider: DeviceProvider[Any, Any, Any]) -> type[Device]:
    """Return the device class that a provider names: that of ``DeviceProvider[Gpu]``, else ``Device``."""
    from dra_kit.author.devices.device import Device
    from dra_kit.author.devices.provider import DeviceProvider

    cls = next(iter(type_arguments(type(provider), DeviceProvider)), None)
    return cls if isinstance(cls, type) and issubclass(cls, Device) else Device
