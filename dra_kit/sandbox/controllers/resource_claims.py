"""ResourceClaims from templates, and claims that are no longer reserved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_kit.errors import KubeError, NotFound
from dra_kit.kubernetes.resource.objects import ObjectKey, object_key, pod_claims
from dra_kit.kubernetes.scheduler.claim_controller import (
    claim_from_template,
    claim_update,
    claims_to_reserve,
    consumer,
    generated_claim,
    missing_claims,
)
from dra_kit.sandbox.claim_finalizers import write_finalizers
from dra_kit.sandbox.controllers.workqueue import WorkQueue
from dra_kit.sandbox.informers import SharedInformers

COMPONENT: Final = "resource_claim"
_FIELD_MANAGER: Final = "ResourceClaimController"


class ResourceClaimController:
    """Implements the controller of this name in kube-controller-manager 1.37."""

    def __init__(self, client: Client, informers: SharedInformers, events: EventRecorder) -> None:
        self._client = client
        self._events = events
        self._pods = informers.objects(PODS)
        self._claims = informers.objects(RESOURCE_CLAIMS)
        # what was created for (pod UID, entry), while the informer may not know of it yet
        self._created: dict[tuple[str, str], str] = {}
        self._pod_queue: WorkQueue[ObjectKey] = WorkQueue("claim generation", self._sync_pod)
        self._claim_queue: WorkQueue[ObjectKey] = WorkQueue("claim release", self._sync_claim)
        self._uses: dict[ObjectKey, set[ObjectKey]] = {}  # pods by the claims they name
        informers.listen(PODS, self._pod_changed)
        informers.listen(RESOURCE_CLAIMS, self._claim_changed)
        informers.listen(RESOURCE_CLAIM_TEMPLATES, lambda _: self._template_changed())

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pod_queue.run(), name="claim generation")
            group.create_task(self._claim_queue.run(), name="claim release")

    # --- what happened

    def _pod_changed(self, change: ObjectChange) -> None:
        pod = change.object
        key = object_key(pod)
        names = {(key[0], entry.claim) for entry in pod_claims(pod) if entry.claim}
        if change.type == "DELETED":
            for entry in pod_claims(pod):
                self._created.pop((pod["metadata"]["uid"], entry.name), None)
            for name in names:
                self._uses.get(name, set()).discard(key)
        else:
            for name in names:
                self._uses.setdefault(name, set()).add(key)
            if names or pod["spec"].get("resourceClaims"):
                self._pod_queue.add(key)
        for name in names:
            self._claim_queue.add(name)

    def _claim_changed(self, change: ObjectChange) -> None:
        key = object_key(change.object)
        if change.type == "DELETED":
            self._uses.pop(key, None)
            return
        self._claim_queue.add(key)
        for pod in self._uses.get(key, ()):
            self._pod_queue.add(pod)

    def _template_changed(self) -> None:
        for key, pod in self._pods.items():
            if missing_claims(pod):
                self._pod_queue.add(key)

    # --- pods

    async def _sync_pod(self, key: ObjectKey) -> None:
        pod = self._pods.get(key)
        if pod is None:
            return
        named = {}
        failure: KubeError | None = None
        for entry in missing_claims(pod):
            try:
                named[entry.name] = await self._generate(pod, entry.name)
            except KubeError as error:
                failure = error
                self._events.record(
                    ObjectReference.to(pod),
                    "Warning",
                    reason="FailedResourceClaimCreation",
                    action="CreateResourceClaim",
                    note=f"PodResourceClaim {entry.name}: {error.text}",
                )
        if named:
            await self._name_claims(pod, named)
        if failure is not None:
            raise failure
        for claim in claims_to_reserve(pod, self._claims):
            status = {**claim["status"], "reservedFor": [*claim["status"].get("reservedFor", []), consumer(pod)]}
            await self._client.update(RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status")

    async def _generate(self, pod: Mapping[str, Any], entry: str) -> str:
        earlier = generated_claim(pod, entry, self._claims.values())
        memory = (pod["metadata"]["uid"], entry)
        if earlier is not None or memory in self._created:
            return str(earlier["metadata"]["name"]) if earlier else self._created[memory]
        name = next(item for item in pod["spec"]["resourceClaims"] if item["name"] == entry)[
            "resourceClaimTemplateName"
        ]
        try:
            template = await self._client.get(RESOURCE_CLAIM_TEMPLATES, name, pod["metadata"]["namespace"])
        except NotFound as error:
            text = f'resource claim template "{name}": resourceclaimtemplate.resource.k8s.io "{name}" not found'
            raise NotFound(text, status=error.status, reason=error.reason) from None
        try:
            created = await self._client.create(RESOURCE_CLAIMS, claim_from_template(pod, entry, template))
        except KubeError as error:
            error.text = f"create ResourceClaim : {error.text}"
            raise
        self._created[memory] = created["metadata"]["name"]
        return self._created[memory]

    async def _name_claims(self, pod: Mapping[str, Any], named: Mapping[str, str]) -> None:
        known = {item["name"]: item for item in pod.get("status", {}).get("resourceClaimStatuses", [])}
        known |= {entry: {"name": entry, "resourceClaimName": claim} for entry, claim in named.items()}
        namespace, name = object_key(pod)
        status = {"resourceClaimStatuses": [known[entry] for entry in sorted(known)]}
        # compare the UID: a new pod with the same name does not inherit the claim
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._client.patch(PODS, name, body, namespace, subresource="status", field_manager=_FIELD_MANAGER)

    # --- claims

    async def _sync_claim(self, key: ObjectKey) -> None:
        claim = self._claims.get(key)
        if claim is None:
            return
        step = claim_update(claim, self._pods)
        if step.status is not None:
            claim = await self._client.update(RESOURCE_CLAIMS, {**claim, "status": step.status}, subresource="status")
        if step.finalizers is not None:
            claim = await write_finalizers(self._client, claim, step.finalizers)
        if step.delete:
            with suppress(NotFound):
                await self._client.delete(RESOURCE_CLAIMS, key[1], key[0], uid=claim["metadata"]["uid"])
