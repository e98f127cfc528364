"""What the API knows of devices and pools and no role serves yet: published, it could only mislead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dra_kit.author.generics import type_arguments
from dra_kit.errors import ConfigurationError

if TYPE_CHECKING:
    from dra_kit.author.devices.device import Device
    from dra_kit.author.devices.inventory import Pool
    from dra_kit.author.devices.provider import DeviceProvider

_OF_OTHER_NODES: Final = "the node role publishes what belongs to its own node only"
_UNSERVED: Final = {
    "node_name": _OF_OTHER_NODES,
    "node_selector": _OF_OTHER_NODES,
    "all_nodes": _OF_OTHER_NODES,
    "per_device_node_selection": _OF_OTHER_NODES,
    "binding_conditions": "no role sets conditions of claims yet, and the scheduler would wait",
    "binding_failure_conditions": "no role sets conditions of claims yet",
}


def unserved(item: Device | Pool[Any]) -> str:
    """Why what a device or pool asks for is not served, empty when it is."""
    return next((_text(field) for field in _UNSERVED if getattr(item, field, None)), "")


def check_device_class(driver: str, provider: DeviceProvider[Any, Any, Any]) -> None:
    """Refuse a device class whose defaults ask all its devices for what is not served.

    Raises:
        ConfigurationError: naming class and field.
    """
    from dra_kit.author.devices.device import Device
    from dra_kit.author.devices.provider import DeviceProvider

    cls = next(iter(type_arguments(type(provider), DeviceProvider)), None)
    if not (isinstance(cls, type) and issubclass(cls, Device)):
        return
    for field, known in cls.model_fields.items():
        if field in _UNSERVED and known.get_default():
            raise ConfigurationError(f"driver {driver}: {cls.__name__}: {_text(field)}")


def _text(field: str) -> str:
    return f"{field}: {_UNSERVED[field]}; leave it out"
