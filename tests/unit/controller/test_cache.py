"""The cache of claims: each transition once, whatever the watch loses and however late a list comes."""

from __future__ import annotations

import copy
import tracemalloc
from collections import Counter, deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.controller.claim_follower import ClaimCache
from dra_kit.controller.claim_transitions import ClaimChange, ClaimTransition
from tests.unit.controller.claims import DRIVER, claim


def changes(steps: tuple[ClaimTransition, ...]) -> list[ClaimChange]:
    return [step.change for step in steps]


def primed(*claims: dict[str, Any], version: int = 10) -> ClaimCache:
    cache = ClaimCache(DRIVER)
    assert cache.replace(claims, str(version)) == ()
    return cache


def test_the_first_list_announces_nothing() -> None:
    cache = primed(claim(devices=["pizza-0"], pods=["guest"], version=5))
    assert len(cache) == 1


def test_the_initial_list_of_the_watch_repeats_nothing() -> None:
    known = claim(devices=["pizza-0"], version=5)
    assert primed(known).observe(known) == ()


def test_user_content_of_claims_is_not_cached() -> None:
    cache = primed()
    tracemalloc.start()
    try:
        for number in range(20):
            seen = claim(f"claim-{number}", devices=["pizza-0"], version=11 + number)
            seen["metadata"]["annotations"] = {"note": f"{number}" * 100_000}
            config = {"opaque": {"driver": DRIVER, "parameters": {"note": f"{number}" * 100_000}}}
            seen["spec"]["devices"]["config"] = seen["status"]["allocation"]["devices"]["config"] = [config]
            assert changes(cache.observe(seen)) == [ClaimChange.ALLOCATED]
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert len(cache) == 20


def test_a_change_after_the_first_list_is_announced() -> None:
    assert changes(primed(claim(version=5)).observe(claim(devices=["pizza-0"], version=11))) == [ClaimChange.ALLOCATED]


def test_a_release_after_the_first_list_is_announced() -> None:
    cache = primed(claim(devices=["pizza-0"], version=5))
    assert changes(cache.observe(claim(version=11))) == [ClaimChange.DEALLOCATED]
    assert len(cache) == 0


def test_a_deletion_is_announced_once() -> None:
    cache = primed(claim(devices=["pizza-0"], version=5))
    assert changes(cache.observe(claim(devices=["pizza-0"], version=11), deleted=True)) == [ClaimChange.DELETED]
    with cache.listing():
        assert cache.replace([], "12") == ()


def test_a_list_finds_the_deletion_that_the_watch_missed() -> None:
    cache = primed(claim(devices=["pizza-0"], version=5))
    with cache.listing():
        assert changes(cache.replace([], "20")) == [ClaimChange.DELETED]


def test_a_claim_created_after_the_list_is_not_removed() -> None:
    cache = primed()
    with cache.listing():
        cache.observe(claim(devices=["pizza-0"], version=21))
        assert cache.replace([], "20") == ()
    assert len(cache) == 1


def test_a_list_older_than_the_watch_restores_no_claim() -> None:
    held = claim(devices=["pizza-0"], version=5)
    cache = primed(held)
    with cache.listing():
        cache.observe(claim(version=21))
        assert cache.replace([held], "20") == ()
    assert len(cache) == 0


def test_a_watch_older_than_the_list_restores_no_claim() -> None:
    cache = primed(claim(devices=["pizza-0"], version=5))
    with cache.listing():
        cache.replace([], "20")
    assert cache.observe(claim(devices=["pizza-0"], pods=["guest"], version=15)) == ()


def test_a_claim_that_existed_between_two_lists_is_announced_by_a_late_watch() -> None:
    cache = primed()
    with cache.listing():
        assert cache.replace([], "30") == ()
    assert changes(cache.observe(claim(devices=["pizza-0"], version=21))) == [ClaimChange.ALLOCATED]
    assert changes(cache.observe(claim(devices=["pizza-0"], version=22), deleted=True)) == [ClaimChange.DELETED]


def test_a_claim_first_seen_in_its_deletion_is_announced_as_allocated() -> None:
    last = claim(devices=["pizza-0"], pods=["guest"], version=11)
    assert changes(primed().observe(last, deleted=True)) == [
        ClaimChange.ALLOCATED,
        ClaimChange.RESERVED,
        ClaimChange.DELETED,
    ]


def test_a_claim_of_the_same_name_is_another_claim() -> None:
    cache = primed(claim("claim-1", devices=["pizza-0"], version=5))
    with cache.listing():
        steps = cache.replace([claim("claim-2", devices=["pizza-0"], version=12)], "20")
    assert changes(steps) == [ClaimChange.ALLOCATED, ClaimChange.DELETED]


def test_claims_of_other_drivers_are_not_cached() -> None:
    cache = primed()
    assert cache.observe(claim(devices=["gpu-0"], driver="dra.gpu", version=11)) == ()
    assert len(cache) == 0


class Server:
    """A model of the API server, with a watch that may lose events and lists that may come late."""

    def __init__(self) -> None:
        self.version = 0
        self.claims: dict[str, dict[str, Any]] = {}
        self.queue: deque[tuple[dict[str, Any], bool]] = deque()
        self.made = Counter[str]()

    def write(self, uid: str, action: str) -> None:
        self.version += 1
        current = self.claims.get(uid)
        if action == "delete":
            if current is not None:
                current["metadata"]["resourceVersion"] = str(self.version)
                self.queue.append((self.claims.pop(uid), True))
            return
        status = copy.deepcopy(current["status"]) if current else {}
        if action == "allocate" and "allocation" not in status:
            self.made[uid] += 1  # no allocation is like another, so that a repeated announcement shows
            status = claim(devices=[f"pizza-{self.made[uid]}"], pods=["guest"])["status"]
        elif action == "deallocate":
            status = {}
        new = claim(uid, version=self.version)
        new["status"] = status
        self.claims[uid] = new
        self.queue.append((copy.deepcopy(new), False))

    def snapshot(self) -> tuple[list[dict[str, Any]], str]:
        return copy.deepcopy(list(self.claims.values())), str(self.version)


ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["claim-1", "claim-2"]), st.sampled_from(["allocate", "deallocate", "delete", "touch"])),
    st.tuples(st.just("watch"), st.sampled_from(["deliver", "lose"])),
    st.tuples(st.just("list"), st.sampled_from(["begin", "end"])),
)


@given(st.lists(ACTIONS, max_size=40))
def test_each_allocation_is_announced_and_released_once_and_a_list_corrects_the_cache(
    actions: list[tuple[str, str]],
) -> None:
    server = Server()
    cache = primed(version=0)
    announced: list[ClaimTransition] = []
    pending: tuple[list[dict[str, Any]], str] | None = None
    listing = cache.listing()
    for subject, action in actions:
        if subject == "watch":
            if server.queue:
                event, deleted = server.queue.popleft()
                announced += cache.observe(event, deleted=deleted) if action == "deliver" else ()
        elif subject == "list":
            if action == "begin" and pending is None:
                listing = cache.listing()
                listing.__enter__()
                pending = server.snapshot()
            elif action == "end" and pending is not None:
                announced += cache.replace(*pending)
                listing.__exit__(None, None, None)
                pending = None
        else:
            server.write(subject, action)
    if pending is not None:
        announced += cache.replace(*pending)
        listing.__exit__(None, None, None)
    with cache.listing():
        announced += cache.replace(*server.snapshot())
    while server.queue:  # late events restore no claim; unseen changes are still announced
        event, deleted = server.queue.popleft()
        announced += cache.observe(event, deleted=deleted)
    with cache.listing():
        announced += cache.replace(*server.snapshot())

    held: set[tuple[str, str]] = set()
    ever: set[tuple[str, str]] = set()
    for step in announced:
        allocation = (step.claim.metadata.uid, step.devices[0].device)
        if step.change is ClaimChange.ALLOCATED:
            assert allocation not in ever
            held.add(allocation)
            ever.add(allocation)
        elif step.change in {ClaimChange.DEALLOCATED, ClaimChange.DELETED}:
            held.remove(allocation)
    assert held == {
        (uid, each["status"]["allocation"]["devices"]["results"][0]["device"])
        for uid, each in server.claims.items()
        if "allocation" in each["status"]
    }


@given(st.lists(st.tuples(st.just("claim-1"), st.sampled_from(["allocate", "deallocate", "touch"])), max_size=20))
def test_a_complete_watch_announces_every_change(actions: list[tuple[str, str]]) -> None:
    server = Server()
    cache = primed(version=0)
    announced: list[ClaimChange] = []
    expected: list[ClaimChange] = []
    allocated = False
    for uid, action in actions:
        server.write(uid, action)
        event, deleted = server.queue.popleft()
        announced += changes(cache.observe(event, deleted=deleted))
        if action == "allocate" and not allocated:
            expected += [ClaimChange.ALLOCATED, ClaimChange.RESERVED]
        if action == "deallocate" and allocated:
            expected.append(ClaimChange.DEALLOCATED)
        allocated = action == "allocate" or (allocated and action == "touch")
    assert announced == expected
