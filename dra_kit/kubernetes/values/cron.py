"""Schedules of CronJobs: five fields, names such as ``@hourly``, and ``@every`` with a duration.

Sources: Kubernetes 1.37 ``pkg/util/parsers``, and the library that it uses, github.com/robfig/cron 3.0.1.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Mapping
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from msgspec import Struct

_MINUTE: Final = dt.timedelta(minutes=1)
_HOUR_MINUTES: Final = 60
_YEARS: Final = 5
_MOST: Final = 2**63 - 1  # of a number, and of the nanoseconds of a duration
_DIGITS: Final = 20  # more than the largest number has
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_DESCRIPTORS: Final = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_EVERY: Final = "@every "
_ZONE: Final = re.compile(r"(?:CRON_)?TZ=(\S*) (.*)", re.DOTALL)
_ZONE_PART: Final = re.compile(r"(?!\.{1,2}$)(?!-)[A-Za-z._0-9+-]{1,14}")
_UNITS: Final = {
    "ns": 1, "us": 10**3, "\u00b5s": 10**3, "\u03bcs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9,
    "h": 3600 * 10**9,
}  # fmt: skip
_DURATION_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")


class ScheduleError(ValueError):
    """A text is not a schedule, or not a time zone."""


class Schedule(Protocol):
    """When a CronJob starts Jobs."""

    def next(self, after: dt.datetime) -> dt.datetime | None:
        """Return the first time after another one, in UTC; None if there is none in five years."""
        ...


def parse_schedule(text: str, zone: str | None = None) -> Schedule:
    """Read a schedule.

    Args:
        text: the schedule.
        zone: name of the time zone of its fields; UTC by default.

    Raises:
        ScheduleError: it is not a schedule; the message is that of Kubernetes.
    """
    if not text:
        raise ScheduleError("empty spec string")
    if text.startswith(("TZ=", "CRON_TZ=")):
        found = _ZONE.fullmatch(text)
        if found is None:
            raise ScheduleError("invalid schedule format: runtime error: slice bounds out of range [:-1]")
        try:
            time_zone, text = read_zone(found[1] or "UTC"), found[2].strip()
        except ScheduleError as error:
            raise ScheduleError(f"provided bad location {found[1]}: {error}") from None
    else:
        time_zone = read_zone(zone or "UTC")
    if text.startswith(_EVERY):
        return _Interval(_interval(text))
    if text.startswith("@"):
        if text not in _DESCRIPTORS:
            raise ScheduleError(f"unrecognized descriptor: {text}")
        text = _DESCRIPTORS[text]
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ScheduleError(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    minutes, hours, days, months, weekdays = (_FIELDS[place].parse(item) for place, item in enumerate(fields))
    return _Fields(
        zone=time_zone,
        minutes=sorted(minutes.values),
        hours=hours.values,
        days=days.values,
        months=months.values,
        weekdays=weekdays.values,
        both_days=days.any or weekdays.any,
    )


def read_zone(name: str) -> dt.tzinfo:
    """Return a time zone by its name in the IANA database.

    Raises:
        ScheduleError: no time zone has this name.
    """
    if not all(_ZONE_PART.fullmatch(part) for part in name.split("/")):
        raise ScheduleError(f"unknown time zone {name}")
    if name == "UTC":
        return dt.UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # OSError: it names a directory
        raise ScheduleError(f"unknown time zone {name}") from None


class _Interval(Struct, frozen=True):
    """Starts after equal intervals."""

    length: dt.timedelta

    def next(self, after: dt.datetime) -> dt.datetime | None:
        """Return the time one interval later."""
        try:
            return after.astimezone(dt.UTC).replace(microsecond=0) + self.length
        except OverflowError:
            return None


class _Fields(Struct, frozen=True, kw_only=True):
    """Starts where the clock of a time zone shows certain values; twice if the clock shows them twice.

    Attributes:
        both_days: day and day of the week must match, because one of them is ``*``; otherwise one of them is enough.
    """

    zone: dt.tzinfo
    minutes: list[int]
    hours: Collection[int]
    days: Collection[int]
    months: Collection[int]
    weekdays: Collection[int]
    both_days: bool

    def next(self, after: dt.datetime) -> dt.datetime | None:
        """Return the first minute whose fields match."""
        if not (self.minutes and self.hours):  # a field of commas has no values
            return None
        try:
            return self._search(after.astimezone(dt.UTC).replace(second=0, microsecond=0) + _MINUTE)
        except OverflowError:  # the last year of the calendar
            return None

    def _search(self, moment: dt.datetime) -> dt.datetime | None:
        local = moment.astimezone(self.zone)
        last = local.year + _YEARS
        while local.year <= last:
            if (minutes := self._wait(local)) == 0:
                return moment
            while True:
                reached = moment + minutes * _MINUTE
                shown = reached.astimezone(self.zone)
                if minutes == 1 or shown.replace(tzinfo=None) - local.replace(tzinfo=None) == minutes * _MINUTE:
                    break
                # the clock changes on the way; what it shows meanwhile may match
                left = _HOUR_MINUTES - local.minute
                minutes = left if minutes > left else 1
            moment, local = reached, shown
        return None

    def _wait(self, local: dt.datetime) -> int:
        """Return the minutes until a clock that does not change may show a match; 0 if it does."""
        left = _HOUR_MINUTES - local.minute
        if local.month not in self.months or not self._is_day(local):
            return left + (23 - local.hour) * _HOUR_MINUTES
        if local.hour not in self.hours:
            return left
        return next((minute - local.minute for minute in self.minutes if minute >= local.minute), left)

    def _is_day(self, local: dt.datetime) -> bool:
        matches = (local.day in self.days, local.isoweekday() % 7 in self.weekdays)
        return all(matches) if self.both_days else any(matches)


class _Values(Struct, frozen=True):
    """The values of a field; ``any``: it is not restricted, as ``*`` says."""

    values: frozenset[int]
    any: bool


class _Field(Struct, frozen=True):
    """One of the five fields: its lowest and highest value, and names of values."""

    low: int
    high: int
    names: Mapping[str, int] = {}

    def parse(self, text: str) -> _Values:
        """Read values and ranges, separated by commas.

        Raises:
            ScheduleError: it is not a field of a schedule.
        """
        parts = [self._range(part) for part in text.split(",") if part]
        return _Values(frozenset[int]().union(*(part.values for part in parts)), any(part.any for part in parts))

    def _range(self, text: str) -> _Values:
        span, *steps = text.split("/")
        first, *others = span.split("-")
        star = first in {"*", "?"}
        if star:
            low, high = self.low, self.high
        else:
            low = high = self._value(first)
            if len(others) == 1:
                high = self._value(others[0])
            elif others:
                raise ScheduleError(f"too many hyphens: {text}")
        step = 1
        if len(steps) == 1:
            step = _number(steps[0])
            if not others:
                high = self.high  # 5/10 is 5-59/10
            star = star and step <= 1
        elif steps:
            raise ScheduleError(f"too many slashes: {text}")
        if low < self.low:
            raise ScheduleError(f"beginning of range ({low}) below minimum ({self.low}): {text}")
        if high > self.high:
            raise ScheduleError(f"end of range ({high}) above maximum ({self.high}): {text}")
        if low > high:
            raise ScheduleError(f"beginning of range ({low}) beyond end of range ({high}): {text}")
        if step == 0:
            raise ScheduleError(f"step of range should be a positive number: {text}")
        return _Values(frozenset(range(low, high + 1, step)), star)

    def _value(self, text: str) -> int:
        found = self.names.get(text.lower())
        return _number(text) if found is None else found


_FIELDS: Final = (
    _Field(0, 59),
    _Field(0, 23),
    _Field(1, 31),
    _Field(1, 12, dict(zip(_MONTHS, range(1, 13), strict=True))),
    _Field(0, 6, dict(zip(_DAYS, range(7), strict=True))),
)


def _number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ScheduleError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax')
    number = int(text) if len(text) <= _DIGITS else _MOST + 1
    if abs(number) > _MOST:
        raise ScheduleError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": value out of range')
    if number < 0:
        raise ScheduleError(f"negative number ({number}) not allowed: {text}")
    return number


def _interval(text: str) -> dt.timedelta:
    """Return the duration of ``@every``, in whole seconds; one second is the shortest."""
    written = text.removeprefix(_EVERY)
    body = written[1:] if written[:1] in {"+", "-"} else written
    problem = "" if body else "invalid"
    total, position = 0, 0
    while body != "0" and position < len(body) and not problem:
        part = _DURATION_PART.match(body, position)
        if part is None or not (part[1] or part[2]):
            problem = "invalid"
        elif part[3] not in _UNITS:
            problem = f'unknown unit "{part[3]}" in' if part[3] else "missing unit in"
        else:
            unit, fraction = _UNITS[part[3]], (part[2] or "")[:_DIGITS]
            total += int(part[1][:_DIGITS] or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
            position = part.end()
    if total > _MOST:
        problem = "invalid"
    if problem:
        raise ScheduleError(f'failed to parse duration {text}: time: {problem} duration "{written}"')
    sign = -1 if written[:1] == "-" else 1
    return dt.timedelta(seconds=max(1, sign * total // _UNITS["s"]))
