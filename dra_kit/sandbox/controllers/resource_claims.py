"""ResourceClaims from templates, claims that are no longer reserved, and answers to ResourcePoolStatusRequests."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from typing_extensions import override

from dra_kit.client.api import Client
from dra_kit.client.claim_writes import create_claim, write_finalizers, write_status
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import (
    DEVICE_TAINT_RULES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
)
from dra_kit.errors import KubeError, NotFound
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.kubernetes.resource.objects import ObjectKey, format_time, object_key, pod_claims
from dra_kit.kubernetes.scheduler.controllers import (
    claim_from_template,
    claim_update,
    claims_to_reserve,
    consumer,
    generated_claim,
    group_claim_from_template,
    is_group_claim,
    missing_claims,
    missing_group_claims,
)
from dra_kit.kubernetes.scheduler.pod_groups import group_key
from dra_kit.kubernetes.scheduler.pool_status import report_pools
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

logger: logging.Logger = logging.getLogger(__name__)
COMPONENT: Final = "resource_claim"
GROUP_CLAIMS_GATE: Final = "DRAWorkloadResourceClaims"
"""The feature gate of claims that the pods of a PodGroup share."""
_FIELD_MANAGER: Final = "ResourceClaimController"


class ResourceClaimController:
    """Implements the controller of this name in kube-controller-manager.

    Args:
        release: of kube-controller-manager.
        absent: pods and PodGroups, by the resource, that count as running although the API server does not have them.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        events: EventRecorder,
        *,
        release: Release,
        absent: Mapping[str, Mapping[ObjectKey, ObjectView]] | None = None,
    ) -> None:
        self._client = client
        self._release = release
        self._group_claims: bool = GROUP_CLAIMS_GATE in release
        self._groups = informers.objects(POD_GROUPS)
        self._events = events
        self._pods = informers.objects(PODS)
        self._claims = informers.objects(RESOURCE_CLAIMS)
        self._absent_pods = (absent or {}).get("pods", {})
        self._absent_groups = (absent or {}).get("podgroups", {})
        # what was created for (UID of pod or PodGroup, entry), while the informer may not know of it yet
        self._created: dict[tuple[str, str], str] = {}
        self._pod_queue: WorkQueue[ObjectKey] = WorkQueue("claim generation", self._sync_pod)
        self._group_queue: WorkQueue[ObjectKey] = WorkQueue("generation of claims for PodGroups", self._sync_group)
        self._claim_queue: WorkQueue[ObjectKey] = WorkQueue("claim release", self._sync_claim)
        self._uses: dict[ObjectKey, set[ObjectKey]] = {}  # pods by the claims they name
        informers.listen(PODS, self._pod_changed)
        informers.listen(POD_GROUPS, self._group_changed)
        informers.listen(RESOURCE_CLAIMS, self._claim_changed)
        informers.listen(RESOURCE_CLAIM_TEMPLATES, lambda _: self._template_changed())

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pod_queue.run(), name="claim generation")
            group.create_task(self._group_queue.run(), name="claim generation for groups")
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

    def _group_changed(self, change: ObjectChange) -> None:
        group, key = change.object, object_key(change.object)
        if not self._group_claims:
            return
        statuses = (group.get("status") or {}).get("resourceClaimStatuses") or ()
        for item in (*(group["spec"].get("resourceClaims") or ()), *statuses):
            if name := item.get("resourceClaimName"):
                self._claim_queue.add((key[0], name))
        if change.type == "DELETED":
            for item in group["spec"].get("resourceClaims") or ():
                self._created.pop((group["metadata"]["uid"], item["name"]), None)
        else:
            self._group_queue.add(key)
        for pod_key, pod in self._pods.items():
            if group_key(pod) == key:
                self._pod_queue.add(pod_key)

    def _template_changed(self) -> None:
        for key, group in self._groups.items():
            if missing_group_claims(group):
                self._group_queue.add(key)
        for key, pod in self._pods.items():
            if missing_claims(pod, self._release.version):
                self._pod_queue.add(key)

    # --- pods

    async def _sync_pod(self, key: ObjectKey) -> None:
        pod = self._pods.get(key)
        if pod is None:
            return
        group_name = group_key(pod) if self._group_claims else None
        group = self._groups.get(group_name) if group_name is not None else None
        if group_name is not None and group is None:
            return  # only the group knows which claims its pods share
        named = {}
        failure: KubeError | None = None
        for entry in missing_claims(pod, self._release.version):
            if group is not None and is_group_claim(pod, entry.name, group):
                if shared := self._generated(group, entry.name):
                    named[entry.name] = shared
                continue
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
            consumers = [*claim["status"].get("reservedFor", []), consumer(pod, claim, group)]
            status = {**claim["status"], "reservedFor": consumers}
            await write_status(self._client, claim, status)

    def _generated(self, owner: ObjectView, entry: str) -> str:
        """Return the name of the claim that was generated for an entry of a pod or PodGroup; empty if none was."""
        earlier = generated_claim(owner, entry, self._claims.values())
        return str(earlier["metadata"]["name"]) if earlier else self._created.get((owner["metadata"]["uid"], entry), "")

    async def _generate(self, pod: Mapping[str, Any], entry: str) -> str:
        name = next(item for item in pod["spec"]["resourceClaims"] if item["name"] == entry)[
            "resourceClaimTemplateName"
        ]
        return self._generated(pod, entry) or await self._create(pod, entry, name, self._claim_of_pod)

    def _claim_of_pod(self, pod: ObjectView, entry: str, template: ObjectView) -> dict[str, Any]:
        return claim_from_template(pod, entry, template, self._release.version)

    async def _create(
        self,
        owner: ObjectView,
        entry: str,
        template_name: str,
        make: Callable[[ObjectView, str, ObjectView], dict[str, Any]],
    ) -> str:
        """Create a claim from a template, and return its name."""
        try:
            template = await self._client.get(RESOURCE_CLAIM_TEMPLATES, template_name, owner["metadata"]["namespace"])
        except NotFound as error:
            missing = f'resourceclaimtemplate.resource.k8s.io "{template_name}" not found'
            text = f'resource claim template "{template_name}": {missing}'
            raise NotFound(text, status=error.status, reason=error.reason) from None
        try:
            created = await create_claim(self._client, template, partial(make, owner, entry))
        except KubeError as error:
            error.text = f"create ResourceClaim : {error.text}"
            raise
        name = str(created["metadata"]["name"])
        self._created[owner["metadata"]["uid"], entry] = name
        return name

    # --- PodGroups

    async def _sync_group(self, key: ObjectKey) -> None:
        """Make the claims that the pods of a group share, and write their names to its status."""
        group = self._groups.get(key)
        if group is None or "deletionTimestamp" in group["metadata"]:
            return
        named = {}
        for entry, template in missing_group_claims(group):
            try:
                named[entry] = self._generated(group, entry) or await self._create(
                    group, entry, template, group_claim_from_template
                )
            except KubeError as error:
                self._events.record(
                    ObjectReference.to({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", **group}),
                    "Warning",
                    reason="FailedResourceClaimCreation",
                    action="CreateResourceClaim",
                    note=f"PodGroupResourceClaim {entry}: {error.text}",
                )
                raise
        if named:
            statuses = [{"name": entry, "resourceClaimName": claim} for entry, claim in sorted(named.items())]
            known = (group.get("status") or {}).get("resourceClaimStatuses") or []
            status = {"resourceClaimStatuses": [*known, *statuses]}
            body = {"metadata": {"uid": group["metadata"]["uid"]}, "status": status}
            await self._client.patch(
                POD_GROUPS, key[1], body, key[0], subresource="status", field_manager=_FIELD_MANAGER
            )

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
        pods = _Either(self._pods, self._absent_pods)
        step = claim_update(claim, pods, _Either(self._groups, self._absent_groups) if self._group_claims else None)
        if step.status is not None:
            claim = await write_status(self._client, claim, step.status)
        if step.finalizers is not None:
            claim = await write_finalizers(self._client, claim, step.finalizers)
        if step.delete:
            with suppress(NotFound):
                await self._client.delete(RESOURCE_CLAIMS, key[1], key[0], uid=claim["metadata"]["uid"])


class _Either(Mapping[ObjectKey, ObjectView]):
    """Two maps of objects as one; the first takes precedence."""

    def __init__(self, first: Mapping[ObjectKey, ObjectView], second: Mapping[ObjectKey, ObjectView]) -> None:
        self._first = first
        self._second = second

    @override
    def __getitem__(self, key: ObjectKey) -> ObjectView:
        return self._first[key] if key in self._first else self._second[key]

    @override
    def __iter__(self) -> Iterator[ObjectKey]:
        yield from {**self._first, **self._second}

    @override
    def __len__(self) -> int:
        return len({*self._first, *self._second})


POOL_STATUS_GATE: Final = "DRAResourcePoolStatus"
"""The feature gate of answers to ResourcePoolStatusRequests; the API does not depend on it."""
_RETRIES: Final = 5
_FIRST_DELAY: Final = 0.005  # doubled with each retry, as in client-go
_CLEANUP_PERIOD: Final = dt.timedelta(minutes=10)
_ANSWERED_LIFETIME: Final = dt.timedelta(hours=1)
_PENDING_LIFETIME: Final = dt.timedelta(hours=24)


class PoolStatusController:
    """Answers each request once, when all slices of its pools exist; it gives up after five retries, as Kubernetes."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        version: KubernetesVersion,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        time_scale: float = 1.0,
    ) -> None:
        self._client = client
        self._version = version
        self._objects = informers.objects
        self._requests = informers.objects(RESOURCE_POOL_STATUS_REQUESTS)
        self._now = now
        self._time_scale = time_scale
        self._queue = WorkQueue[str]("the pool status controller", self._answer)
        self._retries: dict[str, int] = {}  # by name of the request
        informers.listen(RESOURCE_POOL_STATUS_REQUESTS, self._request_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(), name="answers")
            group.create_task(self._clean_up(), name="expiry of requests")

    def _request_changed(self, change: ObjectChange) -> None:
        name = change.object["metadata"]["name"]
        if change.type == "DELETED":
            self._retries.pop(name, None)
        elif not change.object.get("status"):
            self._queue.add(name)

    async def _answer(self, name: str) -> None:
        request = self._requests.get(("", name))
        if request is None or request.get("status"):
            return
        report = report_pools(
            request,
            self._objects(RESOURCE_SLICES).values(),
            self._objects(RESOURCE_CLAIMS).values(),
            self._objects(DEVICE_TAINT_RULES).values(),
            self._version,
        )
        if report.incomplete:
            self._try_again(name, "slices of its pools are missing")
            return
        report.status["conditions"][0]["lastTransitionTime"] = format_time(self._now())
        body = {**request, "status": report.status}
        try:
            with suppress(NotFound):
                await self._client.update(RESOURCE_POOL_STATUS_REQUESTS, body, subresource="status")
        except KubeError as error:
            self._try_again(name, str(error))
        else:
            self._retries.pop(name, None)

    def _try_again(self, name: str, problem: str) -> None:
        retries = self._retries.pop(name, 0)
        if retries == _RETRIES:
            logger.info("request for the status of pools is not answered", extra={"object": name, "reason": problem})
            return
        self._retries[name] = retries + 1
        asyncio.get_running_loop().call_later(_FIRST_DELAY * 2**retries, self._queue.add, name)

    async def _clean_up(self) -> None:
        """Delete requests an hour after their answer, or a day after they were made."""
        while True:
            for request in list(self._requests.values()):
                if self._is_expired(request):
                    name, uid = request["metadata"]["name"], request["metadata"]["uid"]
                    try:
                        await self._client.delete(RESOURCE_POOL_STATUS_REQUESTS, name, uid=uid)
                    except KubeError as error:
                        logger.debug("request not deleted", extra={"object": name, "error": str(error)})
            await asyncio.sleep(_CLEANUP_PERIOD.total_seconds() / self._time_scale)

    def _is_expired(self, request: ObjectView) -> bool:
        status = request.get("status")
        ends = [item for item in (status or {}).get("conditions") or () if item["type"] in {"Complete", "Failed"}]
        since = ends[0]["lastTransitionTime"] if ends else request["metadata"]["creationTimestamp"]
        lifetime = (_ANSWERED_LIFETIME if status else _PENDING_LIFETIME) / self._time_scale
        return self._now() - dt.datetime.fromisoformat(since) > lifetime
