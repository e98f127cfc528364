"""Queueing hints: which changes of objects can make an unschedulable pod schedulable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeAlias

from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource.objects import ObjectKey, pod_claims
from dra_kit.kubernetes.scheduler.claims import extended_resources
from dra_kit.kubernetes.scheduler.controllers import published_devices, rule_covers_device
from dra_kit.kubernetes.scheduler.nodes import (
    DYNAMIC_RESOURCES,
    INTER_POD_AFFINITY,
    NODE_AFFINITY,
    NODE_RESOURCES_FIT,
    NODE_UNSCHEDULABLE,
    TAINT_TOLERATION,
    allocatable,
    is_affine,
    is_cordoned,
    is_tainted,
    node_topology_helps,
    placed_pod_helps,
    pod_requests,
    shortages,
)
from dra_kit.kubernetes.values.json import ObjectView


def node_hint(
    pod: ObjectView,
    plugins: Collection[str],
    before: ObjectView | None,
    after: ObjectView | None,
    classes: Iterable[ObjectView],
    *,
    version: KubernetesVersion,
) -> bool:
    """Whether a new or changed Node may help, for a release of the scheduler."""
    if after is None:
        return False
    if NODE_RESOURCES_FIT in plugins and _grown(pod, before, after, classes, version):
        return True
    return any(plugin in _NODE_HINTS and _NODE_HINTS[plugin](pod, before, after) for plugin in plugins)


def claim_hint(pod: ObjectView, plugins: Iterable[str], before: ObjectView | None, after: ObjectView | None) -> bool:
    """Whether a change of a ResourceClaim may help: it was deallocated, or belongs to the pod."""
    if DYNAMIC_RESOURCES not in plugins:
        return False
    if _allocated(before) and not _allocated(after):
        return True
    if after is None or not uses(pod, after):
        return False
    return before is None or before.get("status") != after.get("status")


def placed_pod_hint(
    pod: ObjectView,
    plugins: Collection[str],
    before: ObjectView | None,
    after: ObjectView | None,
    namespaces: Mapping[ObjectKey, ObjectView],
) -> bool:
    """Whether a pod that got a node, changed there or finished may help; devices are released with its claims.

    Args:
        pod: that waits.
        plugins: that rejected it.
        before: the other pod; None if it had no node.
        after: the other pod; None if it finished.
        namespaces: all Namespaces.
    """
    if NODE_RESOURCES_FIT in plugins and after is None:
        return True
    return INTER_POD_AFFINITY in plugins and placed_pod_helps(pod, before, after, namespaces)


def failed_binding_hint(
    pod: ObjectView, plugins: Collection[str], failed: ObjectView, namespaces: Mapping[ObjectKey, ObjectView]
) -> bool:
    """Whether the failed placement of a pod may help others, for which its devices were not available.

    In Kubernetes, pods that need these devices wait until another event occurs, five minutes at most.
    """
    return DYNAMIC_RESOURCES in plugins or placed_pod_hint(pod, plugins, failed, None, namespaces)


def class_hint(
    pod: ObjectView,
    plugins: Iterable[str],
    before: ObjectView | None,
    after: ObjectView | None,
    version: KubernetesVersion,
) -> bool:
    """Whether a change of a DeviceClass may help, for a release of the scheduler."""
    if after is None:
        return False
    names = {item["spec"].get("extendedResourceName") for item in (before, after) if item}
    provides = bool(names & pod_requests(pod, version).keys())
    return DYNAMIC_RESOURCES in plugins or (NODE_RESOURCES_FIT in plugins and provides)


def slice_hint(plugins: Iterable[str], after: ObjectView | None) -> bool:
    """Whether a change of a ResourceSlice may help."""
    return after is not None and DYNAMIC_RESOURCES in plugins


def taint_rule_hint(
    plugins: Iterable[str],
    before: ObjectView | None,
    after: ObjectView | None,
    slices: Iterable[ObjectView],
) -> bool:
    """Whether a change of a DeviceTaintRule for a published device may help."""
    states = [item for item in (before, after) if item is not None]
    return DYNAMIC_RESOURCES in plugins and any(
        rule_covers_device(rule, device_id) for device_id, _ in published_devices(slices) for rule in states
    )


def uses(pod: ObjectView, claim: ObjectView) -> bool:
    """Whether a claim is one of the pod's."""
    namespace, name = claim["metadata"].get("namespace"), claim["metadata"].get("name")
    return (
        name is not None  # a claim that is not created yet has none
        and pod["metadata"]["namespace"] == namespace
        and any(entry.claim == name for entry in pod_claims(pod))
    )


def _allocated(claim: Mapping[str, object] | None) -> bool:
    status = (claim or {}).get("status") or {}
    return isinstance(status, Mapping) and bool(status.get("allocation"))


# --- nodes


_NodeHint: TypeAlias = Callable[[ObjectView, ObjectView | None, ObjectView], bool]


def _newly(suits: Callable[[ObjectView, ObjectView], bool]) -> _NodeHint:
    """Return whether a node suits a pod now, and did not before."""
    return lambda pod, before, after: (before is None or not suits(pod, before)) and suits(pod, after)


def _grown(
    pod: ObjectView,
    before: ObjectView | None,
    after: ObjectView,
    classes: Iterable[ObjectView],
    version: KubernetesVersion,
) -> bool:
    requests, size = pod_requests(pod, version), allocatable(after, version)
    former = allocatable(before, version) if before else {}
    grown = before is None or any(size.get(name, 0) > former.get(name, 0) for name in (*requests, "pods"))
    if not grown:
        return False
    extended = extended_resources(pod, classes, version)
    return not shortages(requests, size, {}, pods=0, provided=extended.provided_on(size) if extended else ())


def _other_devices(_: ObjectView, before: ObjectView | None, after: ObjectView) -> bool:
    return before is None or before["metadata"].get("labels") != after["metadata"].get("labels")


_NODE_HINTS: Final[Mapping[str, _NodeHint]] = {
    NODE_UNSCHEDULABLE: _newly(lambda pod, node: not is_cordoned(pod, node)),
    TAINT_TOLERATION: _newly(lambda pod, node: not is_tainted(pod, node)),
    NODE_AFFINITY: _newly(is_affine),
    INTER_POD_AFFINITY: node_topology_helps,
    DYNAMIC_RESOURCES: _other_devices,
}
