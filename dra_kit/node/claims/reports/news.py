"""What became of claims, for whoever has to do something about it: their status, Events, another look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVarTuple

from dra_kit.errors import DraKitError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import ClaimRecord

Reported = TypeVarTuple("Reported")


class Signal(Generic[*Reported]):
    """Calls its listeners, in the order in which they came, in the thread of whoever tells."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[*Reported], None]] = []

    def listen(self, listener: Callable[[*Reported], None]) -> None:
        """Call it whenever something is reported; it must not raise."""
        self._listeners.append(listener)

    def notify(self, *reported: *Reported) -> None:
        """Notify all listeners."""
        for listener in self._listeners:
            listener(*reported)


class ClaimNews:
    """What is reported of claims.

    Attributes:
        prepared: a claim was prepared anew, or something became known of its devices.
        resumed: a claim is prepared as it was before, which may not have been reported yet.
        failed: a claim could not be prepared, and why.
        released: a claim is released.
    """

    def __init__(self) -> None:
        self.prepared: Signal[ClaimRecord] = Signal()
        self.resumed: Signal[ClaimRecord] = Signal()
        self.failed: Signal[ClaimReference, DraKitError] = Signal()
        self.released: Signal[ClaimReference] = Signal()
