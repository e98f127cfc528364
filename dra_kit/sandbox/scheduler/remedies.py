"""What helps a pod that no node takes: a claim of its own that holds devices where the pod cannot go is freed.

That is the PostFilter step of kube-scheduler's plugin DynamicResources (1.37); the next attempt finds the claim without
devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra_kit.errors import Conflict, KubeError, NotFound
from dra_kit.kube.client import STRATEGIC_MERGE_PATCH, Client
from dra_kit.kube.resources import RESOURCE_CLAIMS
from dra_kit.sandbox.controllers.release import DELETE_PROTECTION
from dra_kit.sandbox.pods import Object, key_of, shown

_ATTEMPTS = 5
_RELEASED = frozenset({"allocation", "reservedFor", "devices"})


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do with one claim.

    Attributes:
        claim: the claim.
        delete: it goes, rather than lose its devices.
    """

    claim: Object
    delete: bool = False

    @property
    def text(self) -> str:
        """What kube-scheduler reports when it is done."""
        return f"{'deletion' if self.delete else 'deallocation'} of ResourceClaim completed"


def remedy_for(pod: Object, unavailable: Iterable[Object], stale: Object | None) -> Remedy | None:
    """What may help the pod.

    Args:
        pod: that no node takes.
        unavailable: its claims that have devices which it cannot use on some node that would take it otherwise.
        stale: a claim that was made for its extended resources in an earlier attempt.
    """
    for claim in unavailable:
        consumers = claim.get("status", {}).get("reservedFor", [])
        if all(item.get("uid") == pod["metadata"]["uid"] for item in consumers):
            return Remedy(claim)
    return Remedy(stale, delete=True) if stale is not None else None


class Releaser:
    """Takes from claims what was given to them.

    Args:
        client: to write with.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def apply(self, remedy: Remedy) -> None:
        """Carry a remedy out.

        Raises:
            KubeError: the API server refuses.
        """
        if remedy.delete:
            await self.delete(remedy.claim)
            return
        status = {name: value for name, value in remedy.claim["status"].items() if name not in _RELEASED}
        await self._client.update(RESOURCE_CLAIMS, {**remedy.claim, "status": status}, subresource="status")

    async def unreserve(self, claim: Object, pod: Object) -> Object:
        """The claim without the pod among its consumers.

        Raises:
            KubeError: the API server refuses.
        """
        namespace, name = key_of(claim)
        body = {
            "metadata": {"uid": claim["metadata"]["uid"]},
            "status": {"reservedFor": [{"$patch": "delete", "uid": pod["metadata"]["uid"]}]},
        }
        return await self._client.patch(
            RESOURCE_CLAIMS, name, body, namespace, subresource="status", content_type=STRATEGIC_MERGE_PATCH
        )

    async def delete(self, claim: Object) -> None:
        """Delete a claim that was made for extended resources, whatever protects it.

        Raises:
            KubeError: the API server refuses.
        """
        namespace, name = key_of(claim)
        current = claim
        try:
            for attempt in range(_ATTEMPTS):
                kept = [item for item in current["metadata"].get("finalizers", []) if item != DELETE_PROTECTION]
                try:
                    metadata = {**current["metadata"], "finalizers": kept}
                    await self._client.update(RESOURCE_CLAIMS, {**current, "metadata": metadata})
                    break
                except Conflict:
                    if attempt == _ATTEMPTS - 1:
                        raise
                except KubeError as error:
                    error.text = f"update resourceclaim {shown(claim)}: {error.text}"
                    raise
                current = await self._client.get(RESOURCE_CLAIMS, name, namespace)
            await self._client.delete(RESOURCE_CLAIMS, name, namespace)
        except NotFound:
            return
