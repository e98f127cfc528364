"""Takes from claims what was given to them: a remedy carried out, a pod no longer a consumer, a claim deleted."""

from __future__ import annotations

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import Conflict, KubeError, NotFound
from dra_kit.kubernetes.resource.objects import object_key, object_name
from dra_kit.kubernetes.scheduler.claim_controller import DELETE_PROTECTION, finalizers_patch
from dra_kit.kubernetes.scheduler.cycle import PostFilterAction
from dra_kit.kubernetes.values.json import ObjectView

_ATTEMPTS = 5
_RELEASED = frozenset({"allocation", "reservedFor", "devices"})


class Releaser:
    """Takes from claims what was given to them.

    Args:
        client: to write with.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def apply(self, remedy: PostFilterAction) -> None:
        """Carry a remedy out.

        Raises:
            KubeError: the API server refuses.
        """
        if remedy.delete:
            await self.delete(remedy.claim)
            return
        status = {name: value for name, value in remedy.claim["status"].items() if name not in _RELEASED}
        await self._client.update(RESOURCE_CLAIMS, {**remedy.claim, "status": status}, subresource="status")

    async def unreserve(self, claim: ObjectView, pod: ObjectView) -> ObjectView:
        """Return the claim without the pod among its consumers.

        Raises:
            KubeError: the API server refuses.
        """
        namespace, name = object_key(claim)
        body = {
            "metadata": {"uid": claim["metadata"]["uid"]},
            "status": {"reservedFor": [{"$patch": "delete", "uid": pod["metadata"]["uid"]}]},
        }
        return await self._client.patch(
            RESOURCE_CLAIMS, name, body, namespace, subresource="status", content_type=STRATEGIC_MERGE_PATCH
        )

    async def delete(self, claim: ObjectView) -> None:
        """Delete a claim that was made for extended resources, whatever protects it.

        Raises:
            KubeError: the API server refuses.
        """
        namespace, name = object_key(claim)
        current = claim
        try:
            for attempt in range(_ATTEMPTS):
                finalizers = [item for item in current["metadata"].get("finalizers", []) if item != DELETE_PROTECTION]
                try:
                    await self._client.patch(RESOURCE_CLAIMS, name, finalizers_patch(current, finalizers), namespace)
                    break
                except Conflict:
                    if attempt == _ATTEMPTS - 1:
                        raise
                except KubeError as error:
                    error.text = f"update resourceclaim {object_name(claim)}: {error.text}"
                    raise
                current = await self._client.get(RESOURCE_CLAIMS, name, namespace)
            await self._client.delete(RESOURCE_CLAIMS, name, namespace)
        except NotFound:
            return
