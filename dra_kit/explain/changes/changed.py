"""Claims and classes as they would be after one change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dra_kit.explain.devices.conditions import conditions
from dra_kit.kubernetes.resource.v1 import (
    CELDeviceSelector,
    DeviceClass,
    DeviceConstraint,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)

_Choice: TypeAlias = ExactDeviceRequest | DeviceSubRequest


def with_constraints(claim: ResourceClaim, constraints: Sequence[DeviceConstraint]) -> ResourceClaim:
    """Return the claim with these constraints instead of its own."""
    return _with_devices(claim, {"constraints": tuple(constraints)})


def with_count(claim: ResourceClaim, choice: str, count: int) -> ResourceClaim:
    """Return the claim with another count of a request, or of its choice.

    Args:
        claim: the claim.
        choice: name of the request, or ``request/subrequest``.
        count: of devices.
    """
    return _with_choice(claim, choice, lambda asked: asked.model_copy(update={"count": count}))


def tolerating(claim: ResourceClaim, choice: str, key: str) -> ResourceClaim:
    """Return the claim with a toleration of all taints of a key."""
    toleration = DeviceToleration(key=key, operator="Exists")
    return _with_choice(
        claim, choice, lambda asked: asked.model_copy(update={"tolerations": (*asked.tolerations, toleration)})
    )


def without_condition(claim: ResourceClaim, choice: str, condition: str) -> ResourceClaim | None:
    """Return the claim without one condition of its own selectors; None if the text does not let it be removed."""
    asked = next((asked for name, asked in _choices(claim) if name == choice), None)
    selectors = _without(asked.selectors, condition) if asked is not None else None
    if selectors is None:
        return None
    return _with_choice(claim, choice, lambda asked: asked.model_copy(update={"selectors": selectors}))


def class_without_condition(device_class: DeviceClass, condition: str) -> DeviceClass | None:
    """Return the class without one condition of its selectors; None if the text does not let it be removed."""
    selectors = _without(device_class.spec.selectors, condition)
    if selectors is None:
        return None
    return device_class.model_copy(update={"spec": device_class.spec.model_copy(update={"selectors": selectors})})


def _without(selectors: Sequence[DeviceSelector], condition: str) -> tuple[DeviceSelector, ...] | None:
    changed: list[DeviceSelector] = []
    found = False
    for selector in selectors:
        parts = conditions(selector.cel.expression) if selector.cel is not None else []
        if condition not in parts:
            changed.append(selector)
            continue
        found = True
        rest = [f"({part})" for part in parts if part != condition]
        if rest:
            changed.append(DeviceSelector(cel=CELDeviceSelector(expression=" && ".join(rest))))
    return tuple(changed) if found else None


def _choices(claim: ResourceClaim) -> list[tuple[str, _Choice]]:
    found: list[tuple[str, _Choice]] = []
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            found.append((request.name, request.exactly))
        found += [(f"{request.name}/{asked.name}", asked) for asked in request.first_available]
    return found


def _with_choice(claim: ResourceClaim, choice: str, change: Callable[[_Choice], _Choice]) -> ResourceClaim:
    requests = []
    for request in claim.spec.devices.requests:
        if request.exactly is not None and request.name == choice:
            requests.append(request.model_copy(update={"exactly": change(request.exactly)}))
            continue
        subrequests = tuple(
            change(asked) if f"{request.name}/{asked.name}" == choice else asked for asked in request.first_available
        )
        requests.append(request.model_copy(update={"first_available": subrequests}))
    return _with_devices(claim, {"requests": tuple(requests)})


def _with_devices(claim: ResourceClaim, update: dict[str, object]) -> ResourceClaim:
    devices = claim.spec.devices.model_copy(update=update)
    return claim.model_copy(update={"spec": claim.spec.model_copy(update={"devices": devices})})
