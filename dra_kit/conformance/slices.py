"""Group S: ResourceSlices."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.conformance.cluster import FOREIGN_DRIVER, newest
from dra_kit.conformance.profile import DriverProfile
from dra_kit.conformance.workbench import (
    SETTLE_SECONDS,
    CheckBlocked,
    CheckFailure,
    CheckFunction,
    CheckNotApplicable,
    Workbench,
    shown,
)
from dra_kit.errors import AllocationError, Conflict, KubeError, NotFound
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.conversion import GATED_FIELDS, drop_disabled_fields
from dra_kit.kubernetes.resource.objects import ClaimReference

CACHE_SECONDS: Final = 65.0
"""Seconds after which ``k8s.io/dynamic-resource-allocation`` before v0.37 does not remember its own writes any more."""
STEADY_SECONDS: Final = 5.0
"""Seconds in which a driver that has nothing to do is watched."""
REPETITION_SECONDS: Final = 30.0
"""Seconds in which a loop shows whose rounds are longer than :data:`STEADY_SECONDS`."""
_POLL: Final = 0.1
_MORE_SECONDS: Final = 0.5  # between the first and the last pool that a driver publishes at its start
_DEVICES_MAX, _DEVICES_MAX_WITH_MORE, _COUNTER_SETS_MAX = 128, 64, 8  # k8s.io/api resource/v1
_LIST_FIELDS: Final = frozenset({"ints", "bools", "strings", "versions"})
_REJECTION: Final = "rejected by the conformance check S10"
_OTHER_NODE: Final = "conformance-other-node"

Slice = Mapping[str, Any]


# --- what the driver has published


async def own_slices(bench: Workbench) -> list[dict[str, Any]]:
    """Return the driver's slices but those that S13 has made for another node."""
    found = await bench.cluster.slices(bench.driver)
    return [item for item in found if item["spec"].get("nodeName") != _OTHER_NODE]


async def published(bench: Workbench) -> list[dict[str, Any]]:
    """Return the driver's slices when its pools are complete, and no more pools come.

    Raises:
        CheckBlocked: there are none.
    """
    seen = await bench.devices()
    found, since = await own_slices(bench), time.monotonic()
    end = since + bench.profile.restored_within
    while bench.settled != bench.subject.starts and (now := time.monotonic()) < end:
        # slices of its former process that are gone now are being replaced
        if (found or not seen) and now - since > bench.patience(_MORE_SECONDS):
            bench.settled = bench.subject.starts
            break
        await asyncio.sleep(_POLL)
        before, found = found, await own_slices(bench)
        if names_of(before) != names_of(found):
            since = time.monotonic()
    if not found:
        raise CheckBlocked("\n".join([f"driver {bench.driver} publishes no slices", *bench.last_output()]))
    return found


def names_of(slices: Sequence[Slice]) -> list[str]:
    """Return pools, devices and counter sets, in order; what else a slice says may change at any time."""
    return sorted(
        f"{item['spec']['pool']['name']}/{entry['name']}"
        for item in newest([dict(one) for one in slices])
        for entry in (*(item["spec"].get("devices") or ()), *(item["spec"].get("sharedCounters") or ()))
    )


def versions_of(slices: Iterable[Slice]) -> dict[str, str]:
    """Return UID and resource version of slices by name."""
    return {item["metadata"]["name"]: f"{item['metadata']['uid']} {item['metadata']['resourceVersion']}"
            for item in slices}  # fmt: skip


async def steady_versions(
    read: Callable[[], Awaitable[list[dict[str, Any]]]], profile: DriverProfile
) -> dict[str, str]:
    """Return the versions of slices when they have not changed for ``steadyAfter`` seconds.

    Args:
        read: returns the slices.
        profile: of the driver. If the slices still change ``restoredWithin`` seconds later, the last versions are
            returned.
    """
    since = time.monotonic()
    end = since + profile.steady_after + profile.restored_within
    found = versions_of(await read())
    while since + profile.steady_after > (now := time.monotonic()) <= end:
        await asyncio.sleep(_MORE_SECONDS)
        before, found = found, versions_of(await read())
        if found != before:
            since = now
    return found


def shown_slice(item: Slice) -> str:
    """Return a slice for people."""
    spec = item["spec"]
    pool = spec["pool"]
    return (
        f"slice {item['metadata'].get('name', '?')}: pool {pool['name']}, generation {pool.get('generation', 0)}, "
        f"resourceSliceCount {pool['resourceSliceCount']}, {len(spec.get('devices') or ())} devices, "
        f"{len(spec.get('sharedCounters') or ())} counter sets"
    )


async def end_driver(bench: Workbench) -> None:
    """Leave the next check a new process: this one does not look after its slices any more."""
    if bench.subject.can_start:
        await bench.subject.kill()
        await bench.kubelet.forget()


async def _restored(bench: Workbench, expected: list[str]) -> bool:
    """Wait until the slices have what they had; return whether they have in time."""
    end = time.monotonic() + bench.profile.restored_within
    while Counter(expected) - Counter(names_of(await own_slices(bench))):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_POLL)
    return True


async def _require_restored(bench: Workbench, before: Sequence[Slice], what: str) -> None:
    expected = names_of(before)
    if not await _restored(bench, expected):
        missing = set(expected) - set(names_of(await own_slices(bench)))
        evidence = [
            what, f"after {bench.profile.restored_within:g} s, these are missing: {shown(missing)}",
            *map(shown_slice, await own_slices(bench)), *bench.last_output(),
        ]  # fmt: skip
        await end_driver(bench)
        raise CheckFailure(*evidence)


async def delete_slice(bench: Workbench, item: Slice) -> None:
    """Delete a slice, if it exists."""
    with suppress(NotFound):  # the driver may just replace it
        await bench.cluster.client.delete(RESOURCE_SLICES, item["metadata"]["name"])


async def _put_back(bench: Workbench, item: Slice) -> None:
    """Create a slice again that was deleted."""
    kept = {key: item["metadata"][key] for key in ("name", "labels", "ownerReferences") if key in item["metadata"]}
    with suppress(Conflict):
        await bench.cluster.client.create(
            RESOURCE_SLICES,
            {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": kept, "spec": item["spec"]},
        )


async def _edit(bench: Workbench, slices: Sequence[Slice]) -> str:
    """Take a device out of a slice, if possible one without a taint; return what was done."""
    devices = [(item, device) for item in slices for device in item["spec"].get("devices") or ()]
    if not devices:
        raise CheckBlocked(f"driver {bench.driver} publishes no devices")
    victim, gone = next((found for found in devices if not found[1].get("taints")), devices[-1])
    name = victim["metadata"]["name"]
    rest = [device for device in victim["spec"]["devices"] if device is not gone]
    for _ in range(5):
        current = await bench.cluster.client.get(RESOURCE_SLICES, name)
        edited = {**current, "spec": {**current["spec"], "devices": rest}}
        with suppress(KubeError):  # the driver has written it meanwhile
            await bench.cluster.client.update(RESOURCE_SLICES, edited)
            return f"device {gone['name']} was taken out of slice {name}"
    raise CheckBlocked(f"slice {name} cannot be edited: the driver writes it again and again, see S2")


# --- the checks


async def s1(bench: Workbench) -> None:
    """Compare nodeName and owner of slices with the node."""
    local = [item for item in await published(bench) if "nodeName" in item["spec"]]
    if not local:
        raise CheckNotApplicable("no slice has a nodeName: the driver publishes devices of several nodes only")
    problems = []
    for item in local:
        name, node = item["metadata"]["name"], item["spec"]["nodeName"]
        owners = item["metadata"].get("ownerReferences") or []
        if node != bench.cluster.node:
            problems.append(f"slice {name} has nodeName {node}, and the driver runs on {bench.cluster.node}")
        if not any(owner["kind"] == "Node" and owner["uid"] == bench.cluster.node_uid for owner in owners):
            problems.append(
                f"slice {name} has ownerReferences {json.dumps(owners)}, expected Node {bench.cluster.node} with UID "
                f"{bench.cluster.node_uid}"
            )
    if problems:
        raise CheckFailure(*problems)


async def s2(bench: Workbench) -> None:
    """Watch for writes while nothing changes."""
    await published(bench)
    await _require_no_writes(bench, "nothing had changed")


async def _require_no_writes(bench: Workbench, when: str) -> None:
    """Wait until the driver is quiet, and watch it then.

    Raises:
        CheckFailure: it never is, or it writes again.
    """
    before, sent, began = bench.cluster.slice_writes(), bench.cluster.writes.count, time.monotonic()
    if is_quiet := await bench.quiet():
        before, sent, began = bench.cluster.slice_writes(), bench.cluster.writes.count, time.monotonic()
        await bench.until(lambda: bench.cluster.slice_writes() > before, bench.patience(STEADY_SECONDS))
    if (count := bench.cluster.slice_writes() - before) or not is_quiet:
        raise CheckFailure(
            f"{count} write requests for slices in {time.monotonic() - began:.0f} s, although {when}",
            *_shown_writes(bench, sent),
        )


def _shown_writes(bench: Workbench, sent: int) -> list[str]:
    """Return the newest slices for people that the driver has sent after so many."""
    new = min(bench.cluster.writes.count - sent, len(bench.cluster.writes.tried))
    return [f"written: {shown_slice(item)}" for item in [*bench.cluster.writes.tried][::-1][:new][:5]]


async def _require_no_repetition(bench: Workbench, sent: int, when: str) -> None:
    """Watch for a slice that the driver has written before, since it had sent so many.

    Raises:
        CheckFailure: there is one.
    """
    writes = bench.cluster.writes
    known = {_written(item) for item in [*writes.tried][max(0, len(writes.tried) - (writes.count - sent)) :]}
    start, began = writes.count, time.monotonic()

    def is_repeated() -> bool:
        new = min(writes.count - start, len(writes.tried))
        return any(_written(item) in known for item in [*writes.tried][len(writes.tried) - new :])

    if await bench.until(is_repeated, bench.patience(REPETITION_SECONDS)):
        raise CheckFailure(
            f"a slice was written again without a change after {time.monotonic() - began:.0f} s, although {when}",
            *_shown_writes(bench, start),
        )


def _written(item: Slice) -> str:
    """Return what a driver wants a slice to be; a new generation alone does not change it."""
    pool = {key: value for key, value in item["spec"]["pool"].items() if key != "generation"}
    return json.dumps({**item["spec"], "pool": pool}, sort_keys=True)


async def s3(bench: Workbench) -> None:
    """Compare slices before and after a restart."""
    bench.require_start()
    await published(bench)
    if not await bench.quiet(SETTLE_SECONDS):
        raise CheckBlocked("slices are written without a restart, too: see S2")
    before = versions_of(await own_slices(bench))
    await bench.restart(kill=True)
    await bench.quiet(SETTLE_SECONDS)
    require_same_slices(before, versions_of(await own_slices(bench)), "the driver was killed and started again")


def require_same_slices(before: Mapping[str, str], after: Mapping[str, str], when: str) -> None:
    """Compare what :func:`versions_of` returned.

    Raises:
        CheckFailure: slices have come, gone or changed.
    """
    problems = [f"slice {name} is gone" for name in before if name not in after]
    problems += [f"slice {name} is new" for name in after if name not in before]
    problems += [
        f"slice {name} was {'created again' if after[name].split()[0] != before[name].split()[0] else 'written'}"
        for name in before
        if name in after and after[name] != before[name]
    ]
    if problems:
        raise CheckFailure(when, *problems)


async def s4(bench: Workbench) -> None:
    """Delete a slice, and edit one."""
    before = await published(bench)
    victim = before[0]
    what = f"slice {victim['metadata']['name']} was deleted"
    await delete_slice(bench, victim)
    if not await _restored(bench, names_of(before)):
        # it may have been written just before, which is what S5 is about
        await _put_back(bench, victim)
        await asyncio.sleep(CACHE_SECONDS)
        await delete_slice(bench, victim)
        await _require_restored(bench, before, f"{what}, and again {CACHE_SECONDS:g} s after it had been put back")
    done = await _edit(bench, await own_slices(bench))
    await _require_restored(bench, before, done)


async def s5(bench: Workbench) -> None:
    """Delete a slice right after the driver has written it."""
    before = await published(bench)
    await _edit(bench, before)
    if not await _restored(bench, names_of(before)):
        await end_driver(bench)
        raise CheckBlocked("the driver does not restore a slice that was edited: see S4")
    current = await own_slices(bench)
    victim = max(current, key=lambda item: int(item["metadata"]["resourceVersion"]))
    await delete_slice(bench, victim)
    what = f"slice {victim['metadata']['name']} was deleted as soon as the driver had updated it"
    await _require_restored(bench, before, what)


async def s6(bench: Workbench) -> None:
    """Compare generations and numbers of slices."""
    await published(bench)
    end = time.monotonic() + bench.profile.restored_within
    while problems := problems_of_pools(slices := await own_slices(bench)):
        if time.monotonic() > end:
            raise CheckFailure(*problems, *map(shown_slice, slices))
        await asyncio.sleep(_POLL)


def problems_of_pools(slices: Sequence[Slice]) -> list[str]:
    """Return in what pools differ from the rule of generations."""
    problems = []
    for pool in sorted({item["spec"]["pool"]["name"] for item in slices}):
        members = [item["spec"] for item in slices if item["spec"]["pool"]["name"] == pool]
        generations = {spec["pool"].get("generation", 0) for spec in members}
        counts = {spec["pool"]["resourceSliceCount"] for spec in members}
        devices = Counter(device["name"] for spec in members for device in spec.get("devices") or ())
        if len(generations) > 1:
            problems.append(f"pool {pool} has slices of the generations {', '.join(map(str, sorted(generations)))}")
        elif counts != {len(members)}:
            problems.append(f"pool {pool} has {len(members)} slices, and resourceSliceCount {shown(map(str, counts))}")
        elif double := [name for name, count in devices.items() if count > 1]:
            problems.append(f"pool {pool} has several devices with the name {shown(double)}")
    return problems


async def s7(bench: Workbench) -> None:
    """Count devices of the slices that the driver writes, accepted or not."""
    problems = []
    for item in [*await published(bench), *bench.cluster.writes.tried]:
        devices = item["spec"].get("devices") or ()
        limit = _DEVICES_MAX_WITH_MORE if any(map(_has_more, devices)) else _DEVICES_MAX
        if len(devices) > limit:
            problems.append(f"{shown_slice(item)}; the API server accepts at most {limit} devices")
    if problems:
        raise CheckFailure(*dict.fromkeys(problems), *bench.last_output())


def _has_more(device: Mapping[str, Any]) -> bool:
    """Return whether a device has what halves the limit."""
    if device.get("taints") or device.get("consumesCounters"):
        return True
    return any(_LIST_FIELDS & set(value) for value in (device.get("attributes") or {}).values())


async def s8(bench: Workbench) -> None:
    """Count counter sets of the slices that the driver writes, accepted or not."""
    slices = [*await published(bench), *bench.cluster.writes.tried]
    with_counters = [item for item in slices if item["spec"].get("sharedCounters")]
    if not with_counters:
        raise CheckNotApplicable("the driver publishes no counter sets")
    problems = []
    for item in with_counters:
        if (count := len(item["spec"]["sharedCounters"])) > _COUNTER_SETS_MAX:
            problems.append(f"{shown_slice(item)}; the API server accepts at most {_COUNTER_SETS_MAX}, not {count}")
        if item["spec"].get("devices"):
            problems.append(f"{shown_slice(item)}; a slice has either devices or counter sets")
    if problems:
        raise CheckFailure(*dict.fromkeys(problems), *bench.last_output())


async def s9(bench: Workbench) -> None:
    """Run the driver against an API server that has optional features off."""
    bench.require_start()
    slices = await published(bench)
    api = bench.cluster.server.api
    usual = api.release
    plain = usual.without(*(gate for gates, _ in GATED_FIELDS for gate in gates))
    fields = _fields_lost(slices, plain)
    if not fields:
        raise CheckNotApplicable("the driver publishes no field of a feature that a cluster may have off")
    await bench.subject.kill()
    await bench.kubelet.forget()
    for item in slices:
        await delete_slice(bench, item)
    api.release = plain
    sent, when = bench.cluster.writes.count, f"the API server drops {shown(fields)}"
    try:
        instance = await bench.start()
        await _require_no_writes(bench, when)
        output = instance.output().casefold()
        if "drop" not in output and not any(field.casefold() in output for field in fields):
            raise CheckFailure(
                f"the API server dropped {shown(fields)}, as features are off",
                "the log has neither these names nor the word 'dropped'",
                *bench.last_output(),
            )
        await _require_no_repetition(bench, sent, when)
    finally:
        api.release = usual
        await end_driver(bench)
        for item in await own_slices(bench):
            await delete_slice(bench, item)


def _fields_lost(slices: Sequence[dict[str, Any]], release: Release) -> set[str]:
    """Return the names of the fields that an API server drops."""
    lost: set[str] = set()
    for item in slices:
        left = drop_disabled_fields(item, None, release)
        lost |= set(item["spec"]) - set(left["spec"])
        for device, other in zip(
            item["spec"].get("devices") or (), left["spec"].get("devices") or (), strict=False
        ):  # fmt: skip
            lost |= set(device) - set(other)
    return lost


async def s10(bench: Workbench) -> None:
    """Have the API server reject a pool, after all slices were deleted."""
    before = await published(bench)
    pool = min(item["spec"]["pool"]["name"] for item in before)
    others = [item for item in before if item["spec"]["pool"]["name"] != pool]
    rejected = bench.cluster.writes.rejected
    with bench.cluster.writes.rejecting(pool, _REJECTION):
        for item in before:
            if item not in others:
                await delete_slice(bench, item)
        what = f"all slices were deleted, and the API server rejects those of pool {pool}"
        if not await bench.until(lambda: bench.cluster.writes.rejected > rejected, bench.profile.restored_within):
            await end_driver(bench)
            raise CheckBlocked(f"{what}; the driver does not try to write them: see S4")
        for item in others:  # only now: it could restore them before it gets to the rejected pool
            await delete_slice(bench, item)
        await _require_restored(bench, others, what)
        if not await bench.until(lambda: _reported(bench), bench.patience(SETTLE_SECONDS)):
            raise CheckFailure(what, f"the log does not have the reason {_REJECTION!r}", *bench.last_output())
    await _require_restored(bench, before, f"{what}; after that, it accepts them again")


def _reported(bench: Workbench) -> bool:
    instance = bench.subject.instance  # its log is not known here if others started it
    return instance is None or not instance.alive or _REJECTION in instance.output()


async def s11(bench: Workbench) -> None:
    """Compare timeAdded of taints before and after the driver has repaired a slice."""
    slices = await published(bench)
    before = _times(slices)
    if not before:
        raise CheckNotApplicable("the driver publishes no device with a taint")
    tainted = [item for item in slices if _times([item])]
    if any(not device.get("taints") for item in tainted for device in item["spec"]["devices"]):
        await _edit(bench, tainted)  # a device without a taint: the time of one that is gone is unknown
        if not await _restored(bench, names_of(slices)):
            await end_driver(bench)
            raise CheckBlocked("the driver does not restore a slice that was edited: see S4")
        _require_times(before, _times(await own_slices(bench)), "a slice was edited, and the driver repaired it")
    if bench.subject.can_start:
        await bench.restart(kill=True)
        await bench.quiet()
        _require_times(before, _times(await own_slices(bench)), "the driver was killed and started again")


def _times(slices: Sequence[Slice]) -> dict[str, str]:
    return {
        f"{item['spec']['pool']['name']}/{device['name']} {taint['key']}:{taint['effect']}": taint.get("timeAdded", "")
        for item in slices
        for device in item["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
    }


def _require_times(before: Mapping[str, str], after: Mapping[str, str], when: str) -> None:
    if changed := [name for name in before if name in after and before[name] != after[name]]:
        raise CheckFailure(when, *(f"taint {name}: {before[name]}, now {after[name]}" for name in changed))


async def s12(bench: Workbench) -> None:
    """Start the driver without devices."""
    variables = bench.profile.without_devices
    if variables is None:
        raise CheckNotApplicable("the profile has no withoutDevices")
    bench.require_start()
    await bench.subject.kill()
    await bench.kubelet.forget()
    try:
        words = [f"{name}={value}" for name, value in variables.items()]
        await bench.subject.start(prefix=["env", *words])
        await bench.register()
        end = time.monotonic() + bench.profile.steady_after + bench.profile.restored_within
        while names_of(await own_slices(bench)):
            if time.monotonic() > end:
                raise CheckBlocked(f"started with {' '.join(words)}, the driver publishes devices: see withoutDevices")
            await asyncio.sleep(_POLL)
        await _require_no_writes(bench, "the driver has no devices")
        slices = await own_slices(bench)
        pools = Counter(item["spec"]["pool"]["name"] for item in slices)
        if several := [pool for pool, count in pools.items() if count > 1]:
            raise CheckFailure(f"pools without devices have several slices: {shown(several)}",
                               *map(shown_slice, slices))  # fmt: skip
    finally:
        await end_driver(bench)


async def s13(bench: Workbench) -> None:
    """Put slices of another driver and of another node beside the driver's."""
    own = await published(bench)
    foreign = [
        await bench.cluster.client.create(RESOURCE_SLICES, foreign_slice("conformance-other-driver", FOREIGN_DRIVER,
                                                                    bench.cluster.node)),
        await bench.cluster.client.create(RESOURCE_SLICES, foreign_slice(_OTHER_NODE, bench.driver, _OTHER_NODE)),
    ]  # fmt: skip
    before = versions_of(foreign)
    try:
        await delete_slice(bench, own[0])  # so that the driver has to compare
        await _restored(bench, names_of(own))
        if bench.subject.can_start:
            await bench.restart(kill=True)
        await bench.quiet(SETTLE_SECONDS)
        after = {name: version for name, version in versions_of(await bench.cluster.slices()).items() if name in before}
        require_same_slices(
            before, after, f"slices of driver {FOREIGN_DRIVER} and of node {_OTHER_NODE} were there when the driver "
            "repaired its own and was restarted",
        )  # fmt: skip
    finally:
        for item in foreign:
            await delete_slice(bench, item)


def foreign_slice(name: str, driver: str, node: str) -> dict[str, Any]:
    """Return a slice with one device, of another driver or another node."""
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "device"}],
        },
    }


async def s14(bench: Workbench) -> None:
    """Stop the driver, and watch its slices."""
    bench.require_start()
    await published(bench)
    await bench.quiet()
    await bench.subject.stop()
    writes = bench.cluster.slice_writes()  # at once: those that follow come after the end of the process
    before = versions_of(await own_slices(bench))
    await bench.kubelet.forget()
    if await bench.until(lambda: bench.cluster.slice_writes() > writes, bench.patience(SETTLE_SECONDS)):
        after = versions_of(await own_slices(bench))
        when = "the driver's process has exited, and slices are written"
        require_same_slices(before, after, when)
        raise CheckFailure(when)


async def s15(bench: Workbench) -> None:
    """Allocate a device by a class of the driver."""
    slices = await published(bench)
    request = bench.cluster.request()
    claim = await bench.cluster.create_claim([request])
    problem = "no device matches"
    try:
        if await bench.cluster.allocate(claim) is not None:
            return
    except AllocationError as error:
        problem = str(error)
    finally:
        metadata = claim["metadata"]
        await bench.cluster.delete_claim(ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"]))
    raise CheckFailure(f"request: {json.dumps(request)}", problem, *map(shown_slice, slices), *_tainted(slices))


def _tainted(slices: Sequence[Slice]) -> list[str]:
    names = {name.split()[0] for name in _times(slices)}
    return [f"devices with taints: {shown(names)}"] if names else []


CHECKS: Final[dict[str, CheckFunction]] = {
    "S1": s1, "S2": s2, "S3": s3, "S4": s4, "S5": s5, "S6": s6, "S7": s7, "S8": s8, "S9": s9, "S10": s10,
    "S11": s11, "S12": s12, "S13": s13, "S14": s14, "S15": s15,
}  # fmt: skip
"""The checks of this group."""
