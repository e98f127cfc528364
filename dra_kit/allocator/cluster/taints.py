"""Taints of devices and the requests that tolerate them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_kit.resource.v1 import DeviceTaint, DeviceTaintSelector, DeviceToleration


def covers(selector: DeviceTaintSelector | None, device: tuple[str, str, str]) -> bool:
    """Whether a DeviceTaintRule with this selector taints a device; one without a selector taints none (KEP-5055).

    Args:
        selector: ``spec.deviceSelector`` of the rule.
        device: driver, pool and name.
    """
    return selector is not None and all(
        wanted in {None, found}
        for wanted, found in zip((selector.driver, selector.pool, selector.device), device, strict=True)
    )


def may_cover(selector: DeviceTaintSelector | None, driver: str, pool: str) -> bool:
    """Whether a DeviceTaintRule with this selector may taint some device of a pool."""
    return selector is not None and selector.driver in {None, driver} and selector.pool in {None, pool}


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
