"""How all devices are: reports come in, and what follows by the author's policy can be read off; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.health import HealthReport, HealthSource, HealthUnknown, Healthy, Unhealthy
from dra_kit.author.devices.vocabulary import DeviceTaint
from dra_kit.author.models.model import shown
from dra_kit.errors import ConfigurationError
from dra_kit.node.health.conditions import Conditions, Moment, Problem, Status
from dra_kit.node.health.identity import Identity, Key
from dra_kit.publishing.identity import differs
from dra_kit.text import did_you_mean

_ABSENT_MAX: Final = 1024
"""Devices that are gone and whose health is stored, should they come back."""


class Verdict(Struct, frozen=True):
    """What follows for a device.

    Attributes:
        reported: what the kubelet gets, with a text for people; None for nothing.
        taints: those that it has beside the author's own.
        withdrawn: it is not published.
    """

    reported: tuple[Status, str] | None
    taints: tuple[DeviceTaint, ...]
    withdrawn: bool


class Remembered(Struct, frozen=True):
    """What is stored of a device for the next process.

    Attributes:
        key: pool and name.
        identity: which device it is.
        problems: what counts.
    """

    key: Key
    identity: Identity
    problems: tuple[Problem, ...]


class _Entry(Struct, frozen=True):
    identity: Identity
    conditions: Conditions


class Ledger:
    """All devices.

    Args:
        driver: its name, for the keys of taints.
        source: whose policy it is.
        identity_of: of a device that was reported and is not the one of the inventory.
    """

    def __init__(
        self, driver: str, source: HealthSource[Any, Any, Any], identity_of: Callable[[Device], Identity]
    ) -> None:
        self._driver = driver
        self._source = source
        self._policy = source.policy
        self._identity_of = identity_of
        self._devices: dict[Key, Device] = {}
        self._by_name: dict[str, list[Key]] = {}
        self._entries: dict[Key, _Entry] = {}  # also of devices that are gone, with what is wrong with them

    def remember(self, known: Sequence[Remembered]) -> None:
        """Restore what the process before stored."""
        for item in known:
            entry = self._entries[item.key] = _Entry(item.identity, self._new())
            for problem in item.problems:
                entry.conditions.restore(problem)

    def adopt(self, known: Sequence[Remembered]) -> None:
        """Take over what another process beside this one had found out; the source will report the rest again."""
        for item in known:
            entry = self._entries.get(item.key)
            if entry is None or differs(item.identity, entry.identity):
                continue
            held = entry.conditions.problems()
            for problem in item.problems:
                rule = self._policy.get(problem.reason)
                if rule is not None and rule.sticky and problem.reason not in held:
                    entry.conditions.restore(problem)

    def inventory(self, devices: Mapping[Key, tuple[Device, Identity]]) -> None:
        """Take the complete list of devices that there are now."""
        self._devices = {key: device for key, (device, _) in devices.items()}
        self._by_name = {}
        for key in devices:
            self._by_name.setdefault(key[1], []).append(key)
        for key, (_, now) in devices.items():
            before = self._entries.pop(key, None)
            known = before is not None and not differs(before.identity, now)
            self._entries[key] = _Entry(now, before.conditions if known and before is not None else self._new())
        gone = [key for key in self._entries if key not in devices]
        well = [key for key in gone if not self._entries[key].conditions.problems()]
        absent = [key for key in gone if self._entries[key].conditions.problems()]
        for key in (*well, *absent[: max(0, len(absent) - _ABSENT_MAX)]):
            del self._entries[key]

    def take(self, report: HealthReport, now: Moment) -> None:
        """Take a report of the source; one of a device that was replaced since says nothing.

        Raises:
            ConfigurationError: it is none, or its device is unknown; code ``invalid-health-report``, or
                ``unknown-health-reason`` where the reason has no rule: the kubelet gets it all the same.
        """
        if not (
            isinstance(report, Healthy | Unhealthy | HealthUnknown)
            and isinstance(report.device, Device)
            and isinstance(report.reason, str)
            and isinstance(getattr(report, "message", ""), str)
        ):
            raise ConfigurationError(
                f"{self._title}.watch yielded {shown(report)}; yield dra_kit.Healthy(device), "
                "dra_kit.Unhealthy(device, reason) or dra_kit.HealthUnknown(device)",
                code="invalid-health-report",
            )
        key = self._key(report.device.name, report.pool)
        if key is None:
            return
        entry, present = self._entries[key], self._devices[key]
        if report.device != present and differs(entry.identity, self._identity_of(report.device)):
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
                f"{self._title}.watch: reason {shown(report.reason)} is not in its policy"
                f"{did_you_mean(report.reason, self._policy) or ';'} the kubelet alone is told of it",
                code="unknown-health-reason",
            )

    def inject(
        self, device: str, pool: str | None, reason: str, problem: tuple[str, str | None] | None, now: Moment
    ) -> None:
        """Make something wrong with a device, with message and value, or take that back.

        Raises:
            ConfigurationError: there is no such device, or no rule for the reason.
        """
        key = self._key(device, pool)
        if key is None:
            names = ", ".join(name for _, name in self._devices) or "none"
            raise ConfigurationError(
                f"health of device {device}: driver {self._driver} has no such device; it has {names}"
            )
        if reason not in self._policy:
            raise ConfigurationError(
                f"health of device {device}: reason {shown(reason)} is not in the policy of {self._title}"
                f"{did_you_mean(reason, self._policy) or ';'} it has {', '.join(self._policy) or 'none'}"
            )
        conditions = self._entries[key].conditions
        if problem is None:
            conditions.taken_back(reason, now)
        else:
            conditions.unhealthy(reason, *problem, now, injected=True)

    def asked(self, key: Key, reason: str, now: Moment, *, recovered: bool) -> None:
        """Take the answer of ``recovered`` about a device."""
        if key in self._entries:
            self._entries[key].conditions.asked(reason, now, recovered=recovered)

    def settle(self, now: Moment) -> None:
        """Let what has lasted long enough count."""
        for entry in self._entries.values():
            entry.conditions.settle(now)

    def due(self) -> float | None:
        """Return when :meth:`settle` has something to do."""
        times = (entry.conditions.due() for entry in self._entries.values())
        return min((time for time in times if time is not None), default=None)

    def to_ask(self) -> list[tuple[Key, Device, str]]:
        """Return the devices that are there, with the reasons whose end only ``recovered`` tells."""
        return [
            (key, device, reason)
            for key, device in self._devices.items()
            for reason in self._entries[key].conditions.to_ask()
        ]

    def problems(self) -> dict[Key, Mapping[str, Problem]]:
        """Return what is wrong, also with devices that are gone."""
        found = ((key, entry.conditions.problems()) for key, entry in self._entries.items())
        return {key: problems for key, problems in found if problems}

    def remembered(self) -> list[Remembered]:
        """Return what the next process is to know."""
        return [
            Remembered(key, entry.identity, tuple(problems.values()))
            for key, entry in self._entries.items()
            if (problems := entry.conditions.problems())
        ]

    def verdicts(self) -> dict[Key, Verdict]:
        """Return what follows, for each device that is there."""
        return {key: self._verdict(self._entries[key].conditions) for key in self._devices}

    def _verdict(self, conditions: Conditions) -> Verdict:
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
        return Verdict(conditions.status(), tuple(taints.values()), withdrawn)

    def _key(self, device: str, pool: str | None) -> Key | None:
        """Return where a device is; None for one that is gone.

        Raises:
            ConfigurationError: several pools have one of that name.
        """
        found = [key for key in self._by_name.get(device, ()) if pool in {None, key[0]}]
        if len(found) > 1:
            raise ConfigurationError(
                f"health of device {device}: pools {', '.join(name for name, _ in found)} have one of that name; say "
                "which with pool=",
                code="invalid-health-report",
            )
        return found[0] if found else None

    def _new(self) -> Conditions:
        return Conditions(self._policy, self._source.stale_after)

    @property
    def _title(self) -> str:
        return type(self._source).__name__
