"""Pods of a PodGroup, which are scheduled together (KEP-4671)."""

from __future__ import annotations

from typing import Final

from dra_kit.kubernetes.resource.objects import ObjectKey
from dra_kit.kubernetes.values.json import ObjectView

POD_GROUP_PROTECTION: Final = "scheduling.k8s.io/podgroup-protection"
"""Finalizer of a PodGroup, as long as a pod that has not finished names it."""


def group_key(pod: ObjectView) -> ObjectKey | None:
    """Return namespace and name of the PodGroup of a pod; None without one."""
    name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return (pod["metadata"]["namespace"], name) if name else None
