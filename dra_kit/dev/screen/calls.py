"""The calls of kubelets to the driver, for a screen."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.sandbox.timeline.records import PREPARE, CallEnded, CallStarted, Record

_CALLS_MAX: Final = 200


class Call(Struct, frozen=True):
    """One call.

    Attributes:
        at: when it began or was answered, seconds since the epoch.
        node: whose kubelet called.
        method: of the service.
        claims: ``namespace/name`` of each.
        uids: of the claims.
        seconds: that it took; None while it is not answered.
        devices: that were answered.
        error: in the kubelet's words.
    """

    at: float
    node: str
    method: str
    claims: tuple[str, ...]
    uids: tuple[str, ...]
    seconds: float | None = None
    devices: tuple[str, ...] = ()
    error: str = ""


class Calls:
    """Keeps the newest calls, and what came of the last one for each claim; :meth:`read` is a reader of a timeline."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=_CALLS_MAX)
        self.prepared: dict[str, Call] = {}
        """The last answered NodePrepareResources of each claim that was not released since, by UID."""

    @property
    def newest_first(self) -> Sequence[Call]:
        """The stored calls, the newest first."""
        return tuple(reversed(self._calls))

    def read(self, record: Record) -> None:
        """Take a record."""
        match record:
            case CallStarted():
                self._calls.append(_call(record))
            case CallEnded():
                self._ended(record)
            case _:
                pass

    def _ended(self, record: CallEnded) -> None:
        begun = _call(record)
        for call in self._calls:
            if call.seconds is None and (call.node, call.method, call.uids) == (begun.node, begun.method, begun.uids):
                self._calls.remove(call)
                break
        devices = tuple(device.device for device in record.devices)
        ended = replace(begun, seconds=record.duration, devices=devices, error=record.error)
        self._calls.append(ended)
        if record.method == PREPARE:
            self.prepared.update(dict.fromkeys(ended.uids, ended))
        elif not ended.error:
            for uid in ended.uids:
                self.prepared.pop(uid, None)


def _call(record: CallStarted | CallEnded) -> Call:
    claims = tuple(map(str, record.claims))
    return Call(record.at.timestamp(), record.node, record.method, claims, tuple(claim.uid for claim in record.claims))
