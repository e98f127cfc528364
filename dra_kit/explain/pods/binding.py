"""Pods whose node was written into their spec, so that kube-scheduler never looked at their claims. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dra_kit.kubernetes.resource.matching import Node, node_selector_matches
from dra_kit.kubernetes.resource.v1 import ResourceClaim

_HOSTNAME: Final = "kubernetes.io/hostname"


def never_prepared(claims: Sequence[tuple[str, ResourceClaim]], node: Node) -> Iterator[str]:
    """Why the kubelet of a node never starts a pod, and what to write instead; nothing if nothing is against it.

    Only kube-scheduler allocates. What is allocated already, kube-controller-manager reserves for pods that have a
    node (Kubernetes 1.37, ``pkg/controller/resourceclaim``).

    Args:
        claims: that the pod needs, each with the name of its entry.
        node: that the pod has.
    """
    bad = False
    for entry, claim in claims:
        allocation = claim.status.allocation
        if allocation is None:
            bad = True
            yield f"claim {entry} is neither allocated nor reserved for the pod: only kube-scheduler does that"
        elif allocation.node_selector is not None and not node_selector_matches(allocation.node_selector, node):
            bad = True
            yield f"claim {entry} is allocated for other nodes"
    if bad:
        hostname = node.labels.get(_HOSTNAME, node.name)
        yield (
            "spec.nodeName bypasses kube-scheduler, and so the kubelet never starts the pod; "
            f"instead of nodeName: {node.name} write nodeSelector: {{{_HOSTNAME}: {hostname}}}"
        )
