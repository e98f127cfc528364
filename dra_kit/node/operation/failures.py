"""What failed last, for people who come when it has happened."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from dra_kit.errors import DraKitError
from dra_kit.kubernetes.resource.objects import ClaimReference

_KEPT: Final = 32


class Failure(Struct, frozen=True):
    """A claim that could not be prepared.

    Attributes:
        at: when that was last.
        claim: which one.
        code: of the error.
        message: what the kubelet got.
        times: how often in a row.
    """

    at: datetime
    claim: ClaimReference
    code: str
    message: str
    times: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "at": self.at.isoformat(timespec="seconds"),
            "namespace": self.claim.namespace,
            "claim": self.claim.name,
            "claimUID": self.claim.uid,
            "code": self.code,
            "message": self.message,
            "times": self.times,
        }


class LastFailures:
    """The latest failures, newest last; a claim that fails alike again counts as one."""

    def __init__(self) -> None:
        self._latest: deque[Failure] = deque(maxlen=_KEPT)

    def failed(self, claim: ClaimReference, error: DraKitError) -> None:
        """Record that a claim could not be prepared."""
        times = 1
        for known in list(self._latest):
            if (known.claim, known.code, known.message) == (claim, error.code, str(error)):
                self._latest.remove(known)
                times = known.times + 1
        self._latest.append(Failure(datetime.now(UTC), claim, error.code, str(error), times))

    def all(self) -> list[Failure]:
        """Return the last failures."""
        return list(self._latest)
