"""Which containers of a pod are to start, and whether the pod has ended: pure.

The rules are those of ``pkg/kubelet/kuberuntime/kuberuntime_manager.go`` (computePodActions) of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import containers, init_containers, is_sidecar, should_restart
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster.kubelet.pods.runtime import ContainerStatus


class Plan(Struct, frozen=True):
    """What is to be done now.

    Attributes:
        start: containers to start, in this order; those that ended before only after their back-off.
        ended: every container that counts has ended for good: sidecars are to be stopped.
    """

    start: tuple[str, ...] = ()
    ended: bool = False


def plan(pod: ObjectView, latest: Mapping[str, ContainerStatus]) -> Plan:
    """Return what is to be done for a pod that is not being deleted.

    Init containers come one after the other, each once it succeeded; a sidecar need only have started. The regular
    ones start together after them. Init containers that are no sidecars are not run again once a regular one has
    started, whatever became of it.

    Args:
        pod: the object.
        latest: the newest status of each container that was ever started.
    """
    start: list[str] = []
    begun = any(container["name"] in latest for container in containers(pod))
    for container in init_containers(pod):
        status = latest.get(container["name"])
        if is_sidecar(container):
            if status is None or not status.running:
                start.append(container["name"])
            continue
        if begun:
            continue
        if status is None:
            return Plan((*start, container["name"]))
        if status.exit is None:
            return Plan(tuple(start))
        if status.exit.code == 0:
            continue
        if should_restart(pod, container, status.exit.code):
            return Plan((*start, container["name"]))
        return Plan(ended=True)
    ended = True
    for container in containers(pod):
        status = latest.get(container["name"])
        if status is None or (status.exit is not None and should_restart(pod, container, status.exit.code)):
            start.append(container["name"])
            ended = False
        elif status.exit is None:
            ended = False
    return Plan(ended=True) if ended else Plan(tuple(start))
