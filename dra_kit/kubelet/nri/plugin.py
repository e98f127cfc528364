"""What the author of an NRI plugin subclasses: one method for each event of pods and containers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dra_kit.kubelet.nri.proto.nri_v1alpha1_pb2 import (
    Container,
    ContainerAdjustment,
    ContainerUpdate,
    CreateContainerResponse,
    Event,
    PodSandbox,
)


class RuntimeParameters(NamedTuple):
    """What a container runtime reports when it configures a plugin."""

    name: str
    """"containerd" or "cri-o"."""
    version: str
    nri_version: str
    """Empty before NRI 0.12."""
    config: str
    """The plugin's file in the runtime's ``/etc/nri/conf.d``."""
    request_timeout: float
    """Seconds that the runtime waits for a hook."""


class HookEvent(NamedTuple):
    """An event that a plugin can subscribe to."""

    event: Event.ValueType
    method: str
    """Of the service."""
    hook: str
    """Of :class:`Plugin`."""
    failure: str
    """What happens to the pod or container if the hook fails."""
    starts: bool = False
    """Whether the pod or container starts afterwards."""
    of_container: bool = False

    def __str__(self) -> str:
        return self.method


HOOKS: Final = (
    HookEvent(Event.RUN_POD_SANDBOX, "RunPodSandbox", "run_pod_sandbox", "not started", starts=True),
    HookEvent(Event.STOP_POD_SANDBOX, "StopPodSandbox", "stop_pod_sandbox", "not stopped"),
    HookEvent(Event.REMOVE_POD_SANDBOX, "RemovePodSandbox", "remove_pod_sandbox", "not removed"),
    HookEvent(
        Event.CREATE_CONTAINER, "CreateContainer", "create_container", "not created", starts=True, of_container=True
    ),
    HookEvent(Event.STOP_CONTAINER, "StopContainer", "stop_container", "not stopped", of_container=True),
    HookEvent(Event.REMOVE_CONTAINER, "RemoveContainer", "remove_container", "not removed", of_container=True),
)
"""The events that devices need; all versions of NRI know them (0.1 to 0.12)."""


class Plugin:
    """Reacts to events of a container runtime. Override the hooks that you need: only these are subscribed to.

    A hook that raises fails the runtime's request, and the kubelet tries again; the text of the exception is shown in
    the pod's Events. The runtime waits 2 seconds by default. A hook that takes longer continues in the background
    while the request fails. Hooks of one pod run one after another, those of several pods at the same time. A hook must
    not block the event loop, or no request is answered in time: use :func:`asyncio.to_thread` for calls that block.

    The kubelet's next attempt has a new sandbox or container with another ID, so that the hook runs again: what is slow
    must be done before, or be remembered by the pod's UID and the container's name. If the runtime repeats a request
    for the same ID, it gets the result of the hook that ran in the background.

    A hook may be repeated, and events are lost while the plugin is not connected. :meth:`synchronize` finds what was
    missed. After a restart, containerd reports no stop and removal of sandboxes that it started before (2.4.2,
    internal/nri/nri.go): these hooks are not the place to release devices.
    """

    @property
    def events(self) -> Sequence[HookEvent]:
        """The events to subscribe to; by default those whose hooks are overridden."""
        return [event for event in HOOKS if getattr(type(self), event.hook) is not getattr(Plugin, event.hook)]

    async def configure(self, runtime: RuntimeParameters) -> None:
        """Check the runtime; called for each connection before :meth:`synchronize`.

        If it raises, the connection is closed and tried again.
        """

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> Iterable[ContainerUpdate]:
        """Compare your state with everything that the runtime has; called for each connection before other hooks.

        Hooks wait until it returns, except where :meth:`needs_synchronization` returns False. If it raises, pods and
        containers do not start, and the runtime is asked for everything again after a pause.

        Returns:
            Updates of containers.
        """
        del pods, containers
        return ()

    def needs_synchronization(self, pod: PodSandbox, container: Container | None) -> bool:
        """Return whether the hooks of a pod, or of a container of it, wait until :meth:`synchronize` has succeeded.

        Return False for what does not concern the plugin, or a failing ``synchronize`` keeps every pod of the node from
        starting, also one that would replace the plugin. It must not block.
        """
        del pod, container
        return True

    def activity(self, pod: PodSandbox) -> str:
        """Return what the hooks of a pod do now, for the error that one is late; empty if unknown. Do not block."""
        del pod
        return ""

    async def run_pod_sandbox(self, pod: PodSandbox) -> None:
        """React to a new sandbox of a pod: its network namespace exists, its containers do not."""

    async def stop_pod_sandbox(self, pod: PodSandbox) -> None:
        """React to a sandbox that stops. containerd only logs errors."""

    async def remove_pod_sandbox(self, pod: PodSandbox) -> None:
        """React to a sandbox that is deleted. containerd only logs errors."""

    async def create_container(
        self, pod: PodSandbox, container: Container
    ) -> CreateContainerResponse | ContainerAdjustment | None:
        """Return what to change in a new container, and in others.

        If two plugins change the same field, the runtime does not create the container.
        """

    async def stop_container(self, pod: PodSandbox, container: Container) -> Iterable[ContainerUpdate]:
        """React to a container that stops, and return updates of others. containerd only logs errors.

        Also called, as :meth:`remove_container`, for a container whose creation failed.
        """
        del pod, container
        return ()

    async def remove_container(self, pod: PodSandbox, container: Container) -> None:
        """React to a container that is deleted. containerd only logs errors."""
