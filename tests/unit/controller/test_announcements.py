"""The Events of each transition."""

from __future__ import annotations

from typing import Any

from dra_kit.client.events import ObjectReference
from dra_kit.controller.announcer import Announcement, announcements
from dra_kit.controller.claim_transitions import node_of, transitions
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from tests.unit.controller.claims import DRIVER, claim

LUNCH = ObjectReference("resource.k8s.io/v1", "ResourceClaim", "lunch-claim-1", "claim-1", "default")


def pod(name: str) -> ObjectReference:
    return ObjectReference("v1", "Pod", name, f"uid-{name}", "default")


def announced(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[Announcement]:
    states = [None if state is None else ResourceClaim.model_validate(state) for state in (before, after)]
    return [each for step in transitions(states[0], states[1], DRIVER) for each in announcements(step)]


def test_an_allocation_is_announced_on_the_claim_and_its_owner_pod() -> None:
    note = "Allocated device pizza-0 (request pizza, pool node-1) on node node-1 to ResourceClaim lunch-claim-1"
    assert announced(claim(owner="guest"), claim(owner="guest", devices=["pizza-0"])) == [
        Announcement(LUNCH, "DeviceAllocated", "Allocate", note),
        Announcement(pod("guest"), "DeviceAllocated", "Allocate", note),
    ]


def test_a_pod_that_owns_and_uses_a_claim_gets_one_event() -> None:
    found = announced(claim(owner="guest"), claim(owner="guest", devices=["pizza-0"], pods=["guest"]))
    assert [(each.regarding, each.reason) for each in found] == [
        (LUNCH, "DeviceAllocated"),
        (pod("guest"), "DeviceAllocated"),
        (LUNCH, "ClaimReserved"),
        (pod("guest"), "ClaimReserved"),
    ]


def test_a_reservation_is_announced_on_the_new_pod_only() -> None:
    found = announced(claim(devices=["pizza-0"], pods=["guest"]), claim(devices=["pizza-0"], pods=["guest", "friend"]))
    assert [each.regarding for each in found] == [LUNCH, pod("friend")]
    assert found[0].note == (
        "Reserved ResourceClaim lunch-claim-1 with device pizza-0 (request pizza, pool node-1) on node node-1 "
        "for pod friend"
    )


def test_the_pod_that_released_the_claim_gets_an_event() -> None:
    found = announced(claim(devices=["pizza-0"], pods=["guest", "friend"]), claim(devices=["pizza-0"], pods=["friend"]))
    assert [(each.regarding, each.reason) for each in found] == [
        (LUNCH, "ClaimReleased"), (pod("guest"), "ClaimReleased"),
    ]  # fmt: skip
    assert found[0].note.endswith("on node node-1 is no longer reserved for pod guest")


def test_a_release_names_all_devices_and_the_last_user() -> None:
    found = announced(claim(devices=["pizza-0", "pizza-1"], pods=["guest"]), claim())
    assert [each.regarding for each in found] == [LUNCH, pod("guest")]
    assert found[0].note == (
        "ResourceClaim lunch-claim-1 released device pizza-0 (request pizza, pool node-1), "
        "device pizza-1 (request pizza, pool node-1) on node node-1, used by pod guest"
    )


def test_a_deleted_claim_says_that_it_was_deleted() -> None:
    found = announced(claim(devices=["pizza-0"]), None)
    gone = "ResourceClaim lunch-claim-1 was deleted and released device pizza-0 (request pizza, pool node-1)"
    assert [each.note for each in found] == [f"{gone} on node node-1"]


def test_a_consumer_that_is_not_a_pod_is_named_and_gets_no_event() -> None:
    after = claim(devices=["pizza-0"])
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "party", "uid": "uid-party"}
    after["status"]["reservedFor"] = [group]
    found = announced(claim(devices=["pizza-0"]), after)
    assert [each.regarding for each in found] == [LUNCH]
    assert found[0].note.endswith("for podgroups.scheduling.k8s.io party")


def test_devices_without_a_node_are_announced_without_a_node() -> None:
    anywhere = claim(devices=["pizza-0"], node="")
    assert node_of(ResourceClaim.model_validate(anywhere)) is None
    assert " on node " not in announced(claim(), anywhere)[0].note


def test_a_label_selector_is_announced_without_a_node() -> None:
    labelled = claim(devices=["pizza-0"])
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    labelled["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    assert node_of(ResourceClaim.model_validate(labelled)) is None
