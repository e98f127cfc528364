"""Whatever a node service does, the kubelet gets exactly one answer for each claim it asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import InternalError, PermanentError, TransientError
from dra_kit.kubelet.plugin_server import ERROR_BYTES, KubeletDevice, answer_prepare, answer_unprepare
from dra_kit.kubernetes.resource.objects import ClaimReference

Prepared = Mapping[str, Sequence[KubeletDevice] | Exception]
Unprepared = Mapping[str, Exception | None]

OVEN = ClaimReference("default", "oven", "uid-1")
DEVICE = KubeletDevice(("pizza",), "node-a", "pizza-0", ("dra.pizza/claim=uid-1",))


class Service:
    """A node service whose calls return given results and record the requested claims."""

    def __init__(self, result: Callable[[Sequence[ClaimReference]], object]) -> None:
        self.result = result
        self.asked: list[ClaimReference] = []

    async def prepare(self, claims: Sequence[ClaimReference]) -> Prepared:
        self.asked += claims
        return cast("Prepared", self.result(claims))

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Unprepared:
        self.asked += claims
        return cast("Unprepared", self.result(claims))


def raising(error: Exception) -> Service:
    def result(claims: Sequence[ClaimReference]) -> object:
        raise error

    return Service(result)


names = st.sampled_from(["", "a", "b", "c"])
claim_refs = st.builds(ClaimReference, namespace=names, name=names, uid=names)
errors = st.builds(
    lambda kind, text: kind(text),
    st.sampled_from([PermanentError, TransientError, InternalError, ValueError, KeyError]),
    st.text(),
)
outcomes = st.one_of(
    errors, st.none(), st.integers(), st.lists(st.just(DEVICE)), st.just([DEVICE, "no device"]), st.just("text")
)


@given(st.lists(claim_refs), st.one_of(errors, st.none(), st.dictionaries(names, outcomes)))
def test_response_has_exactly_one_result_for_each_claim(claims: list[ClaimReference], outcome: object) -> None:
    service = raising(outcome) if isinstance(outcome, Exception) else Service(lambda _: outcome)

    prepared = asyncio.run(answer_prepare(service, claims))
    unprepared = asyncio.run(answer_unprepare(service, claims))

    for answered in (prepared, unprepared):
        assert answered.keys() == {claim.uid for claim in claims}
        texts = [answer for answer in answered.values() if isinstance(answer, str)]
        assert all(text.strip() and len(text.splitlines()) == 1 for text in texts)
        assert all(text.encode() for text in texts)
    assert all(claim.uid and claim.name and claim.namespace for claim in service.asked)


async def test_a_claim_named_twice_is_asked_for_once() -> None:
    service = Service(lambda claims: {claim.uid: [DEVICE] for claim in claims})

    answered = await answer_prepare(service, [OVEN, OVEN])

    assert service.asked == [OVEN]
    assert answered.keys() == {"uid-1"}


async def test_one_uid_under_two_names_is_an_error_with_both_names() -> None:
    service = Service(lambda claims: {})

    answered = await answer_unprepare(service, [OVEN, ClaimReference("default", "stove", "uid-1")])

    assert answered == {"uid-1": "the request names UID uid-1 twice, as default/oven and as default/stove"}
    assert service.asked == []


async def test_a_claim_without_uid_does_not_disturb_the_others() -> None:
    service = Service(lambda claims: {claim.uid: None for claim in claims})

    answered = await answer_unprepare(service, [OVEN, ClaimReference("default", "stove", "")])

    assert answered == {"uid-1": None, "": "the request names ResourceClaim 'default/stove' without uid"}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermanentError("claim oven: no such topping; use basil"), "claim oven: no such topping; use basil"),
        (PermanentError("first\n  second\r\n\nthird\n"), "first; second; third"),
        (
            TransientError(""),
            "prepare of ResourceClaim default/oven: failed with code prepare-transient and without a message",
        ),
    ],
    ids=["one line", "several lines", "no text"],
)
async def test_framework_error_is_passed_in_one_line(error: Exception, text: str) -> None:
    assert await answer_prepare(Service(lambda _: {"uid-1": error}), [OVEN]) == {"uid-1": text}


@pytest.mark.parametrize("error", [KeyError("x"), InternalError("lost the lock"), AssertionError()])
async def test_other_exceptions_are_reported_as_bugs(error: Exception) -> None:
    returned = await answer_prepare(Service(lambda _: {"uid-1": error}), [OVEN])
    raised = await answer_prepare(raising(error), [OVEN])

    assert returned == raised
    text = returned["uid-1"]
    assert isinstance(text, str)
    assert text.startswith("prepare of ResourceClaim default/oven: ")
    assert text.endswith("(this is a bug in dra-kit, please report it)")


async def test_missing_result_is_a_bug_and_an_extra_one_is_dropped() -> None:
    service = Service(lambda _: {"uid-9": None})

    assert await answer_unprepare(service, [OVEN]) == {
        "uid-1": "unprepare of ResourceClaim default/oven: the node service returned no result "
        "(this is a bug in dra-kit, please report it)"
    }


async def test_a_device_that_does_not_fit_the_wire_fails_its_own_claim_only() -> None:
    stove = ClaimReference("default", "stove", "uid-2")
    undecodable = KubeletDevice((), "node-a", "pizza-\udcff")
    service = Service(lambda _: {"uid-1": [undecodable], "uid-2": [DEVICE]})

    answered = await answer_prepare(service, [OVEN, stove])

    assert isinstance(answered["uid-1"], str)
    assert not isinstance(answered["uid-2"], str)


async def test_a_cancelled_call_stays_cancelled() -> None:
    class Hanging(Service):
        async def prepare(self, claims: Sequence[ClaimReference]) -> Prepared:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await answer_prepare(Hanging(lambda _: {}), [OVEN])


@pytest.mark.parametrize("kind", [PermanentError, TransientError, InternalError, ValueError])
async def test_long_error_is_shortened_in_the_middle(kind: type[Exception]) -> None:
    error = kind(f"claim default/oven: {'no such topping ' * 60_000}; use basil")

    text = (await answer_prepare(Service(lambda _: {"uid-1": error}), [OVEN]))["uid-1"]

    assert isinstance(text, str)
    assert len(text.encode()) <= ERROR_BYTES
    assert "claim default/oven: no such topping " in text
    assert "; use basil" in text
    assert " bytes in total … " in text


async def test_claims_with_long_and_odd_names_are_answered_in_a_short_line() -> None:
    odd = ClaimReference("default", "o\nven" * 10_000, "")
    twice = [ClaimReference("default", f"oven\n{i}" * 10_000, "uid-2") for i in range(2)]

    answered = await answer_unprepare(Service(lambda _: {}), [odd, *twice])

    assert all(isinstance(text, str) and len(text.encode()) <= ERROR_BYTES for text in answered.values())
    assert all(text and len(text.splitlines()) == 1 for text in answered.values())
