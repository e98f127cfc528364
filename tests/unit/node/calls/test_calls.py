"""Each call gets one answer in time, even if its work fails or its caller is cancelled."""

from __future__ import annotations

import asyncio

from dra_kit.errors import PermanentError
from dra_kit.node.deadlines import DeadlineRunner

LONG = 3600.0
CUT_OFF = "prepare-transient: cancelled, because the driver stops or its code has cancelled itself; the kubelet retries"


def told(error: Exception) -> str:
    return f"{getattr(error, 'code', '?')}: {error}"


def late() -> str:
    return "the oven is cold; wait"


async def quick() -> str:
    return "quick"


async def waiting(go_on: asyncio.Event) -> str:
    await go_on.wait()
    return "waited"


async def test_the_result_is_the_answer() -> None:
    assert await DeadlineRunner(LONG).begin(quick(), failed=told, late=late) == "quick"


async def test_an_error_is_converted_to_an_answer() -> None:
    async def work() -> str:
        raise PermanentError("no such pizza", code="no-pizza")

    assert await DeadlineRunner(LONG).begin(work(), failed=told, late=late) == "no-pizza: no such pizza"


async def test_the_deadline_answers_and_cancels_the_work() -> None:
    undone = asyncio.Event()

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            undone.set()
        return "never"

    answer = await DeadlineRunner(0.01).begin(work(), failed=told, late=late)
    assert answer == "deadline: the oven is cold; wait"
    await asyncio.wait_for(undone.wait(), 60)


async def test_a_result_after_the_deadline_is_discarded() -> None:
    errors: list[Exception] = []
    undoing, go_on = asyncio.Event(), asyncio.Event()

    def failed(error: Exception) -> str:
        errors.append(error)
        return "failed"

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            undoing.set()
            await go_on.wait()
            raise PermanentError("could not be undone") from None
        return "never"

    calls = DeadlineRunner(0.01)
    assert await calls.begin(work(), failed=failed, late=late) == "failed"
    await undoing.wait()
    go_on.set()
    await calls.drain(60)
    assert [told(error) for error in errors] == ["deadline: the oven is cold; wait"]


async def test_a_cancelled_caller_does_not_stop_the_work() -> None:
    go_on, ended = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        await go_on.wait()
        ended.set()
        return "done"

    calls = DeadlineRunner(LONG)
    answer = calls.begin(work(), failed=told, late=late)
    waiting = asyncio.ensure_future(asyncio.wait_for(answer, LONG))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    go_on.set()
    await asyncio.wait_for(ended.wait(), 60)


async def test_work_cancelled_before_its_start_is_answered() -> None:
    async def work() -> str:
        return "never"

    calls = DeadlineRunner(LONG)
    answer = calls.begin(work(), failed=told, late=late)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    assert await asyncio.wait_for(answer, 60) == CUT_OFF


async def test_draining_waits_for_work_and_then_cancels_it() -> None:
    async def brief() -> str:
        await asyncio.sleep(0)
        return "done"

    async def endless() -> str:
        await asyncio.Event().wait()
        return "never"

    calls = DeadlineRunner(LONG)
    answers = [calls.begin(work, failed=told, late=late) for work in (brief(), endless())]
    await calls.drain(0.05)
    assert [await asyncio.wait_for(answer, 60) for answer in answers] == ["done", CUT_OFF]


async def test_no_work_starts_after_a_drain() -> None:
    begun = []

    async def work() -> str:
        begun.append("work")
        return "never"

    calls = DeadlineRunner(LONG)
    await calls.drain(0.0)
    assert await asyncio.wait_for(calls.begin(work(), failed=told, late=late), 60) == CUT_OFF
    assert not begun


async def test_work_that_cancels_itself_is_answered() -> None:
    async def work() -> str:
        raise asyncio.CancelledError

    assert await asyncio.wait_for(DeadlineRunner(LONG).begin(work(), failed=told, late=late), 60) == CUT_OFF


async def test_at_rest_is_called_when_all_work_has_ended() -> None:
    rest, go_on = asyncio.Event(), asyncio.Event()
    calls = DeadlineRunner(LONG, at_rest=rest.set)
    answers = [calls.begin(work, failed=told, late=late) for work in (waiting(go_on), quick())]
    assert await answers[1] == "quick"
    await asyncio.sleep(0.1)
    assert not rest.is_set()
    go_on.set()
    assert await answers[0] == "waited"
    await asyncio.wait_for(rest.wait(), 60)


async def test_at_rest_is_not_called_if_other_work_starts_at_once() -> None:
    rest, go_on = asyncio.Event(), asyncio.Event()
    calls = DeadlineRunner(LONG, at_rest=rest.set)
    assert await calls.begin(quick(), failed=told, late=late) == "quick"
    await asyncio.sleep(0)  # what ran has ended
    following = calls.begin(waiting(go_on), failed=told, late=late)
    await asyncio.sleep(0.1)
    assert not rest.is_set()
    go_on.set()
    assert await following == "waited"
