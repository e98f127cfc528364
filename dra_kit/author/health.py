"""``HealthSource``: whether devices are healthy, and the consequences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeAlias

from pydantic import Field, model_validator
from typing_extensions import TypeVar

from dra_kit.author.context import NodeComponent
from dra_kit.author.device import Device
from dra_kit.author.model import AUTHOR_RELEASE, AuthorModel, AuthorSettingsT, HardwareT, invalid_device, short_repr
from dra_kit.errors import ConfigurationError, DraKitError, InvalidDevice
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.validation.devices import validate_device_fields

DeviceT_contra = TypeVar("DeviceT_contra", bound=Device, default=Device, contravariant=True)
TaintEffect: TypeAlias = Literal["None", "NoSchedule", "NoExecute"]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Healthy:
    """A device has recovered, or is still healthy.

    Attributes:
        device: one of :attr:`HealthSource.devices`.
        reason: healthy in this respect only; empty: in every respect.
        pool: the device's pool; needed only where several pools have a device of that name.
    """

    device: Device
    reason: str = ""
    pool: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """Something is wrong with a device; :attr:`HealthSource.policy` defines the consequences.

    Attributes:
        device: one of :attr:`HealthSource.devices`.
        reason: a key of the policy.
        message: for people, in ``kubectl describe pod``; the kubelet truncates it at 1024 characters.
        value: of the taint, if it is only known now; by default the value of the rule.
        pool: the device's pool; needed only where several pools have a device of that name.

    Raises:
        InvalidDevice: the value is not a valid taint value.
    """

    device: Device
    reason: str
    message: str = ""
    value: str | None = field(default=None, kw_only=True)
    pool: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.value:
            _check_taint(f"Unhealthy({self.device.name!r}, {self.reason!r})", "key", self.value)


@dataclass(frozen=True, slots=True)
class HealthUnknown:
    """The health of a device is unknown. Known problems of the device remain.

    Attributes:
        device: one of :attr:`HealthSource.devices`.
        reason: in this respect only; empty: in every respect.
        message: for people.
        pool: the device's pool; needed only where several pools have a device of that name.
    """

    device: Device
    reason: str = ""
    message: str = ""
    pool: str | None = field(default=None, kw_only=True)


HealthReport: TypeAlias = Healthy | Unhealthy | HealthUnknown
"""What ``watch`` yields."""


class HealthRule(AuthorModel):
    """The consequences of a device being unhealthy for one reason.

    Args:
        taint: keeps away claims that do not tolerate it; NoExecute also evicts running pods; "None" only informs.
        key: of the taint; by default ``<driver>/<reason>``.
        value: of the taint.
        withdraw: the device is not published while it is unhealthy; claims that have it keep it.
        report: the kubelet gets the state and shows it in the pod's status.
        sticky: the state lasts until :meth:`HealthSource.recovered` returns True, regardless of later reports.
        unhealthy_after: seconds that the problem must last before it has consequences.
        healthy_after: seconds that the device must be healthy before the consequences are removed.

    Raises:
        ConfigurationError: naming the argument and its rule.
    """

    error_class_: ClassVar[type[DraKitError]] = ConfigurationError

    taint: TaintEffect | None = None
    key: str | None = None
    value: str = ""
    withdraw: bool = False
    report: bool = True
    sticky: bool = False
    unhealthy_after: Seconds = 0.0
    healthy_after: Seconds = 0.0

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.taint is None and (self.key or self.value):
            raise ConfigurationError(
                "HealthRule: key and value are those of a taint; give taint= too, or leave them out"
            )
        if self.taint is not None:
            try:
                _check_taint("HealthRule", self.key or "key", self.value)
            except InvalidDevice as error:
                raise ConfigurationError(str(error)) from None
        return self

    def taint_key(self, driver: str, reason: str) -> str:
        """Return the key of the rule's taint."""
        return self.key or f"{driver}/{reason}"


class HealthSource(NodeComponent[HardwareT, AuthorSettingsT], ABC, Generic[DeviceT_contra, HardwareT, AuthorSettingsT]):
    """Reports the health of the devices; ``HealthSource[Gpu]`` if you have your own device class.

    According to :attr:`policy`, its reports determine the status of pods that the kubelet shows (KEP-4680), taints
    (KEP-5055), and which devices are withdrawn.

    Attributes:
        policy: the consequences of each reason. A reason that is missing is only reported to the kubelet and logged.
        stale_after: seconds without a report about a device after which it is reported as unknown, not healthy;
            None: silence means that nothing has changed.
        devices: what ``discover`` yielded last; the framework updates it.
    """

    policy: ClassVar[Mapping[str, HealthRule]] = {}
    stale_after: ClassVar[float | None] = None
    devices: Sequence[DeviceT_contra] = ()

    @abstractmethod
    def watch(self) -> AsyncIterable[HealthReport] | Iterable[HealthReport]:
        """Yield a report whenever there is news; write it as an ``async def`` or ``def`` generator.

        It is started when the first devices are known, and runs in its own thread, so it may block. Begin with a
        report for each device: devices without a report are unknown. A report without news costs almost nothing. If it
        raises, the error is logged, the last reported states remain, and it is restarted after a delay.
        """

    def recovered(self, device: DeviceT_contra, reason: str, /) -> bool | Awaitable[bool]:
        """Return whether the state held by a sticky rule is over; called periodically and after a healthy report.

        May be ``def`` or ``async def``. An exception means False.
        """
        raise NotImplementedError(f"{type(self).__name__} must override recovered: its policy has a sticky rule")


def check_health(driver: str, source: HealthSource[Any, Any, Any]) -> None:
    """Reject an invalid source when the driver is constructed.

    Raises:
        ConfigurationError: its policy is invalid, or has a taint that the API would reject or that would never go.
    """
    title = type(source).__name__
    for reason, rule in source.policy.items():
        if not isinstance(reason, str) or not reason or not isinstance(rule, HealthRule):
            raise ConfigurationError(
                f"{title}.policy: {short_repr(reason)}: {short_repr(rule)} is not a rule; "
                "write 'reason': dra_kit.HealthRule(…)"
            )
        if rule.taint is not None:
            try:
                _check_taint(f"{title}.policy[{reason!r}]", rule.taint_key(driver, reason), rule.value)
            except InvalidDevice as error:
                raise ConfigurationError(f"{error}; give the rule its own key") from None
        if rule.sticky and type(source).recovered is HealthSource.recovered:
            raise ConfigurationError(
                f"{title}.policy[{reason!r}] is sticky and would never end; write 'def recovered(self, device, reason)'"
            )
    if source.stale_after is not None and not source.stale_after > 0:
        raise ConfigurationError(f"{title}.stale_after {source.stale_after!r} is not a positive number of seconds")


def _check_taint(what: str, key: str, value: str) -> None:
    taint = v1.DeviceTaint(key=key, value=value, effect="NoSchedule")
    errors = validate_device_fields(v1.Device(name="device", taints=(taint,)), "", AUTHOR_RELEASE)
    if errors:
        raise invalid_device(what, errors)
