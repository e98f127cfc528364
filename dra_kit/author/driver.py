"""``Driver``: the composition root that every role and the sandbox load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal

from pydantic import BaseModel
from typing_extensions import TypeVar

from dra_kit.author.config import NoConfig, OpaqueConfig
from dra_kit.author.decoding import ConfigDecoder
from dra_kit.author.device import Device
from dra_kit.author.effect import Effect
from dra_kit.author.generics import config_kinds
from dra_kit.author.preparer import Preparer, check_preparer
from dra_kit.author.provider import DeviceProvider
from dra_kit.errors import ConfigurationError
from dra_kit.resource.validation.formats import driver_name

ConfigT = TypeVar("ConfigT", bound=OpaqueConfig, default=NoConfig)
DeviceT = TypeVar("DeviceT", bound=Device, default=Device)

Concurrency = Literal["claim", "device", "driver"]


class Driver(Generic[ConfigT, DeviceT]):
    """A whole DRA driver.

    Args:
        name: the driver's name, a DNS subdomain of at most 63 bytes; DeviceClasses select it by ``device.driver``.
        provider: which devices exist on a node.
        preparer: what a container gets; takes the devices that the provider yields.
        effects: every Effect class that the preparer ensures; the node refuses to start over stored ones it does
            not know.
        settings: a pydantic model of the driver's own settings, filled from flags and the environment.
        concurrency: which prepares may overlap: those of different claims (the default), only those of different
            devices, or none in the whole driver.
        rescan_every: seconds after which ``discover`` is started again; None means never.
        invalid_devices: what becomes of a device that breaks a rule of the API after all: "refuse" the inventory
            and keep the last good one, or "drop" that device and publish the rest.

    Raises:
        ConfigurationError: naming what does not fit together.
    """

    def __init__(
        self,
        name: str,
        *,
        provider: DeviceProvider[DeviceT],
        preparer: Preparer[ConfigT, DeviceT],
        effects: Sequence[type[Effect[Any]]] = (),
        settings: type[BaseModel] | None = None,
        concurrency: Concurrency = "claim",
        rescan_every: float | None = None,
        invalid_devices: Literal["refuse", "drop"] = "refuse",
    ) -> None:
        problems = [str(error) for error in driver_name(name, "name")]
        if name != name.lower():
            problems.append("name: upper case is only warned about by the API server; use lower case")
        if problems:
            raise ConfigurationError(f"driver {name!r}: {'; '.join(problems)}")
        if not isinstance(provider, DeviceProvider):
            raise ConfigurationError(f"driver {name}: provider {provider!r} is no dra_kit.DeviceProvider instance")
        if not isinstance(preparer, Preparer):
            raise ConfigurationError(f"driver {name}: preparer {preparer!r} is no dra_kit.Preparer instance")
        check_preparer(preparer)
        self.name = name
        self.provider = provider
        self.preparer = preparer
        self.effects = _by_id(effects)
        self.settings = settings
        self.concurrency: Concurrency = concurrency
        self.rescan_every = rescan_every
        self.invalid_devices = invalid_devices
        self.configs: ConfigDecoder[ConfigT] = ConfigDecoder(config_kinds(type(preparer)))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"Driver({self.name!r})"


def _by_id(effects: Sequence[type[Effect[Any]]]) -> dict[str, type[Effect[Any]]]:
    known: dict[str, type[Effect[Any]]] = {}
    for effect in effects:
        if not effect.effect_id:
            raise ConfigurationError(
                f"effect {effect.__name__} has no id; write class {effect.__name__}"
                f'(dra_kit.Effect[<outcome>], id="<a name that will never change>")'
            )
        if known.setdefault(effect.effect_id, effect) is not effect:
            raise ConfigurationError(
                f"effects {known[effect.effect_id].__name__} and {effect.__name__} have one id {effect.effect_id!r}; "
                "ids are stored and must differ"
            )
        effect.outcome_adapter()
    return known
