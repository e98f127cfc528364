"""Which review has its turn: bands of one size and addresses share the time, and nothing is checked in vain."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.admission.review_queue import FairQueue, ReviewQueue, ReviewQueueOverload, WaitingReview

FOREVER = 1e9


def waiting(size: int, peer: str = "a", deadline: float = FOREVER) -> WaitingReview:
    return WaitingReview(lambda: None, size=size, peer=peer, deadline=deadline)


def served(queue: FairQueue, number: int, seconds_per_byte: float = 1e-6) -> list[WaitingReview]:
    found = []
    for _ in range(number):
        item = queue.take(0)
        if item is None:
            break
        queue.settle(item, item.size * seconds_per_byte)
        found.append(item)
    return found


def put_all(queue: FairQueue, items: Sequence[WaitingReview]) -> None:
    for item in items:
        queue.put(item, 0)


def test_a_small_review_is_served_before_earlier_large_ones() -> None:
    queue = FairQueue()
    put_all(queue, [waiting(50_000) for _ in range(200)])
    served(queue, 3)
    small = waiting(700)
    queue.put(small, 0)
    assert small in served(queue, 1)


def test_a_large_review_is_not_starved_by_a_flood_of_small_ones() -> None:
    queue = FairQueue()
    put_all(queue, [waiting(700) for _ in range(200)])
    served(queue, 50)
    large = waiting(5_000)
    queue.put(large, 0)
    assert large in served(queue, 2)


def test_an_address_is_not_starved_by_a_flood_from_another_one() -> None:
    queue = FairQueue()
    put_all(queue, [waiting(50_000, "flood") for _ in range(200)])
    served(queue, 5)
    other = waiting(50_000, "other")
    queue.put(other, 0)
    assert other in served(queue, 2)


def test_a_heavy_address_waits_for_at_most_two_reviews_of_each_waiting_address() -> None:
    queue = FairQueue()
    put_all(queue, [waiting(700, "much")])
    served(queue, 1, seconds_per_byte=1e-2)
    put_all(queue, [waiting(700, str(number)) for number in range(50)])
    item = waiting(700, "much")
    queue.put(item, 0)
    before = 0
    while served(queue, 1) != [item]:
        queue.put(waiting(700, f"new {before}"), 0)
        before += 1
    assert before <= 2 * 50 + 1


def test_a_review_that_cannot_be_answered_in_time_is_rejected_at_once() -> None:
    queue = FairQueue()
    put_all(queue, [waiting(50_000, deadline=5) for _ in range(199)])
    with pytest.raises(ReviewQueueOverload):
        put_all(queue, [waiting(50_000, deadline=5) for _ in range(3)])
    queue.put(waiting(700, deadline=5), 0)
    queue.put(waiting(50_000, "other", deadline=5), 0)


def test_a_review_that_waited_too_long_is_not_checked() -> None:
    queue = FairQueue()
    late, fresh = waiting(700, deadline=5), waiting(700, deadline=20)
    put_all(queue, [late, fresh])
    assert queue.take(10) is fresh
    assert isinstance(late.future.exception(0), ReviewQueueOverload)


def test_a_review_abandoned_by_its_caller_is_not_checked() -> None:
    queue = FairQueue()
    gone, there = waiting(700), waiting(700)
    put_all(queue, [gone, there])
    gone.future.cancel()
    assert served(queue, 5) == [there]


def test_a_thread_for_small_reviews_takes_only_small_reviews() -> None:
    queue = FairQueue()
    small, larger = waiting(8 * 1024), waiting(8 * 1024 + 1)
    put_all(queue, [larger, small])
    assert queue.take(0, most=8 * 1024) is small
    assert queue.take(0, most=8 * 1024) is None
    assert queue.take(0) is larger


SIZES = st.sampled_from([1, 700, 1024, 1025, 8000, 60_000])
PEERS = st.sampled_from("abc")


@given(st.lists(st.tuples(SIZES, PEERS), max_size=40))
def test_every_review_is_served_once_and_in_order_per_address(drawn: list[tuple[int, str]]) -> None:
    queue = FairQueue()
    items = [waiting(size, peer) for size, peer in drawn]
    put_all(queue, items)
    found = served(queue, 100)
    assert len(found) == len(items)
    assert set(found) == set(items)
    for band, peer in {(item.band, item.peer) for item in items}:
        assert [item for item in found if (item.band, item.peer) == (band, peer)] == [
            item for item in items if (item.band, item.peer) == (band, peer)
        ]


@given(
    st.lists(st.tuples(SIZES, PEERS), min_size=1, max_size=5, unique=True),
    st.integers(0, 60),
    st.floats(1e-8, 1e-4),
)
def test_addresses_that_always_wait_get_equal_time(
    flows: list[tuple[int, str]], before: int, seconds_per_byte: float
) -> None:
    queue = FairQueue()
    put_all(queue, [waiting(*flows[0]) for _ in range(before + 1)])
    served(queue, before, seconds_per_byte)  # time used while no other address waits does not count
    used = {waiting(*flow).band: 0.0 for flow in flows}
    largest = max(size for size, _ in flows) * max(seconds_per_byte, 5e-7)
    for flow in flows:
        put_all(queue, [waiting(*flow) for _ in range(2)])
    for _ in range(400):
        [item] = served(queue, 1, seconds_per_byte)
        used[item.band] += item.size * seconds_per_byte
        queue.put(waiting(item.size, item.peer), 0)
    assert max(used.values()) - min(used.values()) <= 4 * largest


@pytest.fixture
async def queue() -> AsyncIterator[ReviewQueue]:
    found = ReviewQueue()
    yield found
    found.close()


async def run(queue: ReviewQueue, function: Callable[[], object], size: int) -> object:
    async with queue.turn(function, size=size, peer="a", deadline=time.monotonic() + 600) as found:
        return found


async def test_a_thread_takes_the_next_review_after_its_last_answer_is_ready(queue: ReviewQueue) -> None:
    deadline = time.monotonic() + 600
    async with queue.turn(lambda: 1, size=100_000, peer="a", deadline=deadline):
        next_one = asyncio.create_task(run(queue, lambda: 2, 100_000))
        assert await run(queue, lambda: 3, 1) == 3  # another thread's
        assert not next_one.done()
    assert await next_one == 2


async def test_results_and_errors_are_returned(queue: ReviewQueue) -> None:
    def fail() -> None:
        raise KeyError("x")

    assert await run(queue, lambda: 1, 1) == 1
    with pytest.raises(KeyError):
        await run(queue, fail, 100_000)


async def test_a_validator_that_hangs_in_a_large_review_does_not_block_small_reviews(queue: ReviewQueue) -> None:
    go_on = threading.Event()
    stuck = [asyncio.create_task(run(queue, go_on.wait, size)) for size in (100_000, 60_000)]
    async with asyncio.timeout(60):
        assert await run(queue, lambda: 1, 1) == 1
    go_on.set()
    assert await asyncio.gather(*stuck) == [True, True]


async def test_a_validator_that_hangs_is_reported(queue: ReviewQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kit.admission.review_queue._HANGING_SECONDS", 0.01)
    go_on = threading.Event()
    stuck = asyncio.create_task(run(queue, go_on.wait, 100_000))
    async with asyncio.timeout(60):
        while not (lines := queue.hanging()):  # noqa: ASYNC110 - time goes by
            await asyncio.sleep(0.01)
    assert "'large reviews'" in lines[0]
    go_on.set()
    await stuck
    async with asyncio.timeout(60):
        while queue.hanging():  # noqa: ASYNC110 - the thread notes it afterwards
            await asyncio.sleep(0.01)
