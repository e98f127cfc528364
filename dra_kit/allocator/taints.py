"""Taints of devices and the requests that tolerate them."""

from __future__ import annotations

from collections.abc import Sequence

from dra_kit.resource.v1 import DeviceTaint, DeviceToleration


def tolerated(taints: Sequence[DeviceTaint], tolerations: Sequence[DeviceToleration]) -> bool:
    """Whether each taint, all of which block, is tolerated by some toleration."""
    return all(any(tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether a toleration covers a taint; an empty key or effect covers every key or effect (KEP-5055)."""
    if toleration.effect not in {"", taint.effect} or toleration.key not in {"", taint.key}:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False
