"""Claims and pods as the scheduler assumes them until the API server confirms them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import ObjectKey, object_key, pod_claims
from dra_kit.kubernetes.scheduler.claims import NotReady, extended_claim_owner
from dra_kit.kubernetes.scheduler.cycle import Placement
from dra_kit.kubernetes.values.json import ObjectView


class _InFlight(Struct, frozen=True):
    """The pending writes of a placement to a claim.

    Attributes:
        pod: UID of the pod being placed.
        key: of the claim; None if it is not created yet.
        allocation: the future allocation of the claim; its current one if only the pod is to be reserved.
    """

    pod: str
    key: ObjectKey | None
    allocation: ObjectView


class ClaimTracker:
    """Holds devices from the decision until the informer has the allocation, or the placement fails.

    A holder is a claim, by its UID, or a pod whose claim for extended resources is not created yet.

    Args:
        claims: of an informer.
        hold: called with a holder, its allocation or None, and the name of the claim, ``<namespace>/<name>``.
    """

    def __init__(
        self, claims: Mapping[ObjectKey, ObjectView], hold: Callable[[str, ObjectView | None, str], None]
    ) -> None:
        self._claims = claims
        self._hold = hold
        self._in_flight: dict[str, _InFlight] = {}  # by holder
        self._written: dict[ObjectKey, ObjectView] = {}  # responses newer than the informer's state
        self._under_way: set[str] = set()  # UIDs of pods
        self._gone: set[str] = set()  # UIDs of claims deleted during placements
        self._changed = asyncio.Event()

    # --- placements

    def begin(self, placement: Placement) -> None:
        """Hold the devices of a placement from now on, after the decision."""
        pod = placement.pod["metadata"]["uid"]
        self._under_way.add(pod)
        for claim, allocation in placement.allocations:
            if "uid" in claim["metadata"]:
                self._take(claim["metadata"]["uid"], _InFlight(pod, object_key(claim), allocation))
            else:
                self._take(pod, _InFlight(pod, None, allocation))
        for claim in placement.reserve:
            self._take(claim["metadata"]["uid"], _InFlight(pod, object_key(claim), claim["status"]["allocation"]))

    def made(self, pod: ObjectView, claim: ObjectView) -> None:
        """Record that the claim for a pod's extended resources exists, but has no allocation yet."""
        entry = self._in_flight.pop(pod["metadata"]["uid"])
        self._hold(entry.pod, None, "")
        self._take(claim["metadata"]["uid"], _InFlight(entry.pod, object_key(claim), entry.allocation))

    def written(self, pod: ObjectView, claim: ObjectView) -> None:
        """Record the server's response to the write of a pod's placement to a claim."""
        uid, key = claim["metadata"]["uid"], object_key(claim)
        entry = self._in_flight.get(uid)
        if entry is not None and entry.pod == pod["metadata"]["uid"]:
            del self._in_flight[uid]
        known = (self._claims.get(key), self._written.get(key))
        if uid not in self._gone and not any(item and _is_as_new(item, claim) for item in known):
            self._written[key] = claim
        self._update(uid, key)

    def end(self, placement: Placement) -> None:
        """Drop the pending writes of a placement that succeeded or failed."""
        pod = placement.pod["metadata"]["uid"]
        self._under_way.discard(pod)
        for holder, entry in list(self._in_flight.items()):
            if entry.pod == pod:
                del self._in_flight[holder]
                self._update(holder, entry.key)
        if not self._under_way:
            self._gone.clear()

    # --- events of the informer

    def seen(self, claim: ObjectView, *, deleted: bool) -> None:
        """Record that the informer has a new state of a claim."""
        self._changed.set()
        uid, key = claim["metadata"]["uid"], object_key(claim)
        if deleted and self._under_way:
            self._gone.add(uid)
        written = self._written.get(key)
        if written is not None and written["metadata"]["uid"] == uid and (deleted or _is_as_new(claim, written)):
            del self._written[key]
        self._update(uid, key)

    async def change(self) -> None:
        """Wait until the informer has a new state of some claim."""
        self._changed.clear()
        await self._changed.wait()

    # --- claims

    def claim(self, key: ObjectKey) -> ObjectView | None:
        """Return the newest known state of a claim; None if none is known."""
        return self._written.get(key) or self._claims.get(key)

    def named_by(self, pod: ObjectView) -> dict[ObjectKey, ObjectView]:
        """Return the existing claims in the pod's spec."""
        namespace = pod["metadata"]["namespace"]
        keys = [(namespace, entry.claim or "") for entry in pod_claims(pod)]
        return {key: claim for key in keys if (claim := self.claim(key)) is not None}

    def needed_by(self, pod: ObjectView, together: Collection[str] = ()) -> dict[ObjectKey, ObjectView]:
        """Return the pod's claims, including one created for its extended resources in an earlier attempt.

        Args:
            pod: to be scheduled.
            together: UIDs of pods that are scheduled together with it; it shares the allocations of their claims.

        Raises:
            NotReady: one of them is currently being written for another pod.
        """
        uid, found = pod["metadata"]["uid"], self.named_by(pod)
        for key, claim in found.items():
            entry = self._in_flight.get(claim["metadata"]["uid"])
            if entry is None:
                continue
            if entry.pod not in together:
                raise NotReady(f"resource claim {'/'.join(key)} is in the process of being allocated")
            found[key] = {**claim, "status": {**claim.get("status", {}), "allocation": entry.allocation}}
        return found | {key: claim for key, claim in self._all() if extended_claim_owner(claim) == uid}

    def _all(self) -> Iterator[tuple[ObjectKey, ObjectView]]:
        yield from self._written.items()
        yield from ((key, claim) for key, claim in self._claims.items() if key not in self._written)

    # --- holders

    def _take(self, holder: str, entry: _InFlight) -> None:
        self._in_flight[holder] = entry
        self._hold(holder, entry.allocation, "/".join(entry.key or ()))

    def _update(self, holder: str, key: ObjectKey | None) -> None:
        """Set the allocation of a holder: the in-flight one, or else the last known one."""
        entry = self._in_flight.get(holder)
        claim, name = self.claim(key) if key else None, "/".join(key or ())
        if entry is not None:
            self._hold(holder, entry.allocation, name)
        elif claim is not None and claim["metadata"]["uid"] == holder:
            self._hold(holder, claim.get("status", {}).get("allocation"), name)
        else:
            self._hold(holder, None, name)


def _is_as_new(one: ObjectView, other: ObjectView) -> bool:
    """Whether one state is at least as new as another; all versions of a server are comparable."""
    return int(one["metadata"]["resourceVersion"]) >= int(other["metadata"]["resourceVersion"])


class AssumedPods:
    """Nodes of pods that are being placed, in addition to the informer's pods."""

    def __init__(self, pods: Mapping[ObjectKey, ObjectView]) -> None:
        self._pods = pods
        self._nodes: dict[str, str] = {}  # by pod UID

    def assume(self, pod: ObjectView, node: str) -> None:
        """Assume that a pod has a node, before that is written."""
        self._nodes[pod["metadata"]["uid"]] = node

    def forget(self, pod: ObjectView) -> None:
        """Drop a pod: it did not get its node, or the informer has it, or it was deleted."""
        self._nodes.pop(pod["metadata"]["uid"], None)

    def is_placed(self, pod: ObjectView) -> bool:
        """Whether a placement of the pod is in progress."""
        return pod["metadata"]["uid"] in self._nodes

    def placed(self) -> Iterator[tuple[str, ObjectView]]:
        """Yield all pods with a node, also an assumed one, with its name."""
        for pod in self._pods.values():
            node = self._nodes.get(pod["metadata"]["uid"]) or pod["spec"].get("nodeName")
            if node:
                yield node, pod
