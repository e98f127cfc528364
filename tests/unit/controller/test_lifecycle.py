"""Transitions from two states of a claim."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.controller.claim_transitions import ClaimChange, transitions
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from tests.unit.controller.claims import DRIVER, claim


def model(**kwargs: Any) -> ResourceClaim:
    return ResourceClaim.model_validate(claim(**kwargs))


def steps(
    previous: ResourceClaim | None, current: ResourceClaim | None
) -> list[tuple[ClaimChange, list[str], list[str]]]:
    return [
        (step.change, [device.device for device in step.devices], [user.name for user in step.consumers])
        for step in transitions(previous, current, DRIVER)
    ]


def test_an_allocation_is_a_transition_with_its_devices() -> None:
    assert steps(model(), model(devices=["pizza-0", "pizza-1"])) == [
        (ClaimChange.ALLOCATED, ["pizza-0", "pizza-1"], [])
    ]


def test_the_scheduler_allocates_and_reserves_in_one_write() -> None:
    assert steps(model(), model(devices=["pizza-0"], pods=["guest"])) == [
        (ClaimChange.ALLOCATED, ["pizza-0"], []),
        (ClaimChange.RESERVED, ["pizza-0"], ["guest"]),
    ]


def test_a_claim_first_seen_allocated_was_allocated() -> None:
    assert steps(None, model(devices=["pizza-0"])) == [(ClaimChange.ALLOCATED, ["pizza-0"], [])]


def test_only_new_consumers_are_reserved() -> None:
    before = model(devices=["pizza-0"], pods=["guest"])
    after = model(devices=["pizza-0"], pods=["guest", "friend"])
    assert steps(before, after) == [(ClaimChange.RESERVED, ["pizza-0"], ["friend"])]


def test_a_leaving_consumer_leaves_the_devices_allocated() -> None:
    before = model(devices=["pizza-0"], pods=["guest", "friend"])
    assert steps(before, model(devices=["pizza-0"], pods=["friend"])) == [
        (ClaimChange.UNRESERVED, ["pizza-0"], ["guest"])
    ]


def test_a_replaced_consumer_is_a_release_and_a_reservation() -> None:
    before = model(devices=["pizza-0"], pods=["guest"])
    assert steps(before, model(devices=["pizza-0"], pods=["friend"])) == [
        (ClaimChange.UNRESERVED, ["pizza-0"], ["guest"]),
        (ClaimChange.RESERVED, ["pizza-0"], ["friend"]),
    ]


def test_a_deallocation_is_one_transition_with_the_last_consumers() -> None:
    assert steps(model(devices=["pizza-0"], pods=["guest"]), model()) == [
        (ClaimChange.DEALLOCATED, ["pizza-0"], ["guest"])
    ]


def test_a_deleted_claim_releases_what_it_held() -> None:
    assert steps(model(devices=["pizza-0"], pods=["guest"]), None) == [(ClaimChange.DELETED, ["pizza-0"], ["guest"])]


def test_a_new_allocation_releases_the_former_one_first() -> None:
    before = model(devices=["pizza-0"], pods=["guest"])
    assert steps(before, model(devices=["pizza-1"], pods=["guest"])) == [
        (ClaimChange.DEALLOCATED, ["pizza-0"], ["guest"]),
        (ClaimChange.ALLOCATED, ["pizza-1"], []),
        (ClaimChange.RESERVED, ["pizza-1"], ["guest"]),
    ]


@pytest.mark.parametrize(
    ("previous", "current"),
    [
        (None, None),
        (None, model()),
        (model(), None),
        (model(devices=["pizza-0"]), model(devices=["pizza-0"], version=2)),
        (model(), model(devices=["gpu-0"], driver="dra.gpu", pods=["guest"])),
        (model(devices=["gpu-0"], driver="dra.gpu"), None),
        (model(pods=["guest"]), model()),
    ],
)
def test_changes_without_our_devices_are_not_transitions(
    previous: ResourceClaim | None, current: ResourceClaim | None
) -> None:
    assert steps(previous, current) == []


def test_only_our_devices_of_a_mixed_allocation_are_in_the_transition() -> None:
    mixed = claim(devices=["pizza-0"])
    other = {"request": "gpu", "driver": "dra.gpu", "pool": "node-1", "device": "gpu-0"}
    mixed["status"]["allocation"]["devices"]["results"].append(other)
    assert steps(model(), ResourceClaim.model_validate(mixed)) == [(ClaimChange.ALLOCATED, ["pizza-0"], [])]
