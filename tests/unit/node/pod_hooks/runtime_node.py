"""A node with a container runtime: pods and containers of prepared claims, as the runtime reports them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.kubelet.nri import hooks as nri_hooks
from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.support.nri_runtime import Runtime
from tests.unit.node.drivers import Oven
from tests.unit.node.role import DRIVER, Node


class Stateful(dra.Preparer):
    """Stores a number for each device, and mounts a file with metadata."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(state={"cpus": device.name.removeprefix("pizza-")}, metadata=dra.DeviceMetadata())


class Recorder(dra.PodHooks[dra.Device]):
    """Remembers its calls; a test gives what they return or raise."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pods: list[dra.RuntimePod] = []
        self.devices: list[Sequence[dra.HeldDevice]] = []
        self.facts: list[dra.DeviceFacts] = []
        self.adjustment: dra.ContainerAdjustment | None = None
        self.updates: list[dra.ContainerUpdate] = []
        self.errors: dict[str, Exception] = {}

    def _call(self, name: str, pod: dra.RuntimePod, *of: str) -> None:
        self.pods.append(pod)
        self.calls.append(" ".join((name, pod.name, *of)))
        if name in self.errors:
            raise self.errors[name]

    def synchronize(self, pods: Sequence[dra.RuntimePod]) -> Sequence[dra.ContainerUpdate]:
        self.calls.append(" ".join(("synchronize", *(pod.name for pod in pods))))
        self.pods.extend(pods)
        return self.updates

    async def pod_starts(
        self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice[dra.Device]]
    ) -> Iterable[dra.DeviceFacts]:
        self._call("pod_starts", pod)
        self.devices.append(devices)
        return self.facts

    def container_starts(
        self, pod: dra.RuntimePod, container: dra.RuntimeContainer, devices: Sequence[dra.HeldDevice[dra.Device]]
    ) -> dra.ContainerAdjustment | None:
        self._call("container_starts", pod, container.name, *(device.name for device in devices))
        self.devices.append(devices)
        return self.adjustment

    def pod_stops(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice[dra.Device]]) -> None:
        self._call("pod_stops", pod, *(device.name for device in devices))


class OfAllPods(Recorder):
    scope = "all"


def hooked(hooks: dra.PodHooks[Any], preparer: dra.Preparer[Any] | None = None, **options: Any) -> dra.Driver[Any, Any]:
    return dra.Driver(DRIVER, provider=Oven(), preparer=preparer or Stateful(), pod_hooks=hooks, **options)


def socket(node: Node) -> Path:
    """Return the runtime's socket; all drivers of the node use it."""
    node.given["nri_socket"] = node.directory / "nri.sock"
    return node.directory / "nri.sock"


def pod(name: str = "web", *, uid: str = "", attempt: int = 0, **fields: Any) -> pb.PodSandbox:
    """Return a sandbox; another attempt has another ID."""
    network = pb.LinuxNamespace(type="network", path=f"/var/run/netns/{name}")
    linux = pb.LinuxPodSandbox(cgroup_parent="/kubepods/pod1", namespaces=[network])
    given: dict[str, Any] = {"id": f"sandbox-{name}-{attempt}", "name": name, "uid": uid or name}
    return pb.PodSandbox(**{**given, "namespace": "default", "linux": linux, **fields})


def container(
    node: Node,
    of: pb.PodSandbox,
    *claims: ClaimReference,
    name: str = "app",
    env: Mapping[str, str] | None = None,
    devices: Sequence[int] | None = None,
    cdi: bool = True,
    **fields: Any,
) -> pb.Container:
    """Return a container as the runtime reports it after it has applied the CDI specs of its claims.

    Args:
        node: has the specs.
        of: its pod.
        claims: those that it uses.
        name: its name.
        env: variables of its author.
        devices: places of the devices that it uses; None for all.
        cdi: whether the runtime reports CDI devices.
    """
    made = pb.Container(id=f"{of.id}-{name}", pod_sandbox_id=of.id, name=name, **fields)
    made.env.extend(f"{key}={value}" for key, value in (env or {}).items())
    for claim in claims:
        spec = node.spec(claim)
        used = [item for index, item in enumerate(spec["devices"]) if devices is None or index in devices]
        for edits in (spec.get("containerEdits", {}), *(item["containerEdits"] for item in used)):
            made.env.extend(edits.get("env", ()))
            for mount in edits.get("mounts", ()):
                made.mounts.add(source=mount["hostPath"], destination=mount["containerPath"])
        if cdi:
            for item in used:
                made.cdi_devices.add(name=f"{spec['kind']}={item['name']}")
    return made


def missing(of: pb.Container, answers: Sequence[pb.CreateContainerResponse] = ()) -> list[str]:
    """Return the mounts whose source is missing on the host: with any, the container does not start.

    A mount of an answer replaces one at the same place, as in NRI's Go package (``AdjustMounts``).
    """
    mounts = {mount.destination: mount.source for mount in of.mounts}
    for answer in answers:
        mounts |= {mount.destination: mount.source for mount in answer.adjust.mounts}
    return [source for source in mounts.values() if not Path(source).exists()]


async def creates(
    runtime: Runtime, of: pb.PodSandbox, made: pb.Container
) -> tuple[list[pb.CreateContainerResponse], list[str]]:
    """Return the answers to CreateContainer, and the mounts that are missing then."""
    answers = await runtime.container_event("CreateContainer", of, made)
    return answers, missing(made, answers)


@contextmanager
def raising(hooks: Recorder, hook: str, error: Exception) -> Iterator[None]:
    """Let a hook raise an error in the block."""
    hooks.errors[hook] = error
    try:
        yield
    finally:
        del hooks.errors[hook]


@contextmanager
def impatient() -> Iterator[None]:
    """Let a runtime that waits for a minute get errors of late hooks after 0.3 s, for calls that begin in the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nri_hooks, "ANSWERED_WITHIN", 0.005)
        yield
