"""What the scheduler has decided and the informers do not know yet: it must not decide it again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from dra_kit.kubelet.pods import pod_claims
from dra_kit.sandbox.controllers.release import consumer
from dra_kit.sandbox.pods import Key, Object, key_of
from dra_kit.sandbox.scheduler.claims import NotReady
from dra_kit.sandbox.scheduler.cycle import Placement
from dra_kit.sandbox.scheduler.extended import made_for


class Assumed:
    """Placements under way, laid over what the informers have.

    Args:
        pods: of an informer.
        claims: of an informer.
    """

    def __init__(self, pods: Mapping[Key, Object], claims: Mapping[Key, Object]) -> None:
        self._pods = pods
        self._claims = claims
        self._nodes: dict[str, str] = {}  # node by pod UID
        self._overlay: dict[Key, dict[str, Any]] = {}
        self._written: dict[Key, int] = {}  # resource version from which on the informer's state is as good
        self._changed = asyncio.Event()

    def assume(self, placement: Placement) -> None:
        """Take a placement for true, before it is written."""
        self._nodes[placement.pod["metadata"]["uid"]] = placement.node
        changes = [(claim, allocation) for claim, allocation in placement.allocations if "uid" in claim["metadata"]]
        for claim, allocation in [*changes, *((claim, claim["status"]["allocation"]) for claim in placement.reserve)]:
            status = claim.get("status", {})
            reserved = [*status.get("reservedFor", []), consumer(placement.pod)]
            self._overlay[key_of(claim)] = {
                **claim,
                "status": {**status, "allocation": allocation, "reservedFor": reserved},
            }
            self._written.pop(key_of(claim), None)

    def written(self, claim: Object) -> None:
        """A claim was written; what the server answered holds until the informer has it too."""
        key = key_of(claim)
        self._overlay[key] = dict(claim)
        self._written[key] = int(claim["metadata"]["resourceVersion"])

    def forget(self, placement: Placement) -> None:
        """A placement failed: what was not written is not true."""
        self._nodes.pop(placement.pod["metadata"]["uid"], None)
        for claim in (*(claim for claim, _ in placement.allocations), *placement.reserve):
            if "uid" in claim["metadata"] and key_of(claim) not in self._written:
                self._overlay.pop(key_of(claim), None)

    def pod_known(self, pod: Object) -> None:
        """The informer has the pod's node, or the pod is gone."""
        self._nodes.pop(pod["metadata"]["uid"], None)

    def claim_known(self, claim: Object, *, deleted: bool) -> None:
        """The informer has a new state of a claim."""
        self._changed.set()
        key = key_of(claim)
        overlay = self._overlay.get(key)
        if overlay is None:
            return
        other = overlay["metadata"]["uid"] != claim["metadata"]["uid"]
        written = self._written.get(key)
        if deleted or other or (written is not None and int(claim["metadata"]["resourceVersion"]) >= written):
            del self._overlay[key]
            self._written.pop(key, None)

    async def change(self) -> None:
        """Returns when the informer has a new state of some claim."""
        self._changed.clear()
        await self._changed.wait()

    def is_placed(self, pod: Object) -> bool:
        """Whether a placement of the pod is under way."""
        return pod["metadata"]["uid"] in self._nodes

    def placed(self) -> Iterator[tuple[str, Object]]:
        """Every pod that has a node, or will have, with the node's name."""
        for pod in self._pods.values():
            node = self._nodes.get(pod["metadata"]["uid"]) or pod["spec"].get("nodeName")
            if node:
                yield node, pod

    def claims_for(self, pod: Object) -> dict[Key, Object]:
        """The pod's claims as they will be, with one that was made for its extended resources in an earlier attempt.

        Raises:
            NotReady: one of them is being written for another pod right now.
        """
        namespace = pod["metadata"]["namespace"]
        found = {}
        for entry in pod_claims(pod):
            key = (namespace, entry.claim or "")
            if key in self._overlay and key not in self._written:
                raise NotReady(f"resource claim {'/'.join(key)} is in the process of being allocated")
            if claim := self.claim(key):
                found[key] = claim
        uid = pod["metadata"]["uid"]
        return found | {key: claim for key, claim in self._claims.items() if made_for(claim) == uid}

    def claim(self, key: Key) -> Object | None:
        """One claim as it will be."""
        return self._overlay.get(key) or self._claims.get(key)
