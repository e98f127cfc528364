"""The health of all devices: takes reports, and computes the consequences by the author's policy, without I/O."""

from __future__ import annotations

import datetime as dt
import math
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.author.device import Device, DeviceTaint
from dra_kit.author.health import HealthReport, HealthRule, HealthSource, HealthUnknown, Healthy, Unhealthy
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.author.model import short_repr
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.validation.devices import LIMITS
from dra_kit.slices.inventory import device_identity, identity_differs
from dra_kit.text import did_you_mean

_ABSENT_MAX: Final = 1024
"""Maximum number of missing devices whose health is stored in case they come back."""
Status: TypeAlias = Literal["Healthy", "Unhealthy", "Unknown"]


class HealthVerdict(Struct, frozen=True):
    """The consequences for a device.

    Attributes:
        reported: what the kubelet gets, with a text for people; None for nothing.
        taints: taints in addition to the author's own.
        withdrawn: whether the device is not published.
    """

    reported: tuple[Status, str] | None
    taints: tuple[DeviceTaint, ...]
    withdrawn: bool


class HealthProblem(Struct, frozen=True):
    """A problem of a device that is in effect.

    Attributes:
        reason: a key of the policy.
        message: for people.
        value: of the taint; None if the rule sets it.
        since: when it took effect, in whole seconds like in the API.
    """

    reason: str
    message: str
    value: str | None
    since: dt.datetime


Key: TypeAlias = tuple[str, str]
"""Pool and name of a device."""
Identity: TypeAlias = Mapping[str, str]
"""What identifies the same device, in short form, by key."""


class StoredHealth(Struct, frozen=True):
    """What is stored about a device for the next process: the problems in effect."""

    key: Key
    identity: Identity
    problems: tuple[HealthProblem, ...]


class DeviceConditions:
    """The conditions of one device, by the policy and ``stale_after`` of the author's health source."""

    def __init__(self, policy: Mapping[str, HealthRule], stale_after: float | None = None) -> None:
        self._policy = policy
        self._stale_after = stale_after
        self._reported_at: float | None = None  # when the source last reported the device
        self._unknown: str | None = None  # why the health is unknown
        self._stale = False
        self._conditions: dict[str, _Condition] = {}

    # -- reports

    def unhealthy(
        self, reason: str, message: str, value: str | None, now: HealthTime, *, injected: bool = False
    ) -> None:
        """Take a report of a problem; an injected one takes effect at once and stays until it is withdrawn."""
        if not injected:
            self._note_report(now)
        condition = self._condition(reason)
        if condition.injected and not injected:
            return
        condition.injected = injected
        condition.message, condition.value, condition.unknown = message, value, None
        if condition.problem is not None:
            condition.problem = HealthProblem(reason, message, value, condition.problem.since)
            condition.turned = None
        elif injected:
            condition.turned = -math.inf
        elif condition.turned is None:
            condition.turned = now.seconds
        self.settle(now)

    def healthy(self, reason: str, now: HealthTime) -> None:
        """Take a report that one problem, or every problem, is over."""
        self._note_report(now)
        for one in [reason] if reason else list(self._conditions):
            condition = self._condition(one)
            condition.unknown = None
            if not condition.injected and not (condition.rule.sticky and condition.problem is not None):
                _end_problem(condition, now)
        self.settle(now)

    def unknown(self, reason: str, message: str, now: HealthTime) -> None:
        """Take a report that one problem, or the whole health, is unknown; known problems stay in effect."""
        self._note_report(now)
        if reason:
            self._condition(reason).unknown = message
        else:
            self._unknown = message

    def withdraw(self, reason: str, now: HealthTime) -> None:
        """Withdraw an injected problem; from now on the reports of the source count again."""
        condition = self._condition(reason)
        condition.injected = False
        if not condition.rule.sticky:
            condition.turned = None if condition.problem is None else -math.inf
        self.settle(now)

    def answered(self, reason: str, now: HealthTime, *, recovered: bool) -> None:
        """Take the answer of the author's ``recovered``."""
        condition = self._condition(reason)
        if condition.problem is None or condition.injected:
            return
        if recovered:
            _end_problem(condition, now)
        else:
            condition.turned = None
        self.settle(now)

    def restore(self, problem: HealthProblem) -> None:
        """Restore a problem that was in effect when the previous process stored it."""
        if problem.reason in self._policy:
            condition = self._condition(problem.reason)
            condition.problem, condition.message, condition.value = problem, problem.message, problem.value

    # -- consequences

    def settle(self, now: HealthTime) -> None:
        """Let reports take effect that have lasted long enough."""
        for reason, condition in self._conditions.items():
            if condition.turned is None or now.seconds < condition.turned + _damping(condition):
                continue
            condition.turned = None
            if condition.problem is None:
                since = now.date.replace(microsecond=0)
                condition.problem = HealthProblem(reason, condition.message, condition.value, since)
            else:
                condition.problem = None
        stale = self._stale_at
        self._stale = stale is not None and now.seconds >= stale

    def due(self) -> float | None:
        """Return when :meth:`settle` has something to do; None for never, unless there are further reports."""
        times = [item.turned + _damping(item) for item in self._conditions.values() if item.turned is not None]
        if not self._stale and self._stale_at is not None:
            times.append(self._stale_at)
        return min(times, default=None)

    def problems(self) -> Mapping[str, HealthProblem]:
        """Return the problems in effect, by reason."""
        return {reason: item.problem for reason, item in self._conditions.items() if item.problem is not None}

    def to_ask(self) -> list[str]:
        """Return the reasons that only the author's ``recovered`` can end."""
        return [
            reason
            for reason, item in self._conditions.items()
            if item.rule.sticky and item.problem is not None and not item.injected
        ]

    def status(self) -> tuple[Status, str] | None:
        """Return what the kubelet should get, with a text for people; None if nothing was reported yet."""
        wrong = [item.problem for item in self._reported() if item.problem is not None]
        if wrong:
            texts = (f"{item.reason}: {item.message}" if item.message else item.reason for item in wrong)
            return "Unhealthy", "; ".join(texts)
        if self._reported_at is None:
            return None
        unknown = [self._unknown, *(item.unknown for item in self._reported())]
        if why := [text for text in unknown if text is not None]:
            return "Unknown", "; ".join(filter(None, why))
        if self._stale:
            return "Unknown", f"not reported for {self._stale_after:g} s"
        return "Healthy", ""

    def _reported(self) -> Iterator[_Condition]:
        return (item for item in self._conditions.values() if item.rule.report)

    def _note_report(self, now: HealthTime) -> None:
        """Note that the source has reported the device."""
        self._reported_at, self._stale, self._unknown = now.seconds, False, None

    @property
    def _stale_at(self) -> float | None:
        return None if self._reported_at is None or self._stale_after is None else self._reported_at + self._stale_after

    def _condition(self, reason: str) -> _Condition:
        known = self._conditions.get(reason)
        if known is None:
            known = self._conditions[reason] = _Condition(self._policy.get(reason, _DEFAULT_RULE))
        return known


class _Entry(Struct, frozen=True):
    identity: Identity
    conditions: DeviceConditions


class HealthLedger:
    """The health of all devices; the driver's name is part of the keys of taints."""

    def __init__(self, driver: str, source: HealthSource[Any, Any, Any]) -> None:
        self._driver = driver
        self._source = source
        self._policy = source.policy
        self._devices: dict[Key, Device] = {}
        self._by_name: dict[str, list[Key]] = {}
        self._entries: dict[Key, _Entry] = {}  # also of missing devices, with their problems

    def restore(self, known: Sequence[StoredHealth]) -> None:
        """Restore what the previous process stored."""
        for item in known:
            entry = self._entries[item.key] = _Entry(item.identity, self._new())
            for problem in item.problems:
                entry.conditions.restore(problem)

    def adopt(self, known: Sequence[StoredHealth]) -> None:
        """Take over what another process of the driver had found out; the source will report the rest again."""
        for item in known:
            entry = self._entries.get(item.key)
            if entry is None or identity_differs(item.identity, entry.identity):
                continue
            held = entry.conditions.problems()
            for problem in item.problems:
                rule = self._policy.get(problem.reason)
                if rule is not None and rule.sticky and problem.reason not in held:
                    entry.conditions.restore(problem)

    def inventory(self, devices: Mapping[Key, tuple[Device, Identity]]) -> None:
        """Take the complete list of devices that exist now."""
        self._devices = {key: device for key, (device, _) in devices.items()}
        self._by_name = {}
        for key in devices:
            self._by_name.setdefault(key[1], []).append(key)
        for key, (_, now) in devices.items():
            before = self._entries.pop(key, None)
            known = before is not None and not identity_differs(before.identity, now)
            self._entries[key] = _Entry(now, before.conditions if known and before is not None else self._new())
        gone = [key for key in self._entries if key not in devices]
        well = [key for key in gone if not self._entries[key].conditions.problems()]
        absent = [key for key in gone if self._entries[key].conditions.problems()]
        for key in (*well, *absent[: max(0, len(absent) - _ABSENT_MAX)]):
            del self._entries[key]

    def take(self, report: HealthReport, now: HealthTime) -> None:
        """Take a report of the source; a report about a device that was replaced meanwhile is ignored.

        Raises:
            ConfigurationError: it is not a valid report, or its device is unknown (code ``invalid-health-report``), or
                its reason has no rule (code ``unknown-health-reason``); in the last case the kubelet gets it anyway.
        """
        if not (
            isinstance(report, Healthy | Unhealthy | HealthUnknown)
            and isinstance(report.device, Device)
            and isinstance(report.reason, str)
            and isinstance(getattr(report, "message", ""), str)
        ):
            raise ConfigurationError(
                f"{self._title}.watch yielded {short_repr(report)}; yield dra_kit.Healthy(device), "
                "dra_kit.Unhealthy(device, reason) or dra_kit.HealthUnknown(device)",
                code="invalid-health-report",
            )
        key = self._key(report.device.name, report.pool)
        if key is None:
            return
        entry, present = self._entries[key], self._devices[key]
        if report.device != present and identity_differs(entry.identity, device_identity(report.device).hashes):
            return
        conditions = entry.conditions
        match report:
            case Healthy():
                conditions.healthy(report.reason, now)
            case Unhealthy():
                conditions.unhealthy(report.reason, report.message, report.value, now)
            case HealthUnknown():
                conditions.unknown(report.reason, report.message, now)
        if report.reason and report.reason not in self._policy:
            raise ConfigurationError(
                f"{self._title}.watch: reason {short_repr(report.reason)} is not in its policy"
                f"{did_you_mean(report.reason, self._policy) or ';'} the problem is reported to the kubelet only",
                code="unknown-health-reason",
            )

    def inject(
        self, device: str, pool: str | None, reason: str, problem: tuple[str, str | None] | None, now: HealthTime
    ) -> None:
        """Simulate a problem of a device, with message and value, or withdraw it.

        Raises:
            ConfigurationError: the device does not exist, or the reason has no rule.
        """
        key = self._key(device, pool)
        if key is None:
            names = ", ".join(name for _, name in self._devices) or "none"
            raise ConfigurationError(
                f"health of device {device}: driver {self._driver} has no such device; it has {names}"
            )
        if reason not in self._policy:
            raise ConfigurationError(
                f"health of device {device}: reason {short_repr(reason)} is not in the policy of {self._title}"
                f"{did_you_mean(reason, self._policy) or ';'} it has {', '.join(self._policy) or 'none'}"
            )
        conditions = self._entries[key].conditions
        if problem is None:
            conditions.withdraw(reason, now)
        else:
            conditions.unhealthy(reason, *problem, now, injected=True)

    def answered(self, key: Key, reason: str, now: HealthTime, *, recovered: bool) -> None:
        """Take the answer of ``recovered`` about a device."""
        if key in self._entries:
            self._entries[key].conditions.answered(reason, now, recovered=recovered)

    def settle(self, now: HealthTime) -> None:
        """Let reports take effect that have lasted long enough."""
        for entry in self._entries.values():
            entry.conditions.settle(now)

    def due(self) -> float | None:
        """Return when :meth:`settle` has something to do."""
        times = (entry.conditions.due() for entry in self._entries.values())
        return min((time for time in times if time is not None), default=None)

    def to_ask(self) -> list[tuple[Key, Device, str]]:
        """Return the existing devices, with the reasons that only ``recovered`` can end."""
        return [
            (key, device, reason)
            for key, device in self._devices.items()
            for reason in self._entries[key].conditions.to_ask()
        ]

    def problems(self) -> dict[Key, Mapping[str, HealthProblem]]:
        """Return the problems in effect, including those of missing devices."""
        found = ((key, entry.conditions.problems()) for key, entry in self._entries.items())
        return {key: problems for key, problems in found if problems}

    def to_store(self) -> list[StoredHealth]:
        """Return what to store for the next process."""
        return [
            StoredHealth(key, entry.identity, tuple(problems.values()))
            for key, entry in self._entries.items()
            if (problems := entry.conditions.problems())
        ]

    def verdicts(self) -> dict[Key, HealthVerdict]:
        """Return the consequences for each existing device."""
        return {key: self._verdict(self._entries[key].conditions) for key in self._devices}

    def _verdict(self, conditions: DeviceConditions) -> HealthVerdict:
        taints: dict[tuple[str, str], DeviceTaint] = {}
        withdrawn = False
        for reason, problem in conditions.problems().items():
            rule = self._policy.get(reason)
            if rule is None:
                continue
            withdrawn = withdrawn or rule.withdraw
            if rule.taint is not None:
                key = rule.taint_key(self._driver, reason)
                value = rule.value if problem.value is None else problem.value
                taint = DeviceTaint(key=key, value=value, effect=rule.taint, time_added=problem.since)
                taints.setdefault((key, rule.taint), taint)
        return HealthVerdict(conditions.status(), tuple(taints.values()), withdrawn)

    def _key(self, device: str, pool: str | None) -> Key | None:
        """Return the key of a device; None for a missing device.

        Raises:
            ConfigurationError: several pools have a device of that name.
        """
        found = [key for key in self._by_name.get(device, ()) if pool in {None, key[0]}]
        if len(found) > 1:
            raise ConfigurationError(
                f"health of device {device}: pools {', '.join(name for name, _ in found)} have a device of that "
                "name; set pool=",
                code="invalid-health-report",
            )
        return found[0] if found else None

    def _new(self) -> DeviceConditions:
        return DeviceConditions(self._policy, self._source.stale_after)

    @property
    def _title(self) -> str:
        return type(self._source).__name__


_DEFAULT_RULE: Final = HealthRule()
"""The rule for a reason that has none."""


class HealthTime(Struct, frozen=True):
    """A point in time.

    Attributes:
        seconds: by a monotonic clock.
        date: by the wall clock, for people and the API.
    """

    seconds: float
    date: dt.datetime


def health_time_now() -> HealthTime:
    """Return the current time."""
    return HealthTime(time.monotonic(), dt.datetime.now(dt.UTC))


class _Condition(Struct):
    rule: HealthRule
    problem: HealthProblem | None = None  # None: no problem in effect
    turned: float | None = None  # since when the reports contradict that
    message: str = ""  # of the last report, and its value
    value: str | None = None
    unknown: str | None = None  # why it is unknown
    injected: bool = False  # reports of the source are ignored


def _end_problem(condition: _Condition, now: HealthTime) -> None:
    if condition.problem is None:
        condition.turned = None
    elif condition.turned is None:
        condition.turned = now.seconds


def _damping(condition: _Condition) -> float:
    rule = condition.rule
    return rule.unhealthy_after if condition.problem is None else rule.healthy_after


def advertised_inventory(inventory: Inventory[Device], verdicts: Mapping[Key, HealthVerdict]) -> Inventory[Device]:
    """Return the inventory without withdrawn devices, and with the taints of health in addition to the author's own."""
    pools = [_pool(pool, verdicts) for pool in inventory.pools]
    if all(new is old for new, old in zip(pools, inventory.pools, strict=True)):
        return inventory
    return inventory.model_copy(update={"pools": tuple(pools)})


def _pool(pool: Pool[Device], verdicts: Mapping[Key, HealthVerdict]) -> Pool[Device]:
    devices = []
    for device in pool.devices:
        verdict = verdicts.get((pool.name or "", device.name))
        if verdict is None:
            devices.append(device)
        elif not verdict.withdrawn:
            devices.append(with_taints(device, verdict.taints))
    if len(devices) == len(pool.devices) and all(map(operator.is_, devices, pool.devices)):
        return pool
    return pool.model_copy(update={"devices": tuple(devices)})


def with_taints(device: Device, added: Sequence[DeviceTaint]) -> Device:
    """Return the device with taints in addition to its own, which come first: the API limits their number."""
    if not added:
        return device
    published = {field: getattr(device, field) for field in Device.model_fields}
    return Device(**{**published, "taints": (*device.taints, *added)[: LIMITS.taints]})
