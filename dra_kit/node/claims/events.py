"""Events of the node role: on claims, and on the pods that use them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from dra_kit.author.effects.effect import Effect
from dra_kit.errors import DraKitError, StoreError
from dra_kit.kube.client import Client
from dra_kit.kube.events import EventRecorder, ObjectReference
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reports.pod_events import PodEvents
from dra_kit.node.effects.understanding import public_title
from dra_kit.node.state.store import Store
from dra_kit.text import without_paths


class ClaimEvents:
    """What happens to claims on this node, reported to whoever has them.

    Args:
        client: writes the Events.
        driver: the driver's name.
        node_name: the Node object's name.
        store: knows who has a device.

    Attributes:
        recorder: writes in the background, a part of the process.
    """

    def __init__(self, client: Client, driver: str, node_name: str, store: Store) -> None:
        self.recorder: EventRecorder = EventRecorder(client, controller=driver, instance=node_name)
        self._pods = PodEvents(client)
        self._node_name = node_name
        self._store = store

    async def close(self) -> None:
        """Write what is still to be written, for a moment."""
        self._pods.stop()
        await self.recorder.flush(2.0)

    def prepare_failed(self, claim: ClaimReference, error: DraKitError) -> None:
        """Report that a claim could not be prepared."""
        self._report(claim, "FailedPrepareDevices", "Prepare", error.public)

    def damaged(self) -> None:
        """Report that the records of claims are damaged."""
        try:
            damage = self._store.damage()
        except StoreError:  # reported where it is needed
            return
        for item in damage:
            if item.claim is not None:
                self._report(item.claim, "DamagedRecord", "Keep", without_paths(item.error().public))

    def effect_replaced(self, effect: Effect[Any, Any], claims: Sequence[ClaimReference]) -> None:
        """Report that an effect is no longer as containers got it; a container that runs goes on with the old one."""
        note = (
            f"{public_title(effect)} did not hold any more and was made again with another outcome; containers that "
            "run keep what they were given: delete the pod to have it made anew"
        )
        for claim in claims:
            self._report(claim, "EffectReplaced", "Apply", note)
            self._pods.for_pods(claim, partial(self._record, "Warning", "EffectReplaced", "Apply", note))

    def device_changed(self, pool: str, device: str, text: str, *, healthy: bool) -> None:
        """Report a device that has become unhealthy, or healthy again."""
        try:
            holders = [item.reference for item in self._store.claims() if item.has(pool, device)]
        except StoreError:  # reported where it is needed
            return
        note = f"device {pool}/{device} {'is well again, it was' if healthy else 'is unhealthy'}: {text}"
        kind: Literal["Normal", "Warning"] = "Normal" if healthy else "Warning"
        reason = "DeviceHealthy" if healthy else "DeviceUnhealthy"
        for claim in holders:
            self._report(claim, reason, "WatchHealth", note, kind=kind)
            self._pods.for_pods(claim, partial(self._record, kind, reason, "WatchHealth", note))

    def _report(
        self,
        claim: ClaimReference,
        reason: str,
        action: str,
        note: str,
        *,
        kind: Literal["Normal", "Warning"] = "Warning",
    ) -> None:
        regarding = ObjectReference("resource.k8s.io/v1", "ResourceClaim", claim.name, claim.uid, claim.namespace)
        self._record(kind, reason, action, note, regarding)

    def _record(
        self, kind: Literal["Normal", "Warning"], reason: str, action: str, note: str, regarding: ObjectReference
    ) -> None:
        note = f"on node {self._node_name}: {note}"
        self.recorder.record(regarding, kind, reason=reason, action=action, note=note)
