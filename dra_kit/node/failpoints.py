"""Failpoints: every step that changes the outside world or the disk.

The code reports each step when it is done. Only crash tests listen: they kill the process after each step, and fail if
a step is never reached.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Failpoint(StrEnum):
    """The steps, in the order of a claim's life and of the process's life."""

    STATE_REBUILT = "what can be read of a damaged database is in a new one"
    STATE_SET_ASIDE = "the damaged database has another name, the new one has not got its own"
    STATE_OPENED = "the database is open"
    FILES_SWEPT = "files without a record are gone"
    SERVICE_BOUND = "the service socket is there and has not got its name"
    SERVING = "the service socket listens"
    REGISTRATION_BOUND = "the registration socket is there and has not got its name"
    REGISTERED = "the registration socket is there"
    RESUMED = "what the last process left half done is done"

    SLICE_DELETED = "a slice is deleted"
    SLICE_UPDATED = "a slice is updated"
    SLICE_CREATED = "a slice is created"

    HEALTH_STORED = "what is wrong with devices is stored, the slices and the kubelet do not know it"

    CLAIM_FETCHED = "the claim is read"
    CLAIM_BEGUN = "the claim's record says that it is being prepared, the author's code has not run"
    EFFECT_INTENDED = "an effect's intent is stored"
    EFFECT_APPLIED = "an effect is applied, its outcome not stored"
    OUTCOME_STORED = "an effect's outcome is stored"
    EFFECT_LOST = "an effect does not hold any more, and is not in force"
    EFFECT_REPLACED = "an effect came to another outcome, and the claims that need it are marked"
    AUTHOR_RETURNED = "the author's prepare has returned"
    CLAIM_STORED = "the claim's record is stored"
    FILES_WRITTEN = "the claim's files are written"
    PREPARED = "the claim is prepared, the kubelet not answered"
    STATUS_WRITTEN = "the claim's status says what became of its devices"

    EPOCH_ENDED = "older work for the claim is refused"
    EPOCH_ENDED_ELSEWHERE = "work of another process for the claim is refused"
    RELEASE_BEGUN = "the claim's record says that it is being released"
    FILES_REMOVED = "the claim's files are removed, its record is not"
    EFFECT_RELEASED = "an effect is no longer needed"
    EFFECT_REVERTING = "an effect that makes way is marked as being undone"
    EFFECT_REVERTED = "an effect is undone, its record is still there"
    EFFECT_FORGOTTEN = "an effect's record is deleted"
    AUTHOR_UNPREPARED = "the author's unprepare has returned"
    CLAIM_FORGOTTEN = "the claim's record is deleted, the kubelet not answered"
    EPOCH_FORGOTTEN = "no older work for the claim is left"

    DRAINING = "the process stops: no new calls"
    UNREGISTERED = "the registration socket is gone"
    DRAINED = "no call runs any more"


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
    """Notify the listener, if any, that a step is done. Thread-safe."""
    if _listener is not None:
        _listener(step)


def set_listener(listener: Callable[[Failpoint], None] | None) -> None:
    """Call ``listener`` after each step, in the thread that did it; None removes it. For tests only."""
    global _listener  # noqa: PLW0603 - one process, one listener
    _listener = listener
