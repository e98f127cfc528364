"""Records of the driver: it starts, logs, ends."""

from __future__ import annotations

from typing import Literal

from dra_kit.sandbox.timeline.records.base import TimelineRecord


class DriverStarting(TimelineRecord, frozen=True, kw_only=True):
    """A driver is started, or replaced.

    Attributes:
        driver: its name.
        node: that it starts on; empty for all.
        why: what made that necessary; empty for the first start.
    """

    driver: str
    node: str = ""
    why: str = ""


class DriverServing(TimelineRecord, frozen=True, kw_only=True):
    """A driver that was started, or replaced, serves.

    Attributes:
        driver: its name.
        why: as in :class:`DriverStarting`.
        duration: seconds that it took.
    """

    driver: str
    why: str = ""
    duration: float


class DriverNotServing(TimelineRecord, frozen=True, kw_only=True):
    """A driver does not come up, for now.

    Attributes:
        driver: its name; empty for one of several.
        message: why, one line; empty where nothing is known.
        calls: of its code that have not returned, a sentence each.
    """

    driver: str = ""
    message: str = ""
    calls: tuple[str, ...] = ()


class DriverRefused(TimelineRecord, frozen=True, kw_only=True):
    """New code of a driver cannot be used.

    Attributes:
        driver: its name.
        why: as in :class:`DriverStarting`.
        message: what is wrong with it.
        serving: the code before goes on serving.
    """

    driver: str
    why: str
    message: str
    serving: bool


class DriverEnded(TimelineRecord, frozen=True, kw_only=True):
    """A driver ended.

    Attributes:
        driver: its name.
        node: that it ran on; empty for all.
        how: ``stopped`` in order, ``killed`` as by SIGKILL, or ``failed``: by itself.
        message: why it failed; or after which step it was killed.
    """

    driver: str
    node: str = ""
    how: Literal["stopped", "killed", "failed"]
    message: str = ""


class DriverLogged(TimelineRecord, frozen=True, kw_only=True):
    """The code of a driver, or the role around it, logged or printed a line.

    Attributes:
        driver: its name; empty where several share a process.
        level: ``INFO``, ``WARNING`` and so on; empty where it is not known.
        text: the line; it may have several, of a traceback for example.
        left_out: lines before it that are not recorded, because there were too many at once.
    """

    driver: str = ""
    level: str = ""
    text: str
    left_out: int = 0
