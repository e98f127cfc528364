"""Transitions from two states of a claim."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.controller.claim_transitions import transitions
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from tests.unit.controller.claims import DRIVER, claim


def model(**kwargs: Any) -> ResourceClaim:
    return ResourceClaim.model_validate(claim(**kwargs))


def steps(previous: ResourceClaim | None, current: ResourceClaim | None) -> list[tuple[str, list[str], list[str]]]:
    return [
        (step.change.value, [device.device for device in step.devices], [user.name for user in step.consumers])
        for step in transitions(previous, current, DRIVER)
    ]


GUEST = model(devices=["pizza-0"], pods=["guest"])
BOTH = model(devices=["pizza-0"], pods=["guest", "friend"])
FRIEND = model(devices=["pizza-0"], pods=["friend"])
LIVES: dict[str, tuple[ResourceClaim | None, ResourceClaim | None, list[tuple[str, list[str], list[str]]]]] = {
    "an allocation has its devices": (
        model(), model(devices=["pizza-0", "pizza-1"]), [("allocated", ["pizza-0", "pizza-1"], [])],
    ),
    "the scheduler allocates and reserves in one write": (
        model(), GUEST, [("allocated", ["pizza-0"], []), ("reserved", ["pizza-0"], ["guest"])],
    ),
    "a claim first seen allocated was allocated": (
        None, model(devices=["pizza-0"]), [("allocated", ["pizza-0"], [])],
    ),
    "only new consumers are reserved": (GUEST, BOTH, [("reserved", ["pizza-0"], ["friend"])]),
    "a leaving consumer leaves the devices allocated": (BOTH, FRIEND, [("unreserved", ["pizza-0"], ["guest"])]),
    "a replaced consumer is a release and a reservation": (
        GUEST, FRIEND, [("unreserved", ["pizza-0"], ["guest"]), ("reserved", ["pizza-0"], ["friend"])],
    ),
    "a deallocation has the last consumers": (GUEST, model(), [("deallocated", ["pizza-0"], ["guest"])]),
    "a deleted claim releases what it held": (GUEST, None, [("deleted", ["pizza-0"], ["guest"])]),
    "a new allocation releases the former one first": (
        GUEST,
        model(devices=["pizza-1"], pods=["guest"]),
        [("deallocated", ["pizza-0"], ["guest"]), ("allocated", ["pizza-1"], []), ("reserved", ["pizza-1"], ["guest"])],
    ),
    "a claim that is missing twice": (None, None, []),
    "a new claim": (None, model(), []),
    "a claim without devices that is deleted": (model(), None, []),
    "a write that changes nothing": (model(devices=["pizza-0"]), model(devices=["pizza-0"], version=2), []),
    "devices of another driver": (model(), model(devices=["gpu-0"], driver="dra.gpu", pods=["guest"]), []),
    "a deleted claim of another driver": (model(devices=["gpu-0"], driver="dra.gpu"), None, []),
    "consumers without devices": (model(pods=["guest"]), model(), []),
}  # fmt: skip


@pytest.mark.parametrize(("previous", "current", "expected"), LIVES.values(), ids=LIVES)
def test_two_states_of_a_claim_have_transitions_in_order(
    previous: ResourceClaim | None, current: ResourceClaim | None, expected: list[tuple[str, list[str], list[str]]]
) -> None:
    assert steps(previous, current) == expected


def test_only_our_devices_of_a_mixed_allocation_are_in_the_transition() -> None:
    mixed = claim(devices=["pizza-0"])
    other = {"request": "gpu", "driver": "dra.gpu", "pool": "node-1", "device": "gpu-0"}
    mixed["status"]["allocation"]["devices"]["results"].append(other)
    assert steps(model(), ResourceClaim.model_validate(mixed)) == [("allocated", ["pizza-0"], [])]
