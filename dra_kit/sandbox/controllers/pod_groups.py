"""Protection of PodGroups: a deleted one stays until its last pod has finished."""

from __future__ import annotations

from contextlib import suppress

from dra_kit.client.api import Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import POD_GROUPS, PODS
from dra_kit.errors import NotFound
from dra_kit.kubernetes.resource.objects import ObjectKey, is_terminal, object_key
from dra_kit.kubernetes.scheduler.pod_groups import POD_GROUP_PROTECTION, group_key
from dra_kit.sandbox.informers import SharedInformers, WorkQueue


class PodGroupProtectionController:
    """Removes the finalizer of deleted PodGroups that no pod needs (``podgroup-protection-controller``)."""

    def __init__(self, client: Client, informers: SharedInformers) -> None:
        self._client = client
        self._groups = informers.objects(POD_GROUPS)
        self._pods = informers.objects(PODS)
        self._queue = WorkQueue[ObjectKey]("the protection of PodGroups", self._release)
        informers.listen(POD_GROUPS, lambda change: self._queue.add(object_key(change.object)))
        informers.listen(PODS, self._pod_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run()

    def _pod_changed(self, change: ObjectChange) -> None:
        key = group_key(change.object)
        if key is not None and (change.type == "DELETED" or is_terminal(change.object)):
            self._queue.add(key)

    async def _release(self, key: ObjectKey) -> None:
        group = self._groups.get(key)
        if group is None or "deletionTimestamp" not in group["metadata"]:
            return
        finalizers = group["metadata"].get("finalizers") or []
        is_used = any(group_key(pod) == key and not is_terminal(pod) for pod in self._pods.values())
        if is_used or POD_GROUP_PROTECTION not in finalizers:
            return
        metadata = {name: group["metadata"][name] for name in ("uid", "resourceVersion")}
        metadata["finalizers"] = [item for item in finalizers if item != POD_GROUP_PROTECTION]
        with suppress(NotFound):
            await self._client.patch(POD_GROUPS, key[1], {"metadata": metadata}, key[0])
