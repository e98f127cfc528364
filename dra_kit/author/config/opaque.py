"""``OpaqueConfig``: what a claim or class may put under ``opaque.parameters``, as a pydantic model."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema
from typing_extensions import TypeVar

from dra_kit.author.config.for_devices import ForDevices, Wanted, checked
from dra_kit.author.models.containers import with_lax_containers
from dra_kit.errors import ConfigurationError


class OpaqueConfig(BaseModel):
    """The author's model of opaque parameters; the class name is the kind.

    Strict: unknown keys, duplicate keys, keys in the wrong case and values of the wrong JSON type are refused, by
    the webhook and by the node alike, in the models inside it too. Field names are the keys as they stand in the
    manifest (pydantic's aliases and ``alias_generator`` work as usual).

    Class arguments:
        api_version: ``group/version`` that manifests write, for example ``kitchen.pizza.example/v1``; inherited.
        kind: the kind that manifests write, when it is not the class name (two versions of one kind).
        upgrades_from: older versions that are still accepted; each has an ``upgrade`` method.
        for_devices: attributes that a device must publish to be configured by it, ``{"type": "mig"}`` or
            ``{"type": ["gpu", "mig"]}``; inherited. An entry that is for all requests is passed over for other
            devices; one that names the request of such a device is refused when the claim is prepared, and by
            ``dra-kit lint`` where no device that the request can get is one of them. Without it: for all devices.

    Raises:
        ConfigurationError: when the class is declared, naming what cannot work.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    api_version_: ClassVar[str] = ""
    kind_: ClassVar[str] = ""
    upgrades_from_: ClassVar[tuple[type[OpaqueConfig], ...]] = ()
    for_devices_: ClassVar[ForDevices] = {}

    def __init_subclass__(
        cls,
        *,
        api_version: str | None = None,
        kind: str | None = None,
        upgrades_from: Sequence[type[OpaqueConfig]] = (),
        for_devices: Wanted | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if "[" in cls.__name__:  # pydantic's class for a generic model with its arguments: the same config
            return
        if api_version is not None:
            group, slash, version = api_version.partition("/")
            if not (group and slash and version) or "/" in version:
                raise ConfigurationError(
                    f"config {cls.__name__}: api_version {api_version!r} is not of the form group/version; "
                    "write for example 'kitchen.pizza.example/v1'"
                )
            cls.api_version_ = api_version
        elif (kind is not None or upgrades_from) and not cls.api_version_:
            raise ConfigurationError(f"config {cls.__name__}: kind= and upgrades_from= need api_version= beside them")
        cls.kind_ = kind or cls.__name__
        cls.upgrades_from_ = tuple(upgrades_from)
        if for_devices is not None:
            cls.for_devices_ = checked(cls.__name__, for_devices)
        for older in cls.upgrades_from_:
            if older.upgrade is OpaqueConfig.upgrade or inspect.iscoroutinefunction(older.upgrade):
                raise ConfigurationError(
                    f"config {cls.__name__}: {older.__name__} in upgrades_from has no plain upgrade() method; "
                    f"write 'def upgrade(self)' that returns a {cls.__name__}"
                )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return with_lax_containers(source, handler)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse fields that a manifest cannot give."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if (field.alias or name) in {"apiVersion", "kind"}:
                raise ConfigurationError(
                    f"config {cls.__name__}: field {name} would stand in the manifest as {field.alias or name!r}, "
                    "which says which config it is; give the field another name"
                )

    def upgrade(self) -> OpaqueConfig:
        """Return this config as an object of the next version; only old versions have it. Plain ``def``: it is pure."""
        raise ConfigurationError(f"config {type(self).__name__} is the newest version and has no upgrade")

    def refusal_of(self, config: Self) -> str:
        """Return why a claim's config may not replace this one, which its DeviceClass has; empty when it may.

        By default a claim's config replaces its class's, as the API has it. A driver whose administrators can bind
        claims overrides this, for example with a field ``enforced``. Called for devices without admin access, with the
        strongest config of this class that the DeviceClass has; plain ``def``, and pure: ``dra-kit lint`` asks it too.

        Args:
            config: of the claim, of the same class as this one.
        """
        del config
        return ""


class NoConfig(OpaqueConfig):
    """The config of a ``Preparer`` without type argument: parameters are refused."""


ConfigT_co = TypeVar("ConfigT_co", bound=OpaqueConfig, default=NoConfig, covariant=True)


@dataclass(frozen=True, slots=True)
class ConfigEntry(Generic[ConfigT_co]):
    """One entry of a claim's allocation that configures a device, and where it comes from.

    Devices that one entry is for may form a group, such as those that share a daemon; devices of different entries may
    not, however alike their configs are. ``str()`` names the entry as an error text wants it.

    Attributes:
        config: what the entry holds, decoded; devices of one entry have the very same object.
        source: who wrote it: the ``DeviceClass`` of the request, or the ``claim``, which is the stronger.
        index: its place in ``status.allocation.devices.config`` of the claim: the same for all devices that it is for.
        requests: those that it names, ``name`` or ``name/subrequest``, in an entry of the claim as they were written
            there; an entry of a class names the requests of that class. Empty: for all.
    """

    config: ConfigT_co
    source: Literal["class", "claim"]
    index: int
    requests: tuple[str, ...] = ()

    def __str__(self) -> str:
        owner = "the claim" if self.source == "claim" else "the DeviceClass"
        wanted = f"for {', '.join(self.requests)}" if self.requests else "for all requests"
        return f"{type(self.config).kind_} of {owner}, {wanted}"
