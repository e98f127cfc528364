"""Starts the containers of a pod again and again: configuration, back-off, Events."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.resources import CONFIG_MAPS, SECRETS, SERVICES
from dra_kit.errors import KubeletError, UnresolvableDevices
from dra_kit.kubelet.cdi.resolution import load_specs
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource.objects import (
    ephemeral_containers,
    init_containers,
    object_key,
    pod_reference,
    should_restart,
)
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.images import ImageStore
from dra_kit.sandbox.containers.process_runtime import ProcessRuntime
from dra_kit.sandbox.containers.runtime import (
    ContainerConfig,
    ContainerExit,
    ContainerStatus,
    HookResources,
    ImageMissing,
)
from dra_kit.sandbox.kubelet.claim_manager import ClaimManager
from dra_kit.sandbox.kubelet.environment import (
    OWN_SERVICE,
    NodeFacts,
    container_environment,
    expand_variables,
    service_variables,
)
from dra_kit.sandbox.kubelet.pod_status import Waiting
from dra_kit.sandbox.kubelet.volumes import PodVolumes
from dra_kit.sandbox.records import ContainerReference, ContainerStarted, ExitStatus, HookFailed, RecordObserver

_HOSTNAME_LENGTH: Final = 63
RETRY_SECONDS: Final = 10.0
"""Seconds until a pod is looked at again after an error, up to half as long again."""


def retry_seconds(time_scale: float) -> float:
    """Return ``RETRY_SECONDS`` with its jitter, scaled."""
    return RETRY_SECONDS * random.uniform(1.0, 1.5) / time_scale  # noqa: S311 - no secret


class PodWorkerServices(Struct, frozen=True):
    """What the workers of one node share; of the CDI directories, the last one has the highest priority."""

    client: Client
    node: NodeFacts
    version: KubernetesVersion
    manager: ClaimManager
    cdi_directories: Sequence[Path]
    runtime: ProcessRuntime
    volumes: PodVolumes
    images: ImageStore
    recorder: EventRecorder
    observer: RecordObserver
    time_scale: float


class ContainerStarter:
    """Starts containers of one pod.

    Attributes:
        waiting: why containers that should run do not run.
        resources: what hooks had set when it was last recorded, by the runtime's ID of the container.
    """

    def __init__(self, services: PodWorkerServices) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.resources: dict[str, HookResources] = {}
        self._services = services
        self._backoff = CrashBackoff(services.time_scale)

    async def start(self, pod: ObjectView, container: ObjectView, previous: ContainerStatus | None) -> float | None:
        """Start a container, unless it has to wait; return seconds after which to try again, None when it was started.

        ``previous`` is its last run, which has ended; None for the first.
        """
        name = container["name"]
        if previous is not None and previous.exit is not None:
            remaining = self._backoff.remaining(name, previous.started, previous.exit.at, dt.datetime.now(dt.UTC))
            if remaining > 0:
                self._wait_for_backoff(pod, name)
                return remaining
        if reason := self._services.images.lacking(pod, container):
            return self._fail(pod, name, "ErrImageNeverPull", reason)
        try:
            config = await self._config(pod, container, 0 if previous is None else previous.attempt + 1)
        except KubeletError as error:
            return self._fail(pod, name, "CreateContainerConfigError", str(error))
        except UnresolvableDevices as error:
            self._pulled(pod, container)
            refusal = f"CDI device injection failed: {error}"
            return self._fail(pod, name, "CreateContainerError", f"failed to create containerd container: {refusal}")
        self._pulled(pod, container)
        try:
            status = await self._services.runtime.run(config)
        except ImageMissing as error:
            return self._fail(pod, name, "ErrImageNeverPull", str(error))
        except KubeletError as error:
            node = self._services.node.name
            self._services.observer(HookFailed(node=node, pod=config.pod, container=name, message=str(error)))
            return self._fail(pod, name, "CreateContainerError", f"failed to create containerd container: {error}")
        record_pod_event(self._services.recorder, pod, "Normal", "Created", "Container created", container=name)
        if previous is not None:
            self._backoff.restarted(name)
        self.resources[status.id] = status.resources
        self._services.observer(
            ContainerStarted(
                node=self._services.node.name,
                container=ContainerReference(config.pod, name, status.id),
                attempt=config.attempt,
                image=config.image,
                command=config.command,
                environment=status.environment,
                cdi_devices=config.cdi_devices,
                from_claims=config.edits,
                from_hooks=status.hook_edits,
                edits_applied=status.edits_applied,
                hooks_applied=status.hooks_applied,
                stand_ins=status.stand_ins,
                resources=status.resources,
                interfaces=self._services.runtime.moved_interfaces(config.pod.uid),
                interfaces_applied=self._services.runtime.network_namespaces,
                exit=exit_status(status.exit) if status.exit else None,
            )
        )
        if status.exit is not None and status.exit.reason == "StartError":
            wait = self._fail(pod, name, "RunContainerError", status.exit.message)
            return wait if should_restart(pod, container, status.exit.code) else 0.0
        record_pod_event(self._services.recorder, pod, "Normal", "Started", "Container started", container=name)
        self.waiting.pop(name, None)
        return None

    async def _config(self, pod: ObjectView, container: ObjectView, attempt: int) -> ContainerConfig:
        """Return the config of a container.

        Raises:
            KubeletError: a claim is not known, or the environment refers to something that is not there.
            UnresolvableDevices: no spec file defines a CDI device.
            KubeError: the API server did not give a ConfigMap or Secret.
        """
        cdi_devices = self._services.manager.cdi_devices(pod, container)
        node = replace(self._services.node, services=await self._service_links(pod))
        variables = await container_environment(pod, container, node, self._fetch)
        image = self._services.images.find(container.get("image") or "")
        command, arguments = container.get("command") or (), container.get("args") or ()
        known = self._services.images.command(container)
        words = known or (*command, *arguments)
        spec = pod["spec"]
        own_name = self._services.node.name if spec.get("hostNetwork") else ""  # with the network goes the host name
        return ContainerConfig(
            pod=pod_reference(pod),
            name=container["name"],
            attempt=attempt,
            image=container.get("image", ""),
            command=tuple(expand_variables(word, variables) for word in words),
            arguments_only=bool(arguments and not known),
            working_directory=container.get("workingDir") or "",
            hostname=(own_name or spec.get("hostname") or pod["metadata"]["name"])[:_HOSTNAME_LENGTH],
            environment=variables,
            cdi_devices=cdi_devices,
            mounts=await self._services.volumes.mounts(pod, container, variables),
            privileged=bool((container.get("securityContext") or {}).get("privileged")),
            stdin=bool(container.get("stdin")),
            stdin_once=bool(container.get("stdinOnce")),
            terminal=bool(container.get("tty")),
            local_image=image,
            # do not read all spec files for a container without devices
            **({"edits": load_specs(self._services.cdi_directories).resolve(cdi_devices)} if cdi_devices else {}),
        )

    async def _service_links(self, pod: ObjectView) -> dict[str, str]:
        """Return the variables of the Services of a pod's namespace, and of the API server."""
        own = self._services.node.services
        if pod["spec"].get("enableServiceLinks") is False:
            return dict(own)
        services = (await self._services.client.list(SERVICES, pod["metadata"]["namespace"])).items
        found = {
            name: value
            for service in services
            if object_key(service) != OWN_SERVICE
            for name, value in service_variables(service).items()
        }
        return {**found, **own}

    async def _fetch(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return await self._services.client.get(CONFIG_MAPS if kind == "ConfigMap" else SECRETS, name, namespace)

    def _pulled(self, pod: ObjectView, container: ObjectView) -> None:
        image = container.get("image", "")
        note = f'Container image "{image}" already present on machine and can be accessed by the pod'
        record_pod_event(self._services.recorder, pod, "Normal", "Pulled", note, container=container["name"])

    def _wait_for_backoff(self, pod: ObjectView, name: str) -> None:
        who = pod_reference(pod)
        delay = _go_duration(self._backoff.delay(name))
        where = f"{who.name}_{who.namespace}({who.uid})"
        message = f"back-off {delay} restarting failed container={name} pod={where}"
        if self.waiting.get(name) != ("CrashLoopBackOff", message):
            note = f"Back-off restarting failed container {name} in pod {where}"
            record_pod_event(self._services.recorder, pod, "Warning", "BackOff", note, container=name)
        self.waiting[name] = ("CrashLoopBackOff", message)

    def _fail(self, pod: ObjectView, name: str, reason: str, message: str) -> float:
        record_pod_event(self._services.recorder, pod, "Warning", "Failed", f"Error: {message}", container=name)
        self.waiting[name] = (reason, message)
        return retry_seconds(self._services.time_scale)


def exit_status(found: ContainerExit) -> ExitStatus:
    """Return how a container ended, as a record says it."""
    return ExitStatus(found.code, found.reason, found.message)


def _go_duration(seconds: float) -> str:
    """Return whole seconds as Go prints them: ``40s``, ``1m20s``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


FIRST_DELAY: Final = 10.0
LAST_DELAY: Final = 300.0
_FORGOTTEN_AFTER: Final = 600.0  # seconds a container has to run for its earlier ends to be forgotten


class CrashBackoff:
    """The back-off of each container of one pod (Kubernetes 1.37: 10 s, twice as long each time, at most 5 minutes).

    The first restart is immediate. All waits are divided by ``time_scale``.
    """

    def __init__(self, time_scale: float = 1.0) -> None:
        self._time_scale = time_scale
        self._delays: dict[str, float] = {}

    def remaining(self, container: str, started: dt.datetime, ended: dt.datetime, now: dt.datetime) -> float:
        """Return the seconds until an exited container may start again, 0 if it may start now."""
        if (ended - started).total_seconds() >= _FORGOTTEN_AFTER / self._time_scale:
            self._delays.pop(container, None)
        return max(0.0, self.delay(container) / self._time_scale - (now - ended).total_seconds())

    def delay(self, container: str) -> float:
        """Return the unscaled seconds between the container's last exit and its next start."""
        return self._delays.get(container, 0.0)

    def restarted(self, container: str) -> None:
        """Note that the container starts again: the next wait is longer."""
        before = self._delays.get(container)
        self._delays[container] = FIRST_DELAY if before is None else min(before * 2, LAST_DELAY)


_ACTIONS: Final = {
    "FailedMount": "Mount",
    "FailedPrepareDynamicResources": "Prepare",
    "FailedCreatePodSandBox": "Start",
    "Pulled": "Pull",
    "Created": "Create",
    "Started": "Start",
    "Failed": "Start",
    "BackOff": "Restart",
    "Killing": "Stop",
    "Unhealthy": "Probe",
    "DeadlineExceeded": "Stop",
}


def record_pod_event(
    recorder: EventRecorder,
    pod: ObjectView,
    type: Literal["Normal", "Warning"],  # noqa: A002 - the API's word
    reason: str,
    note: str,
    *,
    container: str = "",
) -> None:
    """Record an Event about a container, or about the pod as a whole if ``container`` is empty."""
    who = pod_reference(pod)
    part = ""
    if container:
        fields = (("initContainers", init_containers(pod)), ("ephemeralContainers", ephemeral_containers(pod)))
        found = (field for field, items in fields if any(item["name"] == container for item in items))
        part = f"spec.{next(found, 'containers')}{{{container}}}"
    regarding = ObjectReference("v1", "Pod", who.name, who.uid, who.namespace, part)
    recorder.record(regarding, type, reason=reason, action=_ACTIONS[reason], note=note)
