"""The life of one pod on a node: claims, init containers, containers, deletion.

The rules are those of ``pkg/kubelet/kuberuntime/kuberuntime_manager.go`` (computePodActions) of Kubernetes 1.37.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import math
import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from dra_kit.client.api import STRATEGIC_MERGE_PATCH
from dra_kit.client.resources import PODS
from dra_kit.errors import Conflict, KubeError, KubeletError, NotFound
from dra_kit.kubernetes.resource.objects import (
    containers,
    ephemeral_containers,
    grace_seconds,
    init_containers,
    is_deleted,
    is_sidecar,
    is_terminal,
    pod_reference,
    remaining_seconds,
    should_restart,
)
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.runtime import ContainerStatus, SandboxConfig
from dra_kit.sandbox.kubelet.container_starter import (
    ContainerStarter,
    PodWorkerServices,
    exit_status,
    record_pod_event,
    retry_seconds,
)
from dra_kit.sandbox.kubelet.pod_status import ContainerHealth, ObservedPod, Sandbox, pod_status, status_patch
from dra_kit.sandbox.kubelet.probes import PodProbes
from dra_kit.sandbox.records import ContainerEnded, ContainerReference, ContainerUpdated, HookFailed, PodTerminating

log: logging.Logger = logging.getLogger(__name__)
RESYNC_SECONDS: Final = 60.0
"""Seconds until a pod whose claims could not be prepared is tried again, up to half as long again."""
_DEADLINE: Final = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
_FIRST_MOUNT_DELAY: Final = 0.5  # doubled after each failure (kubelet 1.37, exponentialbackoff)
_LAST_MOUNT_DELAY: Final = 122.0
_LEAST_GRACE: Final = 2.0  # what the kubelet gives a container even when a pod's deletion gives it none


class PodWorker:
    """Reconciles one pod, step by step."""

    def __init__(self, services: PodWorkerServices, pod: ObjectView) -> None:
        self._services = services
        self._pod = pod
        self._who = pod_reference(pod)
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._gone = False
        self._prepared = False
        self._ended = False
        self._late = False
        self._terminating = False
        self._released = False
        self._mounted = False
        self._volumes_until = -math.inf
        self._mount_delay = _FIRST_MOUNT_DELAY
        self._ended_containers: set[str] = set()  # containers whose end was reported
        self._stopping: set[str] = set()
        self._reported: Mapping[str, Any] | None = None
        self._starter = ContainerStarter(services)
        self._probes = PodProbes(
            services.runtime,
            services.recorder,
            address=services.node.address,
            version=services.version,
            time_scale=services.time_scale,
            changed=self.wake,
        )

    def wake(self) -> None:
        """Wake up: something of the pod changed."""
        self._idle.clear()
        self._news.set()

    async def idle(self) -> None:
        """Wait until all that is known of the pod has been acted on, or has failed and is tried again later."""
        await self._idle.wait()

    def update(self, pod: ObjectView) -> None:
        """Take a new state of the object; changes that the kubelet wrote itself do not trigger a sync."""
        if _version(pod) < _version(self._pod):
            return  # the answer to a write was quicker than the watch
        if _requested(pod) != _requested(self._pod):
            self.wake()
        self._pod = pod

    def vanish(self) -> None:
        """Terminate a pod whose object is gone, and clean up what is left of it."""
        self._gone = True
        self.wake()

    def report_containers(self) -> None:
        """Record containers that have ended, or have other resources."""
        node = self._services.node.name
        for status in self._statuses():
            container = ContainerReference(self._who, status.name, status.id)
            if status.resources != self._starter.resources.setdefault(status.id, status.resources):
                self._starter.resources[status.id] = status.resources
                self._services.observer(ContainerUpdated(node=node, container=container, resources=status.resources))
            if status.exit is not None and status.id not in self._ended_containers:
                self._ended_containers.add(status.id)
                self._services.observer(ContainerEnded(node=node, container=container, exit=exit_status(status.exit)))

    async def run(self) -> None:
        """Work until the object is gone and nothing of the pod is left on the node."""
        try:
            await self._run()
        finally:
            self._probes.close()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                pause = await self._step()
            except KubeError as error:
                log.warning("pod %s has to wait: %s", self._who, error)
                pause = retry_seconds(self._services.time_scale)
            if self._gone and self._released:
                break
            if not self._news.is_set():
                self._idle.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
        self._services.runtime.remove(self._who.uid)
        self._services.volumes.remove(self._who.uid)
        self._idle.set()

    async def _step(self) -> float | None:
        """Take one step; return the maximum seconds until the next step, None to wait for a change."""
        self.report_containers()
        self._report_deletion()
        if self._terminating or self._ended or is_terminal(self._pod):
            return await self._end()
        remaining = remaining_seconds(self._pod, dt.datetime.now(dt.UTC))
        if remaining is not None and remaining <= 0:
            record_pod_event(self._services.recorder, self._pod, "Normal", *_DEADLINE)
            self._ended = self._late = True
            return await self._end()
        pause = await self._work()
        # the status that was just written may be the one with the start of the pod
        remaining = remaining_seconds(self._pod, dt.datetime.now(dt.UTC))
        return min((wait for wait in (pause, remaining) if wait is not None), default=None)

    async def _work(self) -> float | None:
        """Take one step of a pod that is to run."""
        if (pause := await self._set_up_volumes()) is not None:
            await self._report()
            return pause
        if not self._prepared and self._is_to_begin():
            self._services.runtime.expect(self._pod)
            try:
                await self._services.manager.prepare(self._pod)
            except KubeletError as error:
                note = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
                record_pod_event(self._services.recorder, self._pod, "Warning", "FailedPrepareDynamicResources", note)
                await self._report()
                return RESYNC_SECONDS * random.uniform(1.0, 1.5) / self._services.time_scale  # noqa: S311 - no secret
            self._prepared = True
        latest = self._latest()
        health = self._probes.health(self._pod, self._statuses())
        self._stop_unhealthy(health, latest)
        next_steps = plan_containers(self._pod, latest, {name for name, item in health.items() if not item.started})
        if next_steps.ended:
            self._ended = True
            return await self._end()
        try:
            await self._services.runtime.run_sandbox(sandbox_config(self._pod))
        except KubeletError as error:
            self._services.observer(HookFailed(node=self._services.node.name, pod=self._who, message=str(error)))
            note = f"Failed to create pod sandbox: {error}"
            record_pod_event(self._services.recorder, self._pod, "Warning", "FailedCreatePodSandBox", note)
            await self._report()
            return retry_seconds(self._services.time_scale)
        waits = [
            wait
            for container in (*init_containers(self._pod), *containers(self._pod))
            if container["name"] in next_steps.start
            and (wait := await self._starter.start(self._pod, container, latest.get(container["name"]))) is not None
        ]
        for container in ephemeral_containers(self._pod):  # they start at any time, and once
            if container["name"] not in latest:
                wait = await self._starter.start(self._pod, container, None)
                waits += [] if wait is None else [wait]
        self._probes.follow(self._pod, self._statuses())
        await self._report()
        if self._volumes_until < math.inf:
            waits.append(self._volumes_until - asyncio.get_running_loop().time())
        return min(waits, default=None)

    async def _set_up_volumes(self) -> float | None:
        """Set up volumes that are missing or have old tokens; return seconds to wait for those that the pod needs."""
        now = asyncio.get_running_loop().time()
        if now < self._volumes_until:
            return None
        try:
            seconds = await self._services.volumes.set_up(self._pod)
        except KubeletError as error:
            record_pod_event(self._services.recorder, self._pod, "Warning", "FailedMount", str(error))
            wait = self._mount_delay / self._services.time_scale
            self._mount_delay = min(self._mount_delay * 2, _LAST_MOUNT_DELAY)
            if not self._mounted:
                return wait
            self._volumes_until = now + wait  # the containers still have the last token
            return None
        self._mounted, self._mount_delay = True, _FIRST_MOUNT_DELAY
        self._volumes_until = now + seconds / self._services.time_scale
        return None

    def _is_to_begin(self) -> bool:
        """Return whether the pod has to be started: it has not run yet, or the node lost power while it ran."""
        statuses = self._statuses()
        return all(item.before_boot for item in statuses) and not plan_containers(self._pod, self._latest()).ended

    async def _end(self) -> float | None:
        """Take one step of the pod's termination: containers, claims, status, object."""
        self._probes.follow(self._pod, self._statuses())
        if self._stop_containers():
            if not self._gone:
                await self._report()
            return None
        await self._services.runtime.stop_sandbox(self._who.uid)
        if not self._released:
            try:
                await self._services.manager.release(self._who.uid)
            except KubeletError as error:
                log.warning("pod %s stays: unprepare dynamic resources: %s", self._who, error)
                if not self._gone:
                    await self._report()
                return retry_seconds(self._services.time_scale)
            self._released = True
        if self._gone:
            return None
        if not is_terminal(self._pod):
            await self._report()
        if is_deleted(self._pod):
            with suppress(NotFound, Conflict):  # gone already, or another pod has its name
                await self._services.client.delete(
                    PODS, self._who.name, self._who.namespace, uid=self._who.uid, grace_period_seconds=0
                )
        return None

    def _stop_unhealthy(self, health: Mapping[str, ContainerHealth], latest: Mapping[str, ContainerStatus]) -> None:
        """Terminate containers whose startup or liveness probe has failed; those to be restarted start again."""
        for name, item in health.items():
            status = latest[name]
            if not item.failed or status.id in self._stopping:
                continue
            self._stopping.add(status.id)
            note = f"Container {name} failed {item.failed} probe, will be restarted"
            record_pod_event(self._services.recorder, self._pod, "Normal", "Killing", note, container=name)
            grace = grace_seconds(self._pod) if item.grace is None else item.grace
            self._services.runtime.stop(status.id, max(grace, _LEAST_GRACE) / self._services.time_scale)

    def _stop_containers(self) -> bool:
        """Terminate running containers, sidecars after all others; return whether any container still runs."""
        running = {status.name: status for status in self._statuses() if status.running}
        others = (*containers(self._pod), *ephemeral_containers(self._pod))
        first = [name for item in others if (name := item["name"]) in running]
        beside = [name for item in reversed(init_containers(self._pod)) if (name := item["name"]) in running]
        # of a pod whose object was gone when the kubelet started, only the names are known
        grace = max(grace_seconds(self._pod), _LEAST_GRACE) / self._services.time_scale
        for name in first or beside[:1] or running:
            status = running[name]
            if status.id not in self._stopping:
                self._stopping.add(status.id)
                note = f"Stopping container {name}"
                record_pod_event(self._services.recorder, self._pod, "Normal", "Killing", note, container=name)
            self._services.runtime.stop(status.id, grace)
        return bool(running)

    def _statuses(self) -> Sequence[ContainerStatus]:
        return self._services.runtime.containers(self._who.uid)

    def _sandbox(self) -> Sandbox:
        if self._services.runtime.has_sandbox(self._who.uid):
            return "ready"
        return "stopped" if self._statuses() or (self._prepared and self._released) else "none"

    def _latest(self) -> dict[str, ContainerStatus]:
        return {status.name: status for status in self._statuses()}

    def _report_deletion(self) -> None:
        if not self._terminating and (self._gone or is_deleted(self._pod)):
            self._terminating = True
            self._services.observer(PodTerminating(node=self._services.node.name, pod=self._who))

    async def _report(self) -> None:
        """Write the pod's status, when it says something new."""
        statuses = self._statuses()
        seen = ObservedPod(
            containers=statuses,
            waiting=self._starter.waiting,
            sandbox=self._sandbox(),
            devices={
                item["name"]: self._services.manager.allocated_resources(self._pod, item)
                for item in containers(self._pod)
            },
            terminated=self._released,
            health=self._probes.health(self._pod, statuses),
            failure=_DEADLINE if self._late else None,
        )
        status = pod_status(self._pod, seen, now=dt.datetime.now(dt.UTC), address=self._services.node.address)
        if status == self._reported:
            return
        body = {"metadata": {"uid": self._who.uid}, "status": status_patch(self._pod, status)}
        try:
            written = await self._services.client.patch(
                PODS,
                self._who.name,
                body,
                self._who.namespace,
                content_type=STRATEGIC_MERGE_PATCH,
                subresource="status",
            )
        except (NotFound, Conflict):  # gone, or another pod has its name: the watch reports it
            return
        self._reported = status
        self.update(written)


def sandbox_config(pod: ObjectView) -> SandboxConfig:
    """Return the sandbox that a pod's containers need."""
    who, metadata = pod_reference(pod), pod["metadata"]
    quality = (pod.get("status") or {}).get("qosClass", "BestEffort").lower()
    of_class = "" if quality == "guaranteed" else f"-{quality}"
    return SandboxConfig(
        pod=who,
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        cgroup_parent=f"kubepods{of_class}-pod{who.uid.replace('-', '_')}.slice",
        host_network=bool(pod["spec"].get("hostNetwork")),
    )


def _version(pod: ObjectView) -> int:
    # Kubernetes promises that versions of one resource compare as integers (KEP-5504)
    return int(pod["metadata"].get("resourceVersion") or 0)


def _requested(pod: ObjectView) -> tuple[Any, ...]:
    """Return what others ask of a pod, as far as a kubelet acts on it."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    gates = {gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()}
    return (
        pod["spec"],
        metadata.get("deletionTimestamp"),
        metadata.get("deletionGracePeriodSeconds"),
        metadata.get("annotations"),
        metadata.get("labels"),
        status.get("resourceClaimStatuses"),
        status.get("extendedResourceClaimStatus"),
        [(item["type"], item["status"]) for item in status.get("conditions") or () if item["type"] in gates],
    )


class ContainerPlan(Struct, frozen=True):
    """The next actions for the containers of a pod.

    Attributes:
        start: containers to start, in this order; those that exited before only after their back-off.
        ended: every regular container has exited for the last time, so sidecars have to be stopped.
    """

    start: tuple[str, ...] = ()
    ended: bool = False


def plan_containers(
    pod: ObjectView, latest: Mapping[str, ContainerStatus], unstarted: Collection[str] = ()
) -> ContainerPlan:
    """Return the actions to take for a pod that is not being deleted.

    ``unstarted`` are running containers whose startup probe has not succeeded yet.

    Init containers run one after the other: each must succeed before the next starts; a sidecar only needs to have
    started. The regular containers then start together. Init containers other than sidecars are not run again once a
    regular container has started, even if it failed.
    """
    start: list[str] = []
    begun = any(container["name"] in latest for container in containers(pod))
    for container in init_containers(pod):
        status = latest.get(container["name"])
        if is_sidecar(container):
            is_up = status is not None and status.running
            if not is_up:
                start.append(container["name"])
            if container.get("startupProbe") and not begun and (not is_up or container["name"] in unstarted):
                return ContainerPlan(tuple(start))
            continue
        if begun:
            continue
        if status is None:
            return ContainerPlan((*start, container["name"]))
        if status.exit is None:
            return ContainerPlan(tuple(start))
        if status.exit.code == 0:
            continue
        if should_restart(pod, container, status.exit.code):
            return ContainerPlan((*start, container["name"]))
        return ContainerPlan(ended=True)
    return _plan_regular(pod, latest, start)


def _plan_regular(pod: ObjectView, latest: Mapping[str, ContainerStatus], start: Sequence[str]) -> ContainerPlan:
    """Return the actions for a pod whose init containers are done; ``start`` are sidecars to start."""
    started = list(start)
    ended = True
    for container in containers(pod):
        status = latest.get(container["name"])
        if status is None or (status.exit is not None and should_restart(pod, container, status.exit.code)):
            started.append(container["name"])
            ended = False
        elif status.exit is None:
            ended = False
    return ContainerPlan(ended=True) if ended else ContainerPlan(tuple(started))
