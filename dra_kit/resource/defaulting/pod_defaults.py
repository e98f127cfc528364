"""Defaults of pods that depend on several fields; all others are in the schema table's.

Source: Kubernetes 1.37 ``pkg/apis/core/v1/defaults.go``.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_kit.values.json import Object


def fill_in_pod_defaults(pod: Object) -> None:
    """Fill in pull policies, requests from limits, empty volumes, and the ports of the node that a pod shares.

    Args:
        pod: the pod, or a template of pods; changed in place.
    """
    spec = pod.get("spec")
    if spec is None:
        return
    spec.setdefault("enableServiceLinks", True)
    for volume in spec.get("volumes") or ():
        if not any(value is not None for name, value in volume.items() if name != "name"):
            volume["emptyDir"] = {}
    default_pull_policies(pod)
    for container in _containers(pod):
        resources = container.get("resources") or {}
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        for port in (container.get("ports") or ()) if spec.get("hostNetwork") else ():
            port["hostPort"] = port.get("hostPort") or port.get("containerPort")


def default_pull_policies(pod: Object) -> None:
    """Fill in ``imagePullPolicy`` of a pod's or a template's containers, by the image's tag."""
    for container in _containers(pod):
        if not container.get("imagePullPolicy"):
            tag = container.get("image", "").rpartition("/")[2]
            latest = (":" not in tag and "@" not in tag) or tag.endswith(":latest")
            container["imagePullPolicy"] = "Always" if latest else "IfNotPresent"


def _containers(pod: Object) -> Iterator[Object]:
    for field in ("initContainers", "containers"):
        yield from pod["spec"].get(field) or ()
