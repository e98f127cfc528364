"""Group U: NodeUnprepareResources."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from dra_kit.conformance.cluster import ConformanceClaim, unknown_claim
from dra_kit.conformance.kubelet import shown_answers
from dra_kit.conformance.prepare import HELD_SECONDS, kill_during_prepare
from dra_kit.conformance.workbench import (
    SETTLE_SECONDS,
    CheckFailure,
    CheckFunction,
    CheckNotApplicable,
    Workbench,
    cdi_ids,
    shown,
)
from dra_kit.errors import KubeletError
from dra_kit.kubelet.plugin_client import CALL_TIMEOUT
from dra_kit.kubernetes.resource.objects import ClaimReference


async def _require_unprepared(bench: Workbench, reference: ClaimReference, when: str) -> None:
    try:
        answers = await bench.kubelet.unprepare([reference])
    except KubeletError as error:
        raise CheckFailure(when, str(error), *bench.last_output()) from None
    if reference.uid not in answers:
        raise CheckFailure(when, f"the answer has no entry for the claim; it has {shown(answers)}")
    if error_text := answers[reference.uid]:
        raise CheckFailure(when, f"the answer has the error {error_text!r}")


def _require_no_devices_left(bench: Workbench, before: set[str], when: str) -> None:
    if left := bench.cdi_devices() - before:
        raise CheckFailure(when, f"CDI devices that were not there before the claim: {shown(left)}")


async def u1(bench: Workbench) -> None:
    """Unprepare a claim whose object is gone."""
    async with bench.claims() as (claim,):
        before = bench.cdi_devices()
        await bench.prepare(claim)
        await bench.cluster.delete_claim(claim.reference)
        when = "unprepare of a claim whose object was deleted"
        await _require_unprepared(bench, claim.reference, when)
        _require_no_devices_left(bench, before, when)


async def u2(bench: Workbench) -> None:
    """Unprepare a claim that never existed."""
    await _require_unprepared(bench, unknown_claim(), "unprepare of a claim that the driver never prepared")


async def u3(bench: Workbench) -> None:
    """Unprepare a claim twice."""
    async with bench.claims() as (claim,):
        await bench.prepare(claim)
        await bench.unprepare(claim)
        await _require_unprepared(bench, claim.reference, "unprepare of a claim that was unprepared before")


async def u4(bench: Workbench) -> None:
    """Unprepare a claim after the driver was killed and started again."""
    bench.require_start()
    async with bench.claims() as (claim,):
        before = bench.cdi_devices()
        await bench.prepare(claim)
        await bench.restart(kill=True)
        when = "unprepare of a claim that was prepared before kill -9 and a restart"
        await _require_unprepared(bench, claim.reference, when)
        _require_no_devices_left(bench, before, when)


async def u5(bench: Workbench) -> None:
    """Unprepare a claim while a prepare that missed its deadline is still running."""
    async with bench.claims() as (claim,):
        before = bench.cdi_devices()
        with bench.cluster.gate.held():
            try:
                await bench.kubelet.prepare([claim.reference], timeout=HELD_SECONDS)
            except KubeletError:
                released = asyncio.create_task(_released(bench, claim))
                await asyncio.sleep(HELD_SECONDS)  # it may wait for the call, which waits for the API server
            else:
                raise CheckNotApplicable("the driver prepares claims without asking the API server")
        if problem := await released:
            raise CheckFailure("unprepare after a prepare that missed its deadline", problem)
        if await bench.until(lambda: bool(bench.cdi_devices() - before), SETTLE_SECONDS):
            raise CheckFailure(
                "a prepare missed its deadline, and the claim was unprepared",
                f"after that, these CDI devices appeared: {shown(bench.cdi_devices() - before)}",
            )
        await bench.prepare(claim)


async def _released(bench: Workbench, claim: ConformanceClaim) -> str:
    """Unprepare a claim, repeatedly as the kubelet does; return the last problem, empty for success."""
    end = time.monotonic() + CALL_TIMEOUT
    while True:
        try:
            answers = await bench.kubelet.unprepare([claim.reference])
            problem = answers.get(claim.uid, "the answer has no entry for the claim")
        except KubeletError as error:
            problem = str(error)
        if not problem or time.monotonic() > end:
            return problem
        await asyncio.sleep(0.5)


async def u6(bench: Workbench) -> None:
    """Unprepare a claim whose prepare was interrupted, and look for files."""
    bench.require_start()
    async with bench.claims() as (claim,):
        before = bench.cdi_files()
        await kill_during_prepare(bench, claim, None)
        await bench.start()
        await bench.unprepare(claim)
        if left := bench.cdi_files() - before:
            raise CheckFailure(
                "the driver was killed during a prepare, restarted, and the claim was unprepared",
                f"files in {bench.places.cdi} that were not there before: {shown(left)}",
            )


async def u7(bench: Workbench) -> None:
    """Delete a claim that is prepared, and wait until the driver releases it."""
    seconds = bench.profile.orphans_within
    if seconds is None:
        raise CheckNotApplicable("the profile has no orphansWithin")
    async with bench.claims() as (claim,):
        before = bench.cdi_devices()
        answers = await bench.prepare(claim)
        if not cdi_ids(answers):
            raise CheckNotApplicable("the driver returns no CDI ids")
        await bench.cluster.delete_claim(claim.reference)
        if not await bench.until(lambda: not bench.cdi_devices() - before, seconds):
            raise CheckFailure(
                f"the claim was deleted {seconds:g} s ago, and never unprepared",
                f"CDI devices left: {shown(bench.cdi_devices() - before)}",
            )


async def u8(bench: Workbench) -> None:
    """Prepare a device for another claim after it was unprepared."""
    async with bench.claims() as (claim,):
        first = await bench.prepare(claim)
        await bench.unprepare(claim)
        other = await bench.claim_like(claim)
        answers = await bench.kubelet.prepare([other.reference])
        answer = answers.get(other.uid)
        if answer is None or answer.error:
            raise CheckFailure(
                f"claim {claim.reference.name}: {shown_answers(first)}",
                f"claim {claim.reference.name} was unprepared",
                f"claim {other.reference.name} with the same device: {shown_answers(answers)}",
                *bench.last_output(),
            )


CHECKS: Final[dict[str, CheckFunction]] = {
    "U1": u1, "U2": u2, "U3": u3, "U4": u4, "U5": u5, "U6": u6, "U7": u7, "U8": u8,
}  # fmt: skip
"""The checks of this group."""
