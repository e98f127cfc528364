"""The controller of workloads: creates, updates and deletes what their plans say. PodGroups are protected."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    NODES,
    POD_GROUPS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)
from dra_kit.errors import Conflict, KubeError, NotFound
from dra_kit.kubernetes.resource.matching import parse_label_selector
from dra_kit.kubernetes.resource.objects import ObjectKey, is_terminal, object_key, owns
from dra_kit.kubernetes.scheduler.pod_groups import POD_GROUP_PROTECTION, group_key
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.controllers.workload_plans import (
    Availability,
    WorkloadPlan,
    is_active,
    owner_reference,
    plan_daemon_set,
    plan_deployment,
    plan_replica_set,
    plan_stateful_set,
    wanted_replicas,
)
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

WORKLOADS: Final = (DEPLOYMENTS, REPLICA_SETS, DAEMON_SETS, STATEFUL_SETS)
_BY_KIND: Final[Mapping[str, Resource]] = {resource.kind: resource for resource in (*WORKLOADS, PODS)}
COMPONENTS: Final = {resource.kind: f"{resource.kind.lower()}-controller" for resource in WORKLOADS}
"""What the controllers call themselves in Events, by kind."""
_OWNED: Final = {kind: REPLICA_SETS if kind == DEPLOYMENTS.kind else PODS for kind in COMPONENTS}
_STATEFUL_POD: Final = re.compile(r"(.*)-[0-9]+")
_Work: TypeAlias = tuple[str, ObjectKey]  # kind and object


class WorkloadController:
    """Makes pods of Deployments, ReplicaSets, DaemonSets and StatefulSets, as kube-controller-manager 1.37 does.

    Args:
        events: the recorder of each kind's controller.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        events: Mapping[str, EventRecorder],
        *,
        time_scale: float = 1.0,
    ) -> None:
        self._client = client
        self._events = events
        self._informers = informers
        self._time_scale = time_scale
        self._queue: WorkQueue[_Work] = WorkQueue("workloads", self._sync)
        self._moved: dict[str, tuple[Any, float]] = {}  # Deployments by UID: their counts, and since when
        self._timers: dict[str, asyncio.TimerHandle] = {}  # deadlines by UID
        self._waits: dict[str, asyncio.TimerHandle] = {}  # until pods are available, by UID
        self._deleted: set[str] = set()  # UIDs of pods that are on their way out
        for resource in WORKLOADS:
            informers.listen(resource, self._changed)
        informers.listen(PODS, self._owned_changed)
        informers.listen(NODES, self._node_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._queue.run()
        finally:
            for timer in (*self._timers.values(), *self._waits.values()):
                timer.cancel()

    # --- what happened

    def _changed(self, change: ObjectChange) -> None:
        self._owned_changed(change)
        if change.type == "DELETED":
            uid = change.object["metadata"]["uid"]
            self._moved.pop(uid, None)
            for timers in (self._timers, self._waits):
                if timer := timers.pop(uid, None):
                    timer.cancel()
        else:
            self._queue.add((change.object["kind"], object_key(change.object)))

    def _owned_changed(self, change: ObjectChange) -> None:
        obj, metadata = change.object, change.object["metadata"]
        if change.type == "DELETED":
            self._deleted.discard(metadata["uid"])
        for owner in metadata.get("ownerReferences", []):
            if owner.get("controller"):
                if owner["apiVersion"] == "apps/v1" and owner["kind"] in _BY_KIND:
                    self._queue.add((owner["kind"], (metadata["namespace"], owner["name"])))
                return
        if change.type != "DELETED":
            for kind, owned in _OWNED.items():
                for key, workload in (
                    self._informers.objects(_BY_KIND[kind]).items() if owned.kind == obj["kind"] else ()
                ):
                    if key[0] == metadata["namespace"] and _may_own(workload, obj):
                        self._queue.add((kind, key))

    def _node_changed(self, _: ObjectChange) -> None:
        for key in self._informers.objects(DAEMON_SETS):
            self._queue.add((DAEMON_SETS.kind, key))

    # --- what to do about it

    async def _sync(self, work: _Work) -> None:
        kind, key = work
        workload = self._informers.objects(_BY_KIND[kind]).get(key)
        if workload is None or "deletionTimestamp" in workload["metadata"]:
            return
        plan = self._plan(kind, workload, await self._claim(_OWNED[kind], workload))
        for type_, reason, note in plan.events:
            self._report(workload, type_, reason, note)
        for obj in plan.create:
            await self._create(workload, obj)
        for replica_set, size in plan.replicas:
            name, before = replica_set["metadata"]["name"], wanted_replicas(replica_set)
            await self._client.patch(REPLICA_SETS, name, {"spec": {"replicas": size}}, key[0])
            way = "up" if size > before else "down"
            note = f"Scaled {way} replica set {name} from {before} to {size}"
            self._report(workload, "Normal", "ScalingReplicaSet", note)
        for surplus in plan.delete:
            await self._delete(workload, surplus)
        await self._write_status(_BY_KIND[kind], workload, plan)
        if plan.again is not None:
            self._look_again(workload, plan.again)

    def _report(self, workload: ObjectView, type_: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        self._events[workload["kind"]].record(
            ObjectReference.to(workload), type_, reason=reason, action=reason, note=note
        )

    def _look_again(self, workload: ObjectView, seconds: float) -> None:
        uid, work = workload["metadata"]["uid"], (workload["kind"], object_key(workload))
        if timer := self._waits.pop(uid, None):
            timer.cancel()
        self._waits[uid] = asyncio.get_running_loop().call_later(seconds, self._queue.add, work)

    async def _create(self, workload: ObjectView, obj: Mapping[str, Any]) -> None:
        """Create an object of a workload, and report it."""
        kind, name = workload["kind"], obj["metadata"]["name"]
        try:
            await self._client.create(_BY_KIND[obj["kind"]], obj)
        except Conflict:  # the informer does not know of it yet, or the one before has not gone yet
            return
        except KubeError as error:
            reason, note = "FailedCreate", f"Error creating: {error.text}"
            if kind == DEPLOYMENTS.kind:
                reason, note = "ReplicaSetCreateError", f'Failed to create new replica set "{name}": {error.text}'
            elif kind == STATEFUL_SETS.kind:
                note = f"create Pod {name} in StatefulSet {workload['metadata']['name']} failed error: {error.text}"
            self._report(workload, "Warning", reason, note)
            raise
        if kind == DEPLOYMENTS.kind:
            if size := obj["spec"]["replicas"]:
                note = f"Scaled up replica set {name} from 0 to {size}"
                self._report(workload, "Normal", "ScalingReplicaSet", note)
            return
        note = f"Created pod: {name}"
        if kind == STATEFUL_SETS.kind:
            note = f"create Pod {name} in StatefulSet {workload['metadata']['name']} successful"
        self._report(workload, "Normal", "SuccessfulCreate", note)

    def _plan(self, kind: str, workload: ObjectView, owned: list[ObjectView]) -> WorkloadPlan:
        if kind == DEPLOYMENTS.kind:
            return self._deployment_plan(workload, owned)
        availability = Availability(workload, time_scale=self._time_scale)
        if kind == STATEFUL_SETS.kind:
            return plan_stateful_set(workload, owned, availability)
        namespace, own = workload["metadata"]["namespace"], {pod["metadata"]["name"] for pod in owned}
        others = {name for home, name in self._informers.objects(PODS) if home == namespace and name not in own}
        if kind == DAEMON_SETS.kind:
            nodes = list(self._informers.objects(NODES).values())
            return plan_daemon_set(workload, owned, nodes, availability, others)
        return plan_replica_set(workload, owned, availability, others)

    def _deployment_plan(self, deployment: ObjectView, sets: list[ObjectView]) -> WorkloadPlan:
        """Return the plan, with a deadline: a Deployment that makes no progress for too long is late."""
        uid, loop = deployment["metadata"]["uid"], asyncio.get_running_loop()
        counts = [deployment["metadata"]["generation"], *(item.get("status") for item in sets)]
        if uid not in self._moved or self._moved[uid][0] != counts:
            self._moved[uid] = (counts, loop.time())
        deadline = deployment["spec"].get("progressDeadlineSeconds", 600) / self._time_scale
        end = self._moved[uid][1] + deadline
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        if late := loop.time() >= end:
            return plan_deployment(deployment, sets, late=late)
        work = (DEPLOYMENTS.kind, object_key(deployment))
        self._timers[uid] = loop.call_at(end, self._queue.add, work)
        return plan_deployment(deployment, sets)

    async def _claim(self, resource: Resource, workload: ObjectView) -> list[ObjectView]:
        """Return what a workload owns, after it has adopted what matches, and released what no longer does.

        Source: Kubernetes 1.37 ``pkg/controller/controller_ref_manager.go``.
        """
        claimed, selector = [], parse_label_selector(workload["spec"]["selector"])
        for item in list(self._informers.objects(resource).values()):
            if item["metadata"]["namespace"] != workload["metadata"]["namespace"]:
                continue
            own: ObjectView | None = None
            if owns(workload, item):
                own = item if selector.matches(item) else None
                if own is None:
                    gone = {"$patch": "delete", "uid": workload["metadata"]["uid"]}
                    await self._change_owners(resource, item, gone)
            elif not _is_controlled(item) and _may_own(workload, item):
                own = await self._change_owners(resource, item, owner_reference(workload))
            if own is not None:
                claimed.append(own)
        return claimed

    async def _change_owners(
        self, resource: Resource, obj: ObjectView, reference: Mapping[str, Any]
    ) -> ObjectView | None:
        metadata = obj["metadata"]
        body = {"metadata": {"uid": metadata["uid"], "ownerReferences": [reference]}}
        with suppress(NotFound, Conflict):  # it is gone, or another one has its name
            return await self._client.patch(
                resource, metadata["name"], body, metadata["namespace"], content_type=STRATEGIC_MERGE_PATCH
            )
        return None

    async def _delete(self, workload: ObjectView, obj: ObjectView) -> None:
        metadata, kind = obj["metadata"], obj["kind"]
        with suppress(NotFound, Conflict):  # it is gone, or another one has its name
            await self._client.delete(_BY_KIND[kind], metadata["name"], metadata["namespace"], uid=metadata["uid"])
            if kind != PODS.kind or metadata["uid"] in self._deleted:
                return  # a ReplicaSet, or a pod whose deletion the informer does not know of yet
            self._deleted.add(metadata["uid"])
            note = f"Deleted pod: {metadata['name']}"
            if workload["kind"] == STATEFUL_SETS.kind:
                note = f"delete Pod {metadata['name']} in StatefulSet {workload['metadata']['name']} successful"
            self._report(workload, "Normal", "SuccessfulDelete", note)

    async def _write_status(self, resource: Resource, workload: ObjectView, plan: WorkloadPlan) -> None:
        """Write status and annotations where they have changed."""
        namespace, name = object_key(workload)
        uid = workload["metadata"]["uid"]
        annotations = workload["metadata"].get("annotations") or {}
        if any(annotations.get(key) != value for key, value in plan.annotations.items()):
            body = {"metadata": {"uid": uid, "annotations": dict(plan.annotations)}}
            await self._client.patch(resource, name, body, namespace)
        former = workload.get("status") or {}
        if any(former.get(key, 0) != value for key, value in plan.status.items()):
            body = {"metadata": {"uid": uid}, "status": dict(plan.status)}
            await self._client.patch(resource, name, body, namespace, subresource="status")


def _is_controlled(obj: ObjectView) -> bool:
    return any(item.get("controller") for item in obj["metadata"].get("ownerReferences", ()))


def _may_own(workload: ObjectView, obj: ObjectView) -> bool:
    """Return whether a workload adopts an object that no controller owns."""
    selector = parse_label_selector(workload["spec"]["selector"])
    if "deletionTimestamp" in obj["metadata"] or not selector.matches(obj):
        return False
    if workload["kind"] == STATEFUL_SETS.kind:
        match = _STATEFUL_POD.fullmatch(obj["metadata"]["name"])
        return match is not None and match[1] == workload["metadata"]["name"]
    return workload["kind"] != REPLICA_SETS.kind or is_active(obj)


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
