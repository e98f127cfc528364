"""The controller of workloads: creates, updates and deletes what their plans say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import DAEMON_SETS, DEPLOYMENTS, NODES, PODS, REPLICA_SETS, STATEFUL_SETS, Resource
from dra_kit.errors import Conflict, KubeError, NotFound
from dra_kit.kubernetes.resource.objects import ObjectKey, object_key, owns
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.controllers.workload_plans import (
    WorkloadPlan,
    plan_daemon_set,
    plan_deployment,
    plan_replica_set,
    plan_stateful_set,
)
from dra_kit.sandbox.controllers.workqueue import WorkQueue
from dra_kit.sandbox.informers import SharedInformers

WORKLOADS: Final = (DEPLOYMENTS, REPLICA_SETS, DAEMON_SETS, STATEFUL_SETS)
_BY_KIND: Final[Mapping[str, Resource]] = {resource.kind: resource for resource in (*WORKLOADS, PODS)}
COMPONENT: Final = "workloads"
_Work: TypeAlias = tuple[str, ObjectKey]  # kind and object


class WorkloadController:
    """Makes pods of Deployments, ReplicaSets, DaemonSets and StatefulSets, as kube-controller-manager 1.37 does."""

    def __init__(
        self, client: Client, informers: SharedInformers, events: EventRecorder, *, time_scale: float = 1.0
    ) -> None:
        self._client = client
        self._events = events
        self._informers = informers
        self._time_scale = time_scale
        self._queue: WorkQueue[_Work] = WorkQueue("workloads", self._sync)
        self._moved: dict[str, tuple[Any, float]] = {}  # Deployments by UID: their counts, and since when
        self._timers: dict[str, asyncio.TimerHandle] = {}
        for resource in WORKLOADS:
            informers.listen(resource, self._changed)
        informers.listen(PODS, self._owned_changed)
        informers.listen(NODES, self._node_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._queue.run()
        finally:
            for timer in self._timers.values():
                timer.cancel()

    # --- what happened

    def _changed(self, change: ObjectChange) -> None:
        self._owned_changed(change)
        if change.type == "DELETED":
            uid = change.object["metadata"]["uid"]
            self._moved.pop(uid, None)
            if timer := self._timers.pop(uid, None):
                timer.cancel()
        else:
            self._queue.add((change.object["kind"], object_key(change.object)))

    def _owned_changed(self, change: ObjectChange) -> None:
        metadata = change.object["metadata"]
        for owner in metadata.get("ownerReferences", []):
            if owner.get("controller") and owner["apiVersion"] == "apps/v1" and owner["kind"] in _BY_KIND:
                self._queue.add((owner["kind"], (metadata["namespace"], owner["name"])))

    def _node_changed(self, _: ObjectChange) -> None:
        for key in self._informers.objects(DAEMON_SETS):
            self._queue.add((DAEMON_SETS.kind, key))

    # --- what to do about it

    async def _sync(self, work: _Work) -> None:
        kind, key = work
        workload = self._informers.objects(_BY_KIND[kind]).get(key)
        if workload is None or "deletionTimestamp" in workload["metadata"]:
            return
        plan = self._plan(kind, workload)
        for obj in plan.create:
            try:
                await self._client.create(_BY_KIND[obj["kind"]], obj)
            except Conflict:  # the informer does not know of it yet, or the one before has not gone yet
                pass
            except KubeError as error:
                self._events.record(
                    ObjectReference.to(workload), "Warning", reason="FailedCreate", action="Create",
                    note=f"Error creating: {error.message}",
                )  # fmt: skip
                raise
        for replica_set, size in plan.replicas:
            await self._client.patch(
                REPLICA_SETS, replica_set["metadata"]["name"], {"spec": {"replicas": size}}, key[0]
            )
        for surplus in plan.delete:
            await self._delete(surplus)
        await self._write_status(_BY_KIND[kind], workload, plan)

    def _plan(self, kind: str, workload: ObjectView) -> WorkloadPlan:
        # of the first workload: in many clusters there are pods alone
        if kind == DEPLOYMENTS.kind:
            return self._deployment_plan(workload)
        pods = self._owned(PODS, workload)
        if kind == DAEMON_SETS.kind:
            return plan_daemon_set(workload, pods, list(self._informers.objects(NODES).values()))
        if kind == STATEFUL_SETS.kind:
            return plan_stateful_set(workload, pods)
        return plan_replica_set(workload, pods)

    def _deployment_plan(self, deployment: ObjectView) -> WorkloadPlan:
        """Return the plan, with a deadline: a Deployment that makes no progress for too long is late."""
        sets, uid = self._owned(REPLICA_SETS, deployment), deployment["metadata"]["uid"]
        loop = asyncio.get_running_loop()
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

    def _owned(self, resource: Resource, owner: ObjectView) -> list[ObjectView]:
        return [item for item in self._informers.objects(resource).values() if owns(owner, item)]

    async def _delete(self, obj: ObjectView) -> None:
        metadata = obj["metadata"]
        with suppress(NotFound, Conflict):  # it is gone, or another one has its name
            await self._client.delete(
                _BY_KIND[obj["kind"]], metadata["name"], metadata["namespace"], uid=metadata["uid"]
            )

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
