"""Groups P and U: NodePrepareResources and NodeUnprepareResources."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from dra_kit.conformance.cluster import FOREIGN_DRIVER, NAMESPACE, ConformanceClaim, unknown_claim
from dra_kit.conformance.kubelet import RegisteredPlugin, shown_answer, shown_answers
from dra_kit.conformance.profile import ExpectedContainer
from dra_kit.conformance.workbench import (
    SETTLE_SECONDS,
    CheckBlocked,
    CheckFailure,
    CheckFunction,
    CheckNotApplicable,
    Workbench,
    cdi_ids,
    shown,
)
from dra_kit.errors import KubeletError, UnresolvableDevices
from dra_kit.kubelet.plugin_client import CALL_TIMEOUT, SUPPORTED_SERVICES, ClaimAnswer
from dra_kit.kubernetes.resource.objects import ClaimReference

DEADLINE_SECONDS: Final = 1.0
"""Deadline of a call that misses it: less than drivers wait for an answer of the API server."""
ASKED_SECONDS: Final = 3.0
"""Seconds in which a call must have come so far that it asks the API server about its claim."""
_KILL_AFTER: Final = (0.005, 0.03)


async def p1(bench: Workbench) -> None:
    """Prepare a claim by each version of the service that the driver advertises."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    async with bench.claims() as (claim,):
        for version in bench.plugin.versions:
            try:
                answers = await bench.kubelet.prepare([claim.reference], service=version)
            except KubeletError as error:
                raise CheckFailure(f"{version}: {error}", *bench.last_output()) from None
            answer = answers.get(claim.uid)
            if answer is None or answer.error:
                raise CheckFailure(f"{version}: {shown_answers(answers)}", *bench.last_output())
            # share_id exists in v1 only
            found[version] = [
                (device.request_names, device.pool_name, device.device_name, device.cdi_device_ids)
                for device in answer.devices
            ]
            await bench.unprepare(claim)
        if any(devices != found[bench.plugin.versions[0]] for devices in found.values()):
            raise CheckFailure(*(f"{version}: {devices}" for version, devices in found.items()))


async def p2(bench: Workbench) -> None:
    """Compare the claims of a call with the entries of its answer."""
    async with bench.claims(await _two(bench)) as claims:
        sent = {item.uid: item.reference.name for item in claims}
        try:
            answers = await bench.kubelet.prepare([item.reference for item in claims])
        except KubeletError as error:
            raise CheckBlocked("\n".join([str(error), *bench.last_output()])) from None
        missing = [name for uid, name in sent.items() if uid not in answers]
        extra = [uid for uid in answers if uid not in sent]
        if missing or extra:
            raise CheckFailure(
                f"sent: {', '.join(f'{name} with UID {uid}' for uid, name in sent.items())}",
                *(f"claim {name} has no entry in the answer" for name in missing),
                *(f"the answer has an entry for {uid!r}, which was not sent" for uid in extra),
            )


async def _two(bench: Workbench) -> int:
    """Return two, or one if the driver has only one device."""
    return min(2, len(await bench.devices(least=1)), bench.profile.devices or 2)


async def p3(bench: Workbench) -> None:
    """Repeat a call, in another order of claims."""
    async with bench.claims(await _two(bench)) as claims:
        first = await bench.prepare(*claims)
        for order in (claims, claims[::-1]):
            _require_same(first, await bench.prepare(*order), "when the call was repeated")


def _require_same(first: Mapping[str, ClaimAnswer], later: Mapping[str, ClaimAnswer], when: str) -> None:
    if first != later:
        raise CheckFailure(f"first: {shown_answers(first)}", f"{when}: {shown_answers(later)}")


async def p4(bench: Workbench) -> None:
    """Repeat a call after the driver was stopped, and after it was killed."""
    bench.require_start()
    async with bench.claims() as (claim,):
        first = await bench.prepare(claim)
        for kill, when in ((False, "after SIGTERM and a restart"), (True, "after kill -9 and a restart")):
            await bench.restart(kill=kill)
            _require_same(first, {claim.uid: await _answer(bench, claim)}, when)


async def p5(bench: Workbench) -> None:
    """Delete the CDI files of a claim, and repeat the call."""
    async with bench.claims() as (claim,):
        before = bench.cdi_files()
        ids = set(_require_cdi_ids(await bench.prepare(claim)))
        cache = bench.cdi()
        if missing := ids - set(cache.devices):
            raise CheckBlocked(f"CDI ids {shown(missing)} do not resolve: see P16")
        deleted = [
            file.path
            for file in cache.files
            if file.path.name not in before  # others are written when the driver starts
            if ids & {f"{file.spec.kind}={device.name}" for device in file.spec.devices}
        ]
        if not deleted:
            raise CheckNotApplicable("the driver writes no CDI files for claims")
        for path in deleted:
            path.unlink()
        again = await bench.prepare(claim)
        if missing := set(cdi_ids(again)) - bench.cdi_devices():
            raise CheckFailure(
                f"deleted: {', '.join(path.name for path in deleted)}",
                f"the repeated call returned {shown(cdi_ids(again))}",
                f"no CDI file defines {shown(missing)}; a container with the claim cannot start",
            )


def _require_cdi_ids(answers: Mapping[str, ClaimAnswer]) -> list[str]:
    if not (ids := cdi_ids(answers)):
        raise CheckNotApplicable("the driver returns no CDI ids")
    return ids


async def p6(bench: Workbench) -> None:
    """Prepare a claim together with one that does not exist."""
    async with bench.claims() as (claim,):
        bad = unknown_claim()
        try:
            answers = await bench.kubelet.prepare([claim.reference, bad])
        except KubeletError as error:
            raise CheckFailure(f"sent: claim {claim.reference.name}, and one that does not exist", str(error)) from None
        answer = answers.get(claim.uid)
        if answer is None or answer.error:
            raise CheckFailure(
                f"sent: claim {claim.reference.name}, and one that does not exist", shown_answers(answers)
            )


async def p7(bench: Workbench) -> None:
    """Prepare claims that must not be prepared."""
    async with bench.claims() as (claim,):
        allocated = claim.reference
        cases = {
            "a claim that does not exist": unknown_claim(),
            "a claim without an allocation": await bench.unallocated(),
            "a claim by another UID than its object has": ClaimReference(
                NAMESPACE, allocated.name, str(uuid.uuid4())
            ),
        }  # fmt: skip
        for what, reference in cases.items():
            try:
                answers = await bench.kubelet.prepare([reference])
            except KubeletError:
                continue  # whether this should be an error of the claim is P6
            answer = answers.get(reference.uid)
            if answer is not None and not answer.error:
                await bench.kubelet.unprepare([reference])
                raise CheckFailure(f"sent: {what}", f"answer: {shown_answer(answer)}, without an error")


async def p8(bench: Workbench) -> None:
    """Prepare a claim whose device was allocated for a subrequest."""
    exactly = bench.cluster.request()["exactly"]
    request = {"name": "device", "firstAvailable": [{"name": "first", **exactly}]}
    async with bench.claims(requests=[request]) as (claim,):
        answers = await bench.prepare(claim)
        names = [device.request_names for device in answers[claim.uid].devices]
        if any(set(found) - {"device"} for found in names):
            raise CheckFailure(
                f"the allocation has the request {claim.results[0]['request']}",
                f"request_names: {'; '.join(', '.join(found) for found in names)}; expected: device",
                "the kubelet compares them with names of requests, and no container gets the device",
            )


async def p9(bench: Workbench) -> None:
    """Prepare a claim that also has a device of another driver."""

    def add(allocation: dict[str, Any]) -> None:
        foreign = {"request": "device", "driver": FOREIGN_DRIVER, "pool": "other-pool", "device": "other-device"}
        results = [foreign, *allocation["devices"]["results"]]
        allocation["devices"] = {**allocation["devices"], "results": results}

    await bench.devices(least=1)
    claim = await bench.claim(change=add)
    answers = await bench.kubelet.prepare([claim.reference])
    answer = answers.get(claim.uid)
    if answer is None or answer.error:
        raise CheckFailure(
            f"the allocation has a device of this driver and one of driver {FOREIGN_DRIVER}", shown_answers(answers)
        )
    if foreign := [device for device in answer.devices if device.pool_name == "other-pool"]:
        raise CheckFailure(
            f"the allocation has a device of driver {FOREIGN_DRIVER}",
            f"it was returned: {foreign[0].pool_name}/{foreign[0].device_name}",
        )


async def p10(bench: Workbench) -> None:
    """Prepare a device that another claim has."""
    async with bench.claims() as (claim,):
        _require_exclusive(claim)
        first = await bench.prepare(claim)
        other = await bench.claim_like(claim)
        answer = await _answer(bench, other)
        if not answer.error:
            raise CheckFailure(
                f"claim {claim.reference.name}: {shown_answers(first)}",
                f"claim {other.reference.name} with the same device: {shown_answer(answer)}",
            )


def _require_exclusive(claim: ConformanceClaim) -> None:
    if any("shareID" in result for result in claim.results):
        raise CheckNotApplicable("the device may be shared by claims")


async def _answer(
    bench: Workbench, claim: ConformanceClaim, plugin: RegisteredPlugin | None = None
) -> ClaimAnswer:  # fmt: skip
    """Prepare a claim; an error of the call is that of the claim."""
    try:
        answers = await bench.kubelet.prepare([claim.reference], plugin=plugin)
    except KubeletError as error:
        return ClaimAnswer((), str(error))
    return answers.get(claim.uid, ClaimAnswer((), "no entry in the answer"))


async def p11(bench: Workbench) -> None:
    """Let a call miss its deadline, and repeat it as the kubelet does."""
    first = ClaimAnswer((), "not called")
    async with bench.claims() as (claim,):
        for seconds in _deadlines(bench):
            with bench.cluster.held.holding():
                first, failed = await _called(bench, claim, seconds)
                is_over = not failed or await _asked(bench, claim)
                if failed and is_over:
                    await asyncio.sleep(seconds)  # the driver's own deadline begins when it receives the call
            if is_over:
                break
        end = time.monotonic() + CALL_TIMEOUT
        while (answer := await _answer(bench, claim)).error:
            if time.monotonic() > end or not bench.subject.alive:
                raise CheckFailure(
                    f"first call: {shown_answer(first)}",
                    f"later calls, for {CALL_TIMEOUT:g} s: {shown_answer(answer)}",
                    *bench.last_output(),
                )
            await asyncio.sleep(0.5)


def _deadlines(bench: Workbench) -> tuple[float, float]:
    """Return a short deadline, and one for a driver that has not asked about its claim by then."""
    return DEADLINE_SECONDS, bench.patience(ASKED_SECONDS)


async def _called(bench: Workbench, claim: ConformanceClaim, seconds: float) -> tuple[ClaimAnswer, bool]:
    """Prepare a claim with a deadline; return the answer, with the error of the call, and whether it was one."""
    try:
        answers = await bench.kubelet.prepare([claim.reference], timeout=seconds)
    except KubeletError as error:
        return ClaimAnswer((), str(error)), True
    return answers.get(claim.uid, ClaimAnswer((), "no entry in the answer")), False


async def _asked(bench: Workbench, claim: ConformanceClaim, until: Callable[[], bool] = lambda: False) -> bool:
    """Wait until the driver has asked about a claim, or a condition is true; return whether it has asked."""
    await bench.until(
        lambda: bench.cluster.held.has_claim(claim.reference) or until(), bench.patience(ASKED_SECONDS)
    )  # fmt: skip
    return bench.cluster.held.has_claim(claim.reference)


async def p12(bench: Workbench) -> None:
    """Give administrators access to a device that is in use, and to one that is not."""
    async with bench.claims() as (claim,):
        first = await bench.prepare(claim)
        resolved = set(cdi_ids(first)) & bench.cdi_devices()
        admin = await _admin_claim(bench, claim)
        answer = await _answer(bench, admin)
        if answer.error:
            await bench.unprepare(claim)
            if (alone := await _answer(bench, admin)).error:
                raise CheckNotApplicable(f"the driver refuses admin access: {alone.error}")
            raise CheckFailure(
                f"claim {claim.reference.name} has the device: {shown_answers(first)}",
                f"a claim with admin access to it: {shown_answer(answer)}",
                f"after claim {claim.reference.name} was unprepared: {shown_answer(alone)}",
            )
        await bench.unprepare(admin)
        if missing := resolved - bench.cdi_devices():
            raise CheckFailure(
                "a claim with admin access was unprepared",
                f"CDI ids of the claim that has the device do not resolve any more: {shown(missing)}",
            )
        await bench.prepare(claim)
        await bench.unprepare(claim)
        if not (await _answer(bench, admin)).error and (refused := await _answer(bench, claim)).error:
            raise CheckFailure(
                "a claim with admin access to the device is prepared",
                f"claim {claim.reference.name}, which was allocated the device: {shown_answer(refused)}",
            )


async def _admin_claim(bench: Workbench, other: ConformanceClaim) -> ConformanceClaim:
    def change(allocation: dict[str, Any]) -> None:
        results = [{**result, "adminAccess": True} for result in allocation["devices"]["results"]]
        allocation["devices"] = {**allocation["devices"], "results": results}

    return await bench.claim_like(other, request=bench.cluster.request(adminAccess=True), change=change)


async def p13(bench: Workbench) -> None:
    """Prepare two shares of one device."""
    if SUPPORTED_SERVICES[0] not in bench.plugin.versions:
        raise CheckNotApplicable(f"share_id exists in {SUPPORTED_SERVICES[0]} only, which is not advertised")
    if not any(device.fields.get("allowMultipleAllocations") for device in await bench.devices(least=1)):
        raise CheckNotApplicable("the driver publishes no device with allowMultipleAllocations")
    claims = [await _shared_claim(bench)]
    with suppress(CheckNotApplicable):  # by default a claim may get all capacity of a device
        claims.append(await _shared_claim(bench))
    answers = await bench.prepare(*claims)
    for claim in claims:
        sent = [result.get("shareID") for result in claim.results_of(bench.driver)]
        found = [device.share_id for device in answers[claim.uid].devices]
        if sorted(map(str, sent)) != sorted(map(str, found)):
            raise CheckFailure(
                f"share IDs of the allocation: {', '.join(map(str, sent))}",
                f"share_id of the answer: {', '.join(map(str, found)) or 'no devices'}",
            )
    ids = Counter(cdi_ids(answers))
    if double := [name for name, count in ids.items() if count > 1]:
        raise CheckFailure(f"both shares have the CDI ids {shown(double)}", shown_answers(answers))


async def _shared_claim(bench: Workbench) -> ConformanceClaim:
    request = bench.cluster.request(**bench.profile.shared_request)
    selector = {"cel": {"expression": "device.allowMultipleAllocations"}}
    request["exactly"]["selectors"] = [*request["exactly"].get("selectors", []), selector]
    try:
        return await bench.claim(requests=[request])
    except CheckBlocked as error:
        raise CheckNotApplicable(f"no share of a device can be allocated: {error}") from None


async def p14(bench: Workbench) -> None:
    """Configure a device by its class and by the claim, for all and for single requests."""
    settings = bench.profile.configurations
    if len(settings) < 2:
        raise CheckNotApplicable("the profile has no two configurations")
    of_class, of_claim = settings[0].expect, settings[1].expect
    request = bench.configured_request()

    def config(*requests: str) -> dict[str, Any]:
        return bench.cluster.configuration(bench.driver, settings[1].parameters, *requests)

    none = [bench.cluster.configuration(FOREIGN_DRIVER, {})]  # so that it is not the profile's
    await _require_configured(bench, "configured by the class only", [request], none, {"device": of_class})
    await _require_configured(bench, "configured by class and claim", [request], [config()], {"device": of_claim})
    if await _two(bench) > 1:  # with one request, the scheduler leaves out its name
        alternatives = {"name": "device", "firstAvailable": [{"name": "first", **request["exactly"]}]}
        await _require_configured(
            bench, "configured by the claim for request device of two, with subrequest device/first",
            [alternatives, bench.configured_request("other")], [config("device")],
            {"device": of_claim, "other": of_class},
        )  # fmt: skip


async def _require_configured(
    bench: Workbench,
    what: str,
    requests: Sequence[Mapping[str, Any]],
    config: Sequence[Mapping[str, Any]],
    expected: Mapping[str, ExpectedContainer],
) -> None:
    async with bench.claims(requests=requests, config=config) as (claim,):
        answers = await bench.prepare(claim)
        for request, container in expected.items():
            if missing := _missing(bench, answers[claim.uid], request, container):
                entries = claim.allocation["devices"].get("config", [])
                raise CheckFailure(
                    f"{what}; a container with request {request}:",
                    *missing,
                    *(
                        f"configuration {entry.get('source')} for {entry.get('requests') or 'all requests'}: "
                        f"{entry.get('opaque', {}).get('parameters')}"
                        for entry in entries
                    ),
                )


def _missing(bench: Workbench, answer: ClaimAnswer, request: str, expected: ExpectedContainer) -> list[str]:
    """Return what a container with a request of the claim lacks."""
    ids = [
        name
        for device in answer.devices
        if not device.request_names or request in {name.partition("/")[0] for name in device.request_names}
        for name in device.cdi_device_ids
    ]
    try:
        return list(expected.missing_in(bench.cdi().resolve(ids)))
    except UnresolvableDevices as error:
        raise CheckBlocked(f"{error}: see P16") from None


async def p15(bench: Workbench) -> None:
    """Prepare one device for two claims by two processes."""
    bench.require_rolling()
    async with bench.claims() as (claim,):
        _require_exclusive(claim)
        other = await bench.claim_like(claim)
        await bench.subject.stop()
        await bench.start(pod_uid=str(uuid.uuid4()))
        older = bench.plugin
        await bench.subject.start(str(uuid.uuid4()))
        newer = await bench.register(ignore=[older.socket])
        first = await bench.prepare(claim, plugin=older)
        second = await _answer(bench, other, newer)
        if not second.error:
            await bench.kubelet.unprepare([other.reference], plugin=newer)
            if not (await _answer(bench, other, older)).error:
                raise CheckBlocked("a single process prepares one device for two claims, too: see P10")
            raise CheckFailure(
                f"the older process prepared claim {claim.reference.name}: {shown_answers(first)}",
                f"the newer one prepared the same device for {other.reference.name}: {shown_answer(second)}",
            )
        await bench.kubelet.unprepare([claim.reference], plugin=newer)
        both = await asyncio.gather(_answer(bench, claim, older), _answer(bench, other, newer))
        if not any(answer.error for answer in both):
            raise CheckFailure(
                "two calls at the same time, one to each process, for two claims with the same device",
                *map(shown_answer, both),
            )


async def p16(bench: Workbench) -> None:
    """Resolve the CDI ids of an answer as a container runtime does."""
    async with bench.claims() as (claim,):
        ids = _require_cdi_ids(await bench.prepare(claim))
        try:
            bench.cdi().resolve(ids)
        except UnresolvableDevices as error:
            raise CheckFailure(
                f"returned: {', '.join(ids)}", str(error), f"files in {bench.places.cdi}: {shown(bench.cdi_files())}"
            ) from None


async def p17(bench: Workbench) -> None:
    """Compare what a container gets with the profile."""
    expected = bench.profile.expect
    if expected is None:
        raise CheckNotApplicable("the profile does not say what a container gets")
    async with bench.claims() as (claim,):
        answers = await bench.prepare(claim)
        if missing := _missing(bench, answers[claim.uid], "device", expected):
            raise CheckFailure(*missing, f"returned: {shown_answers(answers)}")


async def p18(bench: Workbench) -> None:
    """Compare the results of the allocation with the devices of the answer."""
    async with bench.claims() as (claim,):
        answers = await bench.prepare(claim)
        results = [(result["pool"], result["device"]) for result in claim.results_of(bench.driver)]
        devices = [(device.pool_name, device.device_name) for device in answers[claim.uid].devices]
        if set(results) != set(devices):
            raise CheckFailure(
                f"allocated: {', '.join('/'.join(item) for item in results)}",
                f"returned: {', '.join('/'.join(item) for item in devices) or 'no devices'}",
            )
        unnamed = [item for item in answers[claim.uid].devices if "device" not in (item.request_names or ["device"])]
        if unnamed and not any("/" in name for name in unnamed[0].request_names):
            raise CheckFailure(f"allocated for request device, returned: {shown_answers(answers)}")


async def p19(bench: Workbench) -> None:
    """Kill the driver in the middle of a call, and prepare the claim after its restart."""
    bench.require_start()
    async with bench.claims() as (claim,):
        for delay in (None, *_KILL_AFTER):
            await kill_during_prepare(bench, claim, delay)
            await bench.start()
            answer = await _answer(bench, claim)
            if answer.error:
                when = f"after {delay * 1000:g} ms" if delay is not None else "while it waited for the API server"
                raise CheckFailure(
                    f"the driver was killed during NodePrepareResources, {when}",
                    f"after its restart: {shown_answer(answer)}",
                    *bench.last_output(),
                )
            await bench.unprepare(claim)


async def kill_during_prepare(bench: Workbench, claim: ConformanceClaim, delay: float | None) -> None:
    """Kill the driver so many seconds after a call began; None: while it waits for the API server."""

    async def call() -> None:
        await _answer(bench, claim)

    if delay is None:
        with bench.cluster.held.holding():
            task = asyncio.create_task(call())
            await _asked(bench, claim, task.done)
            await bench.subject.kill()
    else:
        task = asyncio.create_task(call())
        await asyncio.sleep(delay)
        await bench.subject.kill()
    await task
    await bench.kubelet.forget()


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
        for seconds in _deadlines(bench):
            with bench.cluster.held.holding():
                answer, failed = await _called(bench, claim, seconds)
                if not failed:
                    raise CheckNotApplicable(_why_not_late(answer, seconds))
                asked = await _asked(bench, claim)
                released = asyncio.create_task(_released(bench, claim))
                # it may wait for the call, which waits for the API server
                await bench.until(released.done, bench.patience(ASKED_SECONDS))
            if problem := await released:
                raise CheckFailure("unprepare after a prepare that missed its deadline", problem)
            if await bench.until(lambda: bool(bench.cdi_devices() - before), bench.patience(SETTLE_SECONDS)):
                raise CheckFailure(
                    "a prepare missed its deadline, and the claim was unprepared",
                    f"after that, these CDI devices appeared: {shown(bench.cdi_devices() - before)}",
                )
            if asked:
                break
        await bench.prepare(claim)


def _why_not_late(answer: ClaimAnswer, seconds: float) -> str:
    """Return why a call was answered before its deadline although the API server does not answer."""
    if not answer.error:
        return "the driver prepares claims without an answer of the API server"
    return f"the driver waits for the API server for less than {seconds:g} s, and answers then: {shown_answer(answer)}"


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
    "P1": p1, "P2": p2, "P3": p3, "P4": p4, "P5": p5, "P6": p6, "P7": p7, "P8": p8, "P9": p9, "P10": p10,
    "P11": p11, "P12": p12, "P13": p13, "P14": p14, "P15": p15, "P16": p16, "P17": p17, "P18": p18, "P19": p19,
    "U1": u1, "U2": u2, "U3": u3, "U4": u4, "U5": u5, "U6": u6, "U7": u7, "U8": u8,
}  # fmt: skip
"""The checks of these groups."""
