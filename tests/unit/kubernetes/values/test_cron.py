"""Schedules of CronJobs. The expected times and errors were printed by the library that Kubernetes uses."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dra_kit.kubernetes.values.cron import ScheduleError, parse_schedule, read_zone

NOW = dt.datetime(2026, 3, 28, 12, tzinfo=dt.UTC)  # a Saturday; clocks in Berlin change in the night


def times(text: str, zone: str | None = None, count: int = 3) -> list[str]:
    schedule, found, time = parse_schedule(text, zone), [], NOW
    for _ in range(count):
        following = schedule.next(time)
        if following is None:
            break
        found.append(f"{following:%Y-%m-%d %H:%M:%S}")
        time = following
    return found


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("*/25 * * * *", None, ["2026-03-28 12:25:00", "2026-03-28 12:50:00", "2026-03-28 13:00:00"]),
        ("5/25 13 ? * *", None, ["2026-03-28 13:05:00", "2026-03-28 13:30:00", "2026-03-28 13:55:00"]),
        ("0 0 29 2 *", None, ["2028-02-29 00:00:00", "2032-02-29 00:00:00", "2036-02-29 00:00:00"]),
        ("59 23 31 2 *", None, []),
        (", * * * *", None, []),
        # one of the days is enough, unless one of them is a star
        ("0 0 1 */3 MON", None, ["2026-04-01 00:00:00", "2026-04-06 00:00:00", "2026-04-13 00:00:00"]),
        ("0 0 */10 * mon", None, ["2026-03-30 00:00:00", "2026-03-31 00:00:00", "2026-04-01 00:00:00"]),
        ("0 0 * apr,Jun mon-tue", None, ["2026-04-06 00:00:00", "2026-04-07 00:00:00", "2026-04-13 00:00:00"]),
        ("30 9 * * *", "Asia/Kolkata", ["2026-03-29 04:00:00", "2026-03-30 04:00:00", "2026-03-31 04:00:00"]),
        ("30 2 * * *", "Europe/Berlin", ["2026-03-30 00:30:00", "2026-03-31 00:30:00", "2026-04-01 00:30:00"]),
        ("30 2 25 10 *", "Europe/Berlin", ["2026-10-25 00:30:00", "2026-10-25 01:30:00", "2027-10-25 00:30:00"]),
        ("TZ=Asia/Kolkata @daily", None, ["2026-03-28 18:30:00", "2026-03-29 18:30:00", "2026-03-30 18:30:00"]),
        ("@weekly", None, ["2026-03-29 00:00:00", "2026-04-05 00:00:00", "2026-04-12 00:00:00"]),
        ("@every 1h30m", None, ["2026-03-28 13:30:00", "2026-03-28 15:00:00", "2026-03-28 16:30:00"]),
        ("@every 1.5s", None, ["2026-03-28 12:00:01", "2026-03-28 12:00:02", "2026-03-28 12:00:03"]),
        ("@every -5m", None, ["2026-03-28 12:00:01", "2026-03-28 12:00:02", "2026-03-28 12:00:03"]),
    ],
)  # fmt: skip
def test_times_are_those_of_kubernetes(text: str, zone: str | None, expected: list[str]) -> None:
    assert times(text, zone) == expected


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "empty spec string"),
        ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
        ("0 0 * * * *", "expected exactly 5 fields, found 6: [0 0 * * * *]"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("1/2/3 * * * *", "too many slashes: 1/2/3"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("*/-1 * * * *", "negative number (-1) not allowed: -1"),
        ("x * * * *", 'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax'),
        ("* * * mon *", 'failed to parse int from mon: strconv.Atoi: parsing "mon": invalid syntax'),
        (
            f"{LONG} * * * *",
            f'failed to parse int from {LONG}: strconv.Atoi: parsing "{LONG}": value out of range',
        ),
        ("@noon", "unrecognized descriptor: @noon"),
        ("@every ", 'failed to parse duration @every : time: invalid duration ""'),
        ("@every 5", 'failed to parse duration @every 5: time: missing unit in duration "5"'),
        ("@every 1d", 'failed to parse duration @every 1d: time: unknown unit "d" in duration "1d"'),
        (f"@every {LONG}h", f'failed to parse duration @every {LONG}h: time: invalid duration "{LONG}h"'),
        ("TZ=Nowhere * * * * *", "provided bad location Nowhere: unknown time zone Nowhere"),
        ("TZ=UTC", "invalid schedule format: runtime error: slice bounds out of range [:-1]"),
    ],
)  # fmt: skip
def test_errors_are_those_of_kubernetes(text: str, error: str) -> None:
    with pytest.raises(ScheduleError) as raised:
        parse_schedule(text)

    assert str(raised.value) == error


@pytest.mark.parametrize(
    "name", ["", "Mars/Olympus", "../etc/passwd", "Europe", "/etc/localtime", "Europe/../UTC", "a" * 99]
)
def test_unknown_time_zone_is_rejected(name: str) -> None:
    with pytest.raises(ScheduleError, match="unknown time zone"):
        read_zone(name)


def test_times_end_with_the_calendar() -> None:
    last = dt.datetime(9999, 12, 31, 23, 59, 30, tzinfo=dt.UTC)

    assert parse_schedule("* * * * *").next(last) is None
    assert parse_schedule("@every 1h").next(last) is None


def fields(low: int, high: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A field with the values that it stands for."""
    value = st.integers(low, high)
    one = value.map(lambda number: (str(number), {number}))
    span = st.tuples(value, value, st.integers(1, 9)).map(
        lambda given: (
            f"{min(given[:2])}-{max(given[:2])}/{given[2]}",
            set(range(min(given[:2]), max(given[:2]) + 1, given[2])),
        )
    )
    parts = st.lists(st.one_of(one, span), min_size=1, max_size=3)
    several = parts.map(
        lambda all_: (",".join(text for text, _ in all_), frozenset().union(*(item for _, item in all_)))
    )
    return st.one_of(st.just(("*", frozenset(range(low, high + 1)))), several)


@given(
    st.tuples(fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12), fields(0, 6)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
    st.integers(0, 10 * 365 * 86_400),
)
def test_next_time_is_the_first_minute_that_matches(
    given_fields: tuple[tuple[str, frozenset[int]], ...], zone: str, seconds: int
) -> None:
    minutes, hours, days, months, weekdays = (values for _, values in given_fields)
    either = "*" not in {given_fields[2][0], given_fields[4][0]}

    def matches(moment: dt.datetime) -> bool:
        local = moment.astimezone(ZoneInfo(zone))
        both = (local.day in days, local.isoweekday() % 7 in weekdays)
        is_day = any(both) if either else all(both)
        return local.minute in minutes and local.hour in hours and local.month in months and is_day

    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)
    found = parse_schedule(" ".join(text for text, _ in given_fields), zone).next(start)

    assume(found is not None)
    assert found is not None
    assert found > start
    assert matches(found)
    minute = dt.timedelta(minutes=1)
    looked = max(start.replace(second=0, microsecond=0) + minute, found - dt.timedelta(hours=30))
    while looked < found:
        assert not matches(looked)
        looked += minute


@given(st.text("0123456789*/-,? @LW#TZ=every.hms", max_size=30))
def test_any_text_is_a_schedule_or_an_error(text: str) -> None:
    try:
        schedule = parse_schedule(text)
    except ScheduleError:
        return
    following = schedule.next(NOW)
    assert following is None or following > NOW
