"""``Preparer``: what a container gets when a device is allocated to it, and how it is called and validated."""

from __future__ import annotations

import inspect
import types
from abc import ABC
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Generic, TypeAlias, Union, get_args, get_origin

from pydantic import ValidationError
from typing_extensions import NoDefault, TypeVar

from dra_kit.author.calls import call
from dra_kit.author.claim import AllocatedDevice, Claim, PreparedDevice
from dra_kit.author.config import NoConfig, OpaqueConfig
from dra_kit.author.context import Context, NodeComponent
from dra_kit.author.device import Device
from dra_kit.author.model import AuthorSettingsT, HardwareT, rule_text, type_arguments, type_name
from dra_kit.author.prepared import Prepared
from dra_kit.errors import ConfigurationError, PermanentError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.text import counted

ConfigT = TypeVar("ConfigT", bound=OpaqueConfig, default=NoConfig)
AdvertisedT_contra = TypeVar("AdvertisedT_contra", bound=Device, default=Device, contravariant=True)
PreparedResult: TypeAlias = Prepared | Awaitable[Prepared]
PreparedResults: TypeAlias = Sequence[Prepared] | Awaitable[Sequence[Prepared]]


class Preparer(
    NodeComponent[HardwareT, AuthorSettingsT], ABC, Generic[ConfigT, AdvertisedT_contra, HardwareT, AuthorSettingsT]
):
    """Turns an allocated device into what a container gets.

    ``Preparer[PizzaConfig]`` accepts opaque config of that kind, ``Preparer[A | B]`` of several; without an argument
    config is rejected. ``Preparer[GpuConfig, Gpu]`` gives ``device.advertised`` the author's device class.
    ``Preparer[GpuConfig, Gpu, Nvml, Settings]`` also gives ``self.hardware`` and ``self.context.settings`` their types.

    Every method may be ``def`` or ``async def``; ``def`` methods run in threads and may block. Override ``prepare``,
    or ``prepare_claim`` if all devices of a claim must be prepared together.
    """

    def prepare(self, claim: Claim, device: AllocatedDevice[ConfigT, AdvertisedT_contra]) -> PreparedResult:
        """Return what a container gets with this device.

        Except for ``device.ensure(…)`` it must be free of side effects; it may be called again at any time. Raise a
        :class:`dra_kit.PermanentError` or :class:`dra_kit.TransientError` with a text for the user; any other
        exception also becomes a readable error of the claim.
        """
        raise NotImplementedError(f"{type(self).__name__} must override prepare or prepare_claim")

    def prepare_claim(
        self, claim: Claim, devices: Sequence[AllocatedDevice[ConfigT, AdvertisedT_contra]]
    ) -> PreparedResults:
        """Return what a container gets with each of the devices, in order; by default ``prepare`` for each."""
        return prepare_each_device(self, claim, devices)

    def unprepare(self, claim: ClaimReference, devices: Sequence[PreparedDevice]) -> Awaitable[None] | None:
        """Undo what ``prepare`` did, after the effects of the claim were reverted; most drivers do not need it.

        A preparer that overrides it may do things in ``prepare`` that must be undone. The claim is recorded before
        ``prepare`` starts, so this method is also called if ``prepare`` fails for one of several devices, exceeds its
        deadline, or is killed with the process.

        Must succeed if there is nothing to do, for all devices or for some. It may exceed the kubelet's timeout and is
        not interrupted then.

        Args:
            claim: the claim; its object may no longer exist.
            devices: all its devices of this driver, in the order of preparation. ``state`` is None for a device whose
                ``prepare`` has not returned, and for all devices if the process was killed.
        """
        del claim, devices
        return None

    def default_config(self, device: AdvertisedT_contra) -> ConfigT | Awaitable[ConfigT]:
        """Return the config for a claim without one; by default the (first) config class with its defaults."""
        del device
        kinds = config_kinds(type(self))
        return (kinds[0] if kinds else NoConfig)()  # type: ignore[return-value]

    def admin_config(self, device: AdvertisedT_contra) -> ConfigT | Awaitable[ConfigT]:
        """Return the config for a claim with admin access and without config; by default that of ``default_config``.

        Override it if ``default_config`` rejects claims without config: an admin claim only inspects the device.
        """
        return self.default_config(device)

    def startup(self, context: Context[Any]) -> Awaitable[None] | None:
        """Initialize, once, before the first ``prepare``. May be ``def`` or ``async def``."""
        del context
        return None


class NoPreparer(Preparer):
    """The preparer of a driver that only has a controller; it is never called."""


@cache
def config_kinds(preparer: type) -> tuple[type[OpaqueConfig], ...]:
    """Return the config classes of a preparer class: none, one, or those of ``Preparer[A | B]``.

    A TypeVar that a generic preparer left open is replaced by its default.

    Raises:
        ConfigurationError: its argument is not an OpaqueConfig.
    """
    arguments = type_arguments(preparer, Preparer)
    if not arguments:
        return ()
    argument = _open(arguments[0])
    members = get_args(argument) if get_origin(argument) in {Union, types.UnionType} else (argument,)
    for member in members:
        if not (isinstance(member, type) and issubclass(member, OpaqueConfig)):
            raise ConfigurationError(
                f"preparer {preparer.__name__}: {member!r} is not a dra_kit.OpaqueConfig; "
                "write Preparer[<your OpaqueConfig subclass>]"
            )
    return tuple(member for member in members if member is not NoConfig)


async def prepare_each_device(
    preparer: Preparer[ConfigT, AdvertisedT_contra],
    claim: Claim,
    devices: Sequence[AllocatedDevice[ConfigT, AdvertisedT_contra]],
) -> Sequence[Prepared]:
    """Return the results of the default ``prepare_claim``."""
    return [await _prepare_one(preparer, claim, device) for device in devices]


async def run_prepare(
    preparer: Preparer[ConfigT, AdvertisedT_contra],
    claim: Claim,
    devices: Sequence[AllocatedDevice[ConfigT, AdvertisedT_contra]],
    returned: list[Prepared],
    about: Callable[[Sequence[str]], AbstractContextManager[object]],
) -> Sequence[Prepared]:
    """Return what the author's code returns for a claim; skip defaults that would start a thread for nothing.

    ``returned`` receives the results one by one, even if ``prepare`` fails for a later device. ``about`` makes a
    context manager around each call, from the names of the devices concerned.

    Raises:
        PermanentError: it returned something other than a ``Prepared`` for each device.
    """
    if type(preparer).prepare_claim is not Preparer.prepare_claim:
        with about([device.name for device in devices]):
            made = await call(preparer.prepare_claim, claim, devices)
        return check_all_prepared(preparer.prepare_claim, len(devices), made)
    for device in devices:
        with about([device.name]):
            returned.append(await _prepare_one(preparer, claim, device))
    return returned


async def _prepare_one(
    preparer: Preparer[ConfigT, AdvertisedT_contra], claim: Claim, device: AllocatedDevice[ConfigT, AdvertisedT_contra]
) -> Prepared:
    return check_prepared(preparer.prepare, device.name, await call(preparer.prepare, claim, device))


def default_config_method(
    preparer: Preparer[ConfigT, AdvertisedT_contra], *, admin_access: bool = False
) -> Callable[[AdvertisedT_contra], ConfigT | Awaitable[ConfigT]]:
    """Return the method that supplies the config for a claim without one."""
    own = admin_access and type(preparer).admin_config is not Preparer.admin_config
    return preparer.admin_config if own else preparer.default_config


async def resolve_default_config(
    preparer: Preparer[ConfigT, AdvertisedT_contra], device: AdvertisedT_contra, *, admin_access: bool = False
) -> ConfigT:
    """Return the config for a claim without one, from the author's ``default_config`` or ``admin_config``.

    Raises:
        PermanentError: the method returned something other than a config of the preparer's kinds.
    """
    default = default_config_method(preparer, admin_access=admin_access)
    plain = getattr(default, "__func__", None) is Preparer.default_config  # needs no thread
    config: ConfigT = default(device) if plain else await call(default, device)  # type: ignore[assignment]
    kinds = config_kinds(type(preparer)) or (NoConfig,)
    if not isinstance(config, kinds):
        raise PermanentError(
            f"{type(preparer).__name__}.{default.__name__} returned {type_name(config)}; return a "
            f"{' or '.join(kind.__name__ for kind in kinds)}",
            code="invalid-default-config",
        )
    return config


def check_preparer(preparer: Preparer[Any, Any]) -> None:
    """Reject an invalid preparer when the driver is constructed.

    Raises:
        ConfigurationError: neither ``prepare`` nor ``prepare_claim`` is defined, or claims without config cannot get
            a valid one.
    """
    cls = type(preparer)
    if cls.prepare is Preparer.prepare and cls.prepare_claim is Preparer.prepare_claim:
        raise ConfigurationError(
            f"preparer {cls.__name__} prepares nothing; write 'async def prepare(self, claim, device)'"
        )
    if cls.default_config is not Preparer.default_config:
        return
    for kind in config_kinds(cls)[:1]:
        required = [name for name, field in kind.model_fields.items() if field.is_required()]
        if required:
            raise ConfigurationError(
                f"config {kind.__name__}: {', '.join(required)} has no default, so a claim without config could not be "
                f"prepared; give a default, or override {cls.__name__}.default_config(device)"
            )
        _check_defaults(kind)


def _check_defaults(kind: type[OpaqueConfig]) -> None:
    try:
        config = kind()
        kind.model_validate(dict(config), strict=True, by_name=True)
    except ValidationError as error:
        text = "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {rule_text(detail['msg'])}" for detail in error.errors()
        )
        raise ConfigurationError(f"config {kind.__name__}: its defaults break its own rules: {text}") from None


def check_prepared(prepare: Callable[..., object], device: str, returned: object) -> Prepared:
    """Return what ``prepare`` returned for one device.

    Raises:
        PermanentError: it is not a ``Prepared`` (code ``invalid-prepared``).
    """
    if isinstance(returned, Prepared):
        return returned
    remedy = "write 'return dra_kit.Prepared(…)'"
    if returned is None:
        remedy += ", without anything in it for a container that needs nothing"
    raise _wrong(prepare, f"{type_name(returned)} for device {device}", remedy)


def check_all_prepared(prepare_claim: Callable[..., object], devices: int, returned: object) -> Sequence[Prepared]:
    """Return what ``prepare_claim`` returned.

    Raises:
        PermanentError: it is not one ``Prepared`` for each device (code ``invalid-prepared``).
    """
    if isinstance(returned, Sequence) and len(returned) == devices:
        prepared = [item for item in returned if isinstance(item, Prepared)]
        if len(prepared) == devices:
            return prepared
    what = f"{_described(returned)} for {counted(devices, 'device')}"
    raise _wrong(prepare_claim, what, "return a list with one dra_kit.Prepared for each")


def _wrong(method: Callable[..., object], what: str, remedy: str) -> PermanentError:
    title = method.__qualname__.rpartition(">.")[2]
    code = getattr(inspect.unwrap(method), "__code__", None)  # a builtin or a mock has none
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return PermanentError(f"{title}{place} returned {what}; {remedy}", code="invalid-prepared")


def _described(returned: object) -> str:
    """Return types and count of an author's return value, for an Event: the values may be secrets."""
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
        return type_name(returned)
    kinds = ", ".join(dict.fromkeys(type_name(item) for item in returned))
    return f"{type_name(returned)} of {len(returned)}" + (f" ({kinds})" if kinds else "")


def _open(argument: Any) -> Any:
    """Return the value of a ``type X = A | B`` statement, or of a TypeVar with a default."""
    if isinstance(argument, TypeVar):
        default = getattr(argument, "__default__", NoDefault)
        return argument if default is NoDefault else default
    return getattr(argument, "__value__", argument)
