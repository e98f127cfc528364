"""The calls of kubelets to the driver, for a screen."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dra_kit.sandbox.cluster.kubelet.activity import Activity, ClaimsPrepared, ClaimsReleased, PluginCalled
from dra_kit.sandbox.sandbox import SandboxObserver

PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
_KEPT: Final = 200


@dataclass(frozen=True, slots=True)
class Call:
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


class Calls(SandboxObserver):
    """Keeps the newest calls, and what came of the last one for each claim.

    Args:
        clock: gives seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._calls: deque[Call] = deque(maxlen=_KEPT)
        self.prepared: dict[str, Call] = {}
        """The last answered NodePrepareResources of each claim that was not released since, by UID."""

    @property
    def newest_first(self) -> Sequence[Call]:
        """What is kept."""
        return tuple(reversed(self._calls))

    def acted(self, node: str, activity: Activity) -> None:
        """A kubelet did something."""
        match activity:
            case PluginCalled(method=method, claims=claims):
                uids = tuple(claim.uid for claim in claims)
                self._calls.append(Call(self._clock(), node, method, tuple(map(str, claims)), uids))
            case ClaimsPrepared(seconds=seconds, devices=devices, error=error):
                names = tuple(device.device_name for device in devices)
                call = self._answered(node, PREPARE, activity, seconds=seconds, devices=names, error=error)
                self.prepared.update(dict.fromkeys(call.uids, call))
            case ClaimsReleased(seconds=seconds, error=error):
                call = self._answered(node, UNPREPARE, activity, seconds=seconds, devices=(), error=error)
                if not error:
                    for uid in call.uids:
                        self.prepared.pop(uid, None)
            case _:
                pass

    def _answered(
        self,
        node: str,
        method: str,
        activity: ClaimsPrepared | ClaimsReleased,
        *,
        seconds: float,
        devices: tuple[str, ...],
        error: str,
    ) -> Call:
        uids = tuple(claim.uid for claim in activity.claims)
        for call in self._calls:
            if call.seconds is None and (call.node, call.method, call.uids) == (node, method, uids):
                self._calls.remove(call)
                break
        else:
            call = Call(0.0, node, method, tuple(map(str, activity.claims)), uids)
        answered = replace(call, at=self._clock(), seconds=seconds, devices=devices, error=error)
        self._calls.append(answered)
        return answered
