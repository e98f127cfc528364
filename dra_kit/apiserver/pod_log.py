"""The options of a pod's log, and the interface of log sources.

Source: ``pkg/registry/core/pod`` and ValidatePodLogOptions of ``pkg/apis/core/validation``, Kubernetes 1.37; the
texts are those of its API server.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import AsyncGenerator, Callable
from typing import Final, Self, TypeAlias

from msgspec import Struct

from dra_kit.apiserver.requests import Query, integer
from dra_kit.apiserver.status_errors import bad_request, invalid_object
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, go_quote, invalid
from dra_kit.kubernetes.values.json import Object

_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"
_TIME_PARTS: Final = (
    ("2006", r"\d{4}"), ("-", "-"), ("01", r"\d\d"), ("-", "-"), ("02", r"\d\d"), ("T", "T"), ("15", r"\d\d?"),
    (":", ":"), ("04", r"\d\d"), (":", ":"), ("05", r"\d\d(?:[.,]\d+)?"), ("Z07:00", r"Z|[+-]\d\d:\d\d"),
)  # fmt: skip
_NANOSECONDS: Final = 10**9


class PodLogUnavailable(Exception):
    """The log does not exist; the message is the kubelet's."""


class PodLogOptions(Struct, frozen=True, kw_only=True):
    """``PodLogOptions`` of core/v1.

    Attributes:
        previous: of the container before the one that there is.
        since_seconds: only what came in so many seconds.
        since_time: only what came since then.
        tail_lines: only so many last lines.
        limit_bytes: end after so many bytes.
    """

    container: str = ""
    follow: bool = False
    previous: bool = False
    since_seconds: int | None = None
    since_time: dt.datetime | None = None
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None

    @classmethod
    def parse(cls, query: Query, pod: str) -> Self:
        """Read them from a query.

        Raises:
            StatusError: 400 or 422, an option makes no sense.
        """
        options = cls(
            container=query.text("container"),
            follow=query.flag("follow"),
            previous=query.flag("previous"),
            since_seconds=_integer(query, "sinceSeconds"),
            since_time=_time(query, "sinceTime"),
            timestamps=query.flag("timestamps"),
            tail_lines=_integer(query, "tailLines"),
            limit_bytes=_integer(query, "limitBytes"),
        )
        errors: list[FieldError] = []
        if (options.tail_lines or 0) < 0:
            errors.append(invalid("tailLines", options.tail_lines, "must be greater than or equal to 0"))
        if options.limit_bytes is not None and options.limit_bytes < 1:
            errors.append(invalid("limitBytes", options.limit_bytes, "must be greater than 0"))
        if options.since_seconds is not None and options.since_time is not None:
            errors.append(forbidden("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
        elif options.since_seconds is not None and options.since_seconds < 1:
            errors.append(invalid("sinceSeconds", options.since_seconds, "must be greater than 0"))
        if "stream" in query.values:  # of the feature gate PodLogsQuerySplitStreams, which is off
            errors.append(forbidden("stream", "may not be specified"))
        if errors:
            raise invalid_object("", "PodLogOptions", pod, errors)
        return options

    def since(self, now: int) -> int:
        """Return the time of the oldest requested line in nanoseconds since 1970, like ``now``; 0 for any."""
        if self.since_seconds is not None:
            return now - self.since_seconds * _NANOSECONDS
        return 0 if self.since_time is None else int(self.since_time.timestamp()) * _NANOSECONDS


PodLogSource: TypeAlias = Callable[[Object, PodLogOptions], AsyncGenerator[bytes, None]]
"""Gives the log of a container of a pod; its name is among the options. It may raise :class:`PodLogUnavailable`."""


def requested_container(pod: Object, name: str) -> str:
    """Return the container whose log is requested; its name may be empty if the pod has only one.

    Raises:
        StatusError: 400, the container does not exist, or the name is empty and ambiguous.
    """
    about = pod["metadata"]["name"]
    regular = [item["name"] for item in pod["spec"].get("containers") or ()]
    initial, ephemeral = (
        [item["name"] for item in pod["spec"].get(field) or ()] for field in ("initContainers", "ephemeralContainers")
    )
    names = [*initial, *regular, *ephemeral]
    if not name and len(regular) == 1:
        return str(regular[0])
    if not name:
        raise bad_request(f"a container name must be specified for pod {about}, choose one of: [{' '.join(names)}]")
    if name not in names:
        raise bad_request(f"container {name} is not valid for pod {about}")
    return name


def _integer(query: Query, name: str) -> int | None:
    return integer(query.text(name)) if name in query.values else None


def _time(query: Query, name: str) -> dt.datetime | None:
    """Return ``metav1.Time`` of a query, as Go's time package reads it."""
    if name not in query.values:
        return None
    text = rest = query.text(name)
    if not text:
        return dt.datetime.fromtimestamp(0, dt.UTC)
    zone = ""
    for part, pattern in _TIME_PARTS:
        found = re.match(pattern, rest, re.ASCII)
        if found is None:
            parsing = f"parsing time {go_quote(text)} as {go_quote(_LAYOUT)}"
            as_what = f"{parsing}: cannot parse {go_quote(rest)} as {go_quote(part)}"
            raise bad_request(as_what)
        zone, rest = found[0], rest[found.end() :]
    if rest:
        raise bad_request(f"parsing time {go_quote(text)}: extra text: {go_quote(rest)}")
    date, clock = text.removesuffix(zone).split("T")
    whole = re.split("[.,]", clock)[0].rjust(8, "0")  # the kubelet gets whole seconds
    if outside := _out_of_range(date, whole, zone):
        raise bad_request(f"parsing time {go_quote(text)}: {outside} out of range")
    return dt.datetime.fromisoformat(f"{date}T{whole}{zone}")


def _out_of_range(date: str, clock: str, zone: str) -> str:
    """Return the invalid part of a time; empty if it is valid."""
    year, month, day = map(int, date.split("-"))
    hour, minute, second = map(int, clock.split(":"))
    if not 1 <= month <= 12:
        return "month"
    if year < 1 or day < 1 or day > calendar.monthrange(year, month)[1]:
        return "day" if year else "year"
    for name, value, most in (("hour", hour, 23), ("minute", minute, 59), ("second", second, 59)):
        if value > most:
            return name
    if zone != "Z" and int(zone[1:3]) > 23:
        return "time zone offset hour"
    return "time zone offset minute" if zone != "Z" and int(zone[4:]) > 59 else ""
