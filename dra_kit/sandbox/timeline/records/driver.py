"""Records of the driver: it starts, logs, ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dra_kit.sandbox.timeline.records.base import TimelineRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStarting(TimelineRecord):
    """A driver is started, or replaced.

    Attributes:
        driver: its name.
        node: that it starts on; empty for all.
        why: what made that necessary; empty for the first start.
    """

    kind: Literal["DriverStarting"] = "DriverStarting"
    driver: str
    node: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverServing(TimelineRecord):
    """A driver that was started, or replaced, serves.

    Attributes:
        driver: its name.
        why: as in :class:`DriverStarting`.
        duration: seconds that it took.
    """

    kind: Literal["DriverServing"] = "DriverServing"
    driver: str
    why: str = ""
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverNotServing(TimelineRecord):
    """A driver does not come up, for now.

    Attributes:
        driver: its name; empty for one of several.
        message: why, one line; empty where nothing is known.
        calls: of its code that have not returned, a sentence each.
    """

    kind: Literal["DriverNotServing"] = "DriverNotServing"
    driver: str = ""
    message: str = ""
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRefused(TimelineRecord):
    """New code of a driver cannot be used.

    Attributes:
        driver: its name.
        why: as in :class:`DriverStarting`.
        message: what is wrong with it.
        serving: the code before goes on serving.
    """

    kind: Literal["DriverRefused"] = "DriverRefused"
    driver: str
    why: str
    message: str
    serving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEnded(TimelineRecord):
    """A driver ended.

    Attributes:
        driver: its name.
        node: that it ran on; empty for all.
        how: ``stopped`` in order, ``killed`` as by SIGKILL, or ``failed``: by itself.
        message: why it failed; or after which step it was killed.
    """

    kind: Literal["DriverEnded"] = "DriverEnded"
    driver: str
    node: str = ""
    how: Literal["stopped", "killed", "failed"]
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLogged(TimelineRecord):
    """The code of a driver, or the role around it, logged or printed a line.

    Attributes:
        driver: its name; empty where several share a process.
        level: ``INFO``, ``WARNING`` and so on; empty where it is not known.
        text: the line; it may have several, of a traceback for example.
        left_out: lines before it that are not recorded, because there were too many at once.
    """

    kind: Literal["DriverLogged"] = "DriverLogged"
    driver: str = ""
    level: str = ""
    text: str
    left_out: int = 0
