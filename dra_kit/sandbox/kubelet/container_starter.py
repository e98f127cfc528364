"""Starts the containers of one pod, with the Events, the reasons to wait and the back-off of the real kubelet."""

from __future__ import annotations

import datetime as dt
import random
from typing import Final

from dra_kit.client.events import EventRecorder
from dra_kit.errors import KubeletError, UnresolvableDevices
from dra_kit.kubernetes.resource.objects import pod_reference, should_restart
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster.kubelet.activity import ContainerStarted, Observer
from dra_kit.sandbox.cluster.kubelet.dra.claims import ClaimManager
from dra_kit.sandbox.cluster.kubelet.pods.backoff import CrashBackoff
from dra_kit.sandbox.cluster.kubelet.pods.container_config import ContainerConfigurator
from dra_kit.sandbox.cluster.kubelet.pods.pod_events import record
from dra_kit.sandbox.cluster.kubelet.pods.pod_status import Waiting
from dra_kit.sandbox.cluster.kubelet.pods.runtime import ContainerRuntime, ContainerStatus

RETRY_SECONDS: Final = 10.0
"""Seconds until a pod is looked at again after an error, up to half as long again."""


def retry_seconds(time_scale: float) -> float:
    """Return ``RETRY_SECONDS`` with its jitter, scaled."""
    return RETRY_SECONDS * random.uniform(1.0, 1.5) / time_scale  # noqa: S311 - no secret


class ContainerStarter:
    """Starts containers of one pod.

    Args:
        manager: knows the CDI devices of the pod's claims.
        configurator: makes the configs.
        runtime: runs them.
        recorder: takes the Events.
        observer: is notified.
        time_scale: all waits are divided by this.

    Attributes:
        waiting: why containers do not run that should, by name.
    """

    def __init__(
        self,
        manager: ClaimManager,
        configurator: ContainerConfigurator,
        runtime: ContainerRuntime,
        recorder: EventRecorder,
        observer: Observer,
        *,
        time_scale: float,
    ) -> None:
        self.waiting: dict[str, Waiting] = {}
        self._manager = manager
        self._configurator = configurator
        self._runtime = runtime
        self._recorder = recorder
        self._observe = observer
        self._time_scale = time_scale
        self._backoff = CrashBackoff(time_scale)

    async def start(self, pod: ObjectView, container: ObjectView, previous: ContainerStatus | None) -> float | None:
        """Start a container, unless it has to wait.

        Args:
            pod: the object.
            container: of the pod.
            previous: its last run, which has ended; None for the first.

        Returns:
            Seconds after which to try again; None when it was started.
        """
        name = container["name"]
        if previous is not None and previous.exit is not None:
            remaining = self._backoff.remaining(name, previous.started, previous.exit.at, dt.datetime.now(dt.UTC))
            if remaining > 0:
                self._wait_for_backoff(pod, name)
                return remaining
        try:
            config = await self._configurator.config(
                pod,
                container,
                attempt=0 if previous is None else previous.attempt + 1,
                cdi_devices=self._manager.cdi_devices(pod, container),
            )
        except KubeletError as error:
            return self._fail(pod, name, "CreateContainerConfigError", str(error))
        except UnresolvableDevices as error:
            self._pulled(pod, container)
            refusal = f"CDI device injection failed: {error}"
            return self._fail(pod, name, "CreateContainerError", f"failed to create containerd container: {refusal}")
        self._pulled(pod, container)
        record(self._recorder, pod, "Normal", "Created", "Container created", container=name)
        if previous is not None:
            self._backoff.restarted(name)
        status = await self._runtime.run(config)
        self._observe(ContainerStarted(config, status))
        if status.exit is not None and status.exit.reason == "StartError":
            wait = self._fail(pod, name, "RunContainerError", status.exit.message)
            return wait if should_restart(pod, container, status.exit.code) else 0.0
        record(self._recorder, pod, "Normal", "Started", "Container started", container=name)
        self.waiting.pop(name, None)
        return None

    def _pulled(self, pod: ObjectView, container: ObjectView) -> None:
        image = container.get("image", "")
        note = f'Container image "{image}" already present on machine and can be accessed by the pod'
        record(self._recorder, pod, "Normal", "Pulled", note, container=container["name"])

    def _wait_for_backoff(self, pod: ObjectView, name: str) -> None:
        who = pod_reference(pod)
        delay = _go_duration(self._backoff.delay(name))
        where = f"{who.name}_{who.namespace}({who.uid})"
        message = f"back-off {delay} restarting failed container={name} pod={where}"
        if self.waiting.get(name) != ("CrashLoopBackOff", message):
            note = f"Back-off restarting failed container {name} in pod {where}"
            record(self._recorder, pod, "Warning", "BackOff", note, container=name)
        self.waiting[name] = ("CrashLoopBackOff", message)

    def _fail(self, pod: ObjectView, name: str, reason: str, message: str) -> float:
        record(self._recorder, pod, "Warning", "Failed", f"Error: {message}", container=name)
        self.waiting[name] = (reason, message)
        return retry_seconds(self._time_scale)


def _go_duration(seconds: float) -> str:
    """Return whole seconds as Go prints them: ``40s``, ``1m20s``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
