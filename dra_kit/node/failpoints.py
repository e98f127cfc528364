"""Failpoints: every step that changes the outside world or the disk.

The code reports each step when it is done. Only crash tests listen: they kill the process after each step, and fail if
a step is never reached.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Failpoint(StrEnum):
    """The steps, in the order of a claim's life and of the process's life."""

    STATE_REBUILT = "the readable part of a corrupt database is copied to a new one"
    STATE_MOVED_AWAY = "the corrupt database is renamed, the new one does not have its final name yet"
    STATE_OPENED = "the database is open"
    FILES_SWEPT = "files without a record are removed"
    SERVICE_BOUND = "the service socket is bound, it does not have its final name yet"
    SERVING = "the service socket listens"
    REGISTRATION_BOUND = "the registration socket is bound, it does not have its final name yet"
    REGISTERED = "the registration socket has its final name"
    RESUMED = "the unfinished work of the last process is done"

    SLICE_DELETED = "a slice is deleted"
    SLICE_UPDATED = "a slice is updated"
    SLICE_CREATED = "a slice is created"

    HEALTH_STORED = "problems of devices are stored, not yet published or reported to the kubelet"

    CLAIM_FETCHED = "the claim is read"
    CLAIM_BEGUN = "the claim is recorded as being prepared, the author's code has not run"
    EFFECT_INTENDED = "an effect's intent is stored"
    EFFECT_APPLIED = "an effect is applied, its outcome is not stored"
    OUTCOME_STORED = "an effect's outcome is stored"
    EFFECT_LOST = "an effect that no longer holds is recorded as not in force"
    EFFECT_REPLACED = "an effect has another outcome, and the claims that need it are marked"
    AUTHOR_RETURNED = "the author's prepare has returned"
    CLAIM_STORED = "the claim's record is stored"
    FILES_WRITTEN = "the claim's files are written"
    PREPARED = "the claim is prepared, the kubelet has no answer yet"
    STATUS_WRITTEN = "the status of the claim's devices is written"

    EPOCH_ENDED = "older work for the claim is rejected"
    EPOCH_ENDED_ELSEWHERE = "work of another process for the claim is rejected"
    RELEASE_BEGUN = "the claim is recorded as being released"
    FILES_REMOVED = "the claim's files are removed, its record is still there"
    EFFECT_RELEASED = "an effect is no longer needed"
    EFFECT_REVERTING = "an effect that another one replaces is recorded as being reverted"
    EFFECT_REVERTED = "an effect is reverted, its record is still there"
    EFFECT_FORGOTTEN = "an effect's record is deleted"
    AUTHOR_UNPREPARED = "the author's unprepare has returned"
    CLAIM_FORGOTTEN = "the claim's record is deleted, the kubelet has no answer yet"
    EPOCH_FORGOTTEN = "all older work for the claim is done"

    DRAINING = "the process stops and accepts no new calls"
    UNREGISTERED = "the registration socket is removed"
    DRAINED = "no call is running"


LIFE_OF_A_CLAIM = (
    Failpoint.CLAIM_FETCHED,
    Failpoint.CLAIM_BEGUN,
    Failpoint.EFFECT_INTENDED,
    Failpoint.EFFECT_APPLIED,
    Failpoint.OUTCOME_STORED,
    Failpoint.AUTHOR_RETURNED,
    Failpoint.CLAIM_STORED,
    Failpoint.FILES_WRITTEN,
    Failpoint.PREPARED,
    Failpoint.STATUS_WRITTEN,
    Failpoint.RELEASE_BEGUN,
    Failpoint.FILES_REMOVED,
    Failpoint.EFFECT_RELEASED,
    Failpoint.EFFECT_REVERTED,
    Failpoint.EFFECT_FORGOTTEN,
    Failpoint.AUTHOR_UNPREPARED,
    Failpoint.CLAIM_FORGOTTEN,
)
"""The steps of a claim that is prepared once and released."""
_listener: Callable[[Failpoint], None] | None = None


def hit(step: Failpoint) -> None:
    """Report to the listener, if any, that a step is done. Thread-safe."""
    if _listener is not None:
        _listener(step)


def set_listener(listener: Callable[[Failpoint], None] | None) -> None:
    """Call ``listener`` after each step, in the thread that did it; None removes it. For tests only."""
    global _listener  # noqa: PLW0603 - one process, one listener
    _listener = listener
