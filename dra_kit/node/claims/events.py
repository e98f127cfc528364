"""What happens to claims: signals inside the process, Events on claims and pods, and the log of failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVarTuple

from dra_kit.author.calls import author_exc_info, author_location
from dra_kit.author.effect import Effect
from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import DraKitError, InternalError, InvalidConfig, NotFound, PrepareError, StoreError, Unavailable
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.effects.classes import public_text, public_title
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import StateStore
from dra_kit.text import shorten, without_paths

logger: logging.Logger = logging.getLogger(__name__)
_RETRY: Final = (1.0, 5.0, 30.0, 120.0)  # seconds until pods are looked up again; after the last one, never
_Kind: TypeAlias = Literal["Normal", "Warning"]


class ClaimEventRecorder:
    """Records Events on claims and their pods about what happens to claims on this node.

    Attributes:
        recorder: writes in the background; a part of the process.
    """

    def __init__(self, client: Client, driver: str, node_name: str, store: StateStore) -> None:
        self.recorder: EventRecorder = EventRecorder(client, controller=driver, instance=node_name)
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._store = store
        self._looking: set[asyncio.Task[None]] = set()  # for the pods of claims

    async def close(self) -> None:
        """Write the pending Events, for a short time."""
        for task in self._looking:
            task.cancel()
        await self.recorder.flush(2.0)

    def prepare_failed(self, claim: ClaimReference, error: DraKitError) -> None:
        """Report that a claim could not be prepared."""
        self._report(claim, "FailedPrepareDevices", "Prepare", error.public)

    def report_corrupt_records(self) -> None:
        """Report that records of claims are corrupt."""
        with suppress(StoreError):  # reported where the record is needed
            for row in self._store.corrupt_rows():
                if row.claim is not None:
                    self._report(row.claim, "CorruptRecord", "Keep", without_paths(row.error().public))

    def effect_replaced(self, effect: Effect[Any, Any], claims: Sequence[ClaimReference]) -> None:
        """Report that an effect has another outcome now; running containers still use the old one."""
        note = (
            f"{public_title(effect)} no longer held and was applied again with another outcome; running containers "
            "still use the former one: delete the pod so that it is created again"
        )
        self._report_with_pods(claims, "Warning", "EffectReplaced", "Apply", note)

    def device_changed(self, pool: str, device: str, text: str, *, healthy: bool) -> None:
        """Report a device that has become unhealthy or has recovered."""
        try:
            holders = [item.reference for item in self._store.claims() if item.has(pool, device)]
        except StoreError:  # reported where the record is needed
            return
        note = f"device {pool}/{device} {'has recovered, it was unhealthy' if healthy else 'is unhealthy'}: {text}"
        kind: _Kind = "Normal" if healthy else "Warning"
        reason = "DeviceHealthy" if healthy else "DeviceUnhealthy"
        self._report_with_pods(holders, kind, reason, "WatchHealth", note)

    def device_vanished(self, pool: str, device: str, claims: Sequence[ClaimReference]) -> None:
        """Report a device that claims use and the driver does not find any more."""
        note = (
            f"device {pool}/{device} is in use and not in the inventory of driver {self._driver} any more; running "
            "containers keep what they were given. If the device does not come back, delete the pod so that it gets "
            f"another device, or evict it with a DeviceTaintRule for driver {self._driver}, pool {pool}, device "
            f"{device} with effect NoExecute"
        )
        self._report_with_pods(claims, "Warning", "DeviceGone", "Discover", note)

    def _report(self, claim: ClaimReference, reason: str, action: str, note: str, *, kind: _Kind = "Warning") -> None:
        regarding = ObjectReference("resource.k8s.io/v1", "ResourceClaim", claim.name, claim.uid, claim.namespace)
        self._record(kind, reason, action, note, regarding)

    def _record(self, kind: _Kind, reason: str, action: str, note: str, regarding: ObjectReference) -> None:
        note = f"on node {self._node_name}: {note}"
        self.recorder.record(regarding, kind, reason=reason, action=action, note=note)

    def _report_with_pods(
        self, claims: Sequence[ClaimReference], kind: _Kind, reason: str, action: str, note: str
    ) -> None:
        """Report on the claims, and in the background on the pods that they are reserved for."""
        for claim in claims:
            self._report(claim, reason, action, note, kind=kind)
            look = self._record_for_pods(claim, partial(self._record, kind, reason, action, note))
            task = asyncio.get_running_loop().create_task(look)
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _record_for_pods(self, claim: ClaimReference, record: Callable[[ObjectReference], None]) -> None:
        for delay in (*_RETRY, None):
            try:
                raw = await self._client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
            except NotFound:
                return
            except Unavailable:
                if delay is not None:
                    await asyncio.sleep(delay)
                continue
            except DraKitError as error:
                logger.warning("pods of a claim got no Event", extra={"error": str(error), "code": error.code})
                return
            if raw["metadata"]["uid"] == claim.uid:
                for item in (raw.get("status") or {}).get("reservedFor") or ():
                    if item.get("resource") == "pods" and not item.get("apiGroup"):
                        record(ObjectReference("v1", "Pod", item["name"], item["uid"], claim.namespace))
            return


MESSAGE_BYTES: Final = 4096
"""Maximum bytes of an error that are stored; its readers may get fewer."""


def log_failure(error: Exception, message: str, *, module: str, logger: logging.Logger) -> DraKitError:
    """Log an error, with a traceback only for bugs and for exceptions of the author's code.

    If a config does not match its model, the log names the fields and quotes no values. ``module`` is that of the
    author's code.

    Returns:
        The error as users read it, of bounded length and without causes: a call can have hundreds of claims.
    """
    cause = error.__cause__
    bug = not isinstance(error, DraKitError) or isinstance(error, InternalError)
    trace = error if bug else cause if not isinstance(cause, DraKitError | None) else None
    problem = error if isinstance(error, DraKitError) else InternalError(f"{type(error).__name__}: {error}")
    problem.message = shorten(problem.message, MESSAGE_BYTES)
    problem.public = shorten(public_text(problem), MESSAGE_BYTES)
    problem.args = (problem.message,)
    fields: dict[str, object] = {"error": str(problem), "code": problem.code}
    if isinstance(error, InvalidConfig) and error.problems:  # without the text: it may quote a secret
        del fields["error"]
        fields["fields"] = list(dict.fromkeys(error.places))
    if isinstance(problem, PrepareError) and problem.permanent:
        fields["permanent"] = True
    if place := author_location(error, module):
        fields["at"] = place
    logger.error(message, extra=fields, exc_info=author_exc_info(trace, module) if trace else None)
    problem.__cause__ = problem.__context__ = problem.__traceback__ = None
    return problem


Reported = TypeVarTuple("Reported")


class Signal(Generic[*Reported]):
    """Calls its listeners in the order of registration, in the thread of the caller."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[*Reported], None]] = []

    def listen(self, listener: Callable[[*Reported], None]) -> None:
        """Call ``listener`` for each notification; it must not raise."""
        self._listeners.append(listener)

    def notify(self, *reported: *Reported) -> None:
        """Notify all listeners."""
        for listener in self._listeners:
            listener(*reported)


class ClaimEvents:
    """Signals about claims.

    Attributes:
        prepared: a claim was prepared, for the first time or again, or new facts about its devices were reported.
        resumed: a claim is still prepared as before; its status may not have been written yet.
        failed: a claim could not be prepared, and why.
        released: a claim is released.
    """

    def __init__(self) -> None:
        self.prepared: Signal[ClaimRecord] = Signal()
        self.resumed: Signal[ClaimRecord] = Signal()
        self.failed: Signal[ClaimReference, DraKitError] = Signal()
        self.released: Signal[ClaimReference] = Signal()
