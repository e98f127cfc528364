from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import AllocationError, Unsupported
from dra_kit.kubernetes.allocator.devices import to_nano
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import DEFAULT, KubernetesVersion, Release
from dra_kit.kubernetes.resource.v1 import AllocationResult
from dra_kit.kubernetes.values.quantity import Quantity
from tests.unit.kubernetes.allocator.cluster import (
    DRIVER,
    Document,
    allocate,
    claim,
    counters,
    device,
    drawing,
    holder,
    names,
    request,
    slice_of,
)

SLOT = f"{DRIVER}/slot"
LIMIT = 3
SELECTORS = ["true", f'device.attributes["{DRIVER}"].slot == 0', f'device.attributes["{DRIVER}"].slot != 1']
ALLOWED = dict(zip(SELECTORS, ({0, 1, 2}, {0}, {0, 2}), strict=True))


@st.composite
def devices(draw: st.DrawFn, name: str) -> Document:
    fields: dict[str, Any] = {
        "attributes": {"slot": {"int": draw(st.integers(0, 2))}},
        "capacity": {"memory": {"value": draw(st.sampled_from(["1Gi", "2Gi", "3Gi"]))}},
    }
    if draw(st.booleans()):
        fields["allowMultipleAllocations"] = True
    if draw(st.booleans()):
        fields |= drawing(draw(st.integers(1, 2)))
    return device(name, **fields)


@st.composite
def inventories(draw: st.DrawFn) -> list[Document]:
    return [draw(devices(f"d{number}")) for number in range(draw(st.integers(0, 6)))]


@st.composite
def requests(draw: st.DrawFn, name: str) -> Document:
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        fields["capacity"] = {"requests": {"memory": draw(st.sampled_from(["512Mi", "1Gi", "2Gi"]))}}
    return request(name, draw(st.integers(1, 3)), draw(st.sampled_from(SELECTORS)), **fields)


@st.composite
def claims(draw: st.DrawFn, name: str = "claim") -> Document:
    kinds = st.sampled_from([[], [{"matchAttribute": SLOT}], [{"distinctAttribute": SLOT, "requests": ["r0"]}]])
    asked = [draw(requests(f"r{number}")) for number in range(draw(st.integers(1, 3)))]
    return claim(*asked, name=name, constraints=draw(kinds))


def world_of(inventory: list[Document], *held: AllocationResult) -> AllocatorState:
    return AllocatorState(
        slices=slices_of(inventory),
        classes=[{"metadata": {"name": "any"}}],
        claims=[holder(*allocation.to_json()["devices"].get("results", [])) for allocation in held],
        version=DEFAULT,
    )


def slices_of(inventory: list[Document]) -> list[Document]:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 2}
    return [slice_of(devices=inventory, pool=pool), slice_of(name="counters", pool=pool, **counters(LIMIT))]


def allocated_in_turn(inventory: list[Document], pods: list[Document]) -> list[AllocationResult]:
    """Allocate pods in order; return the allocations of those that fit."""
    world = world_of(inventory)
    found = []
    for pod in pods:
        for allocation in allocate(world, pod) or []:
            world.allocate(allocation)
            found.append(allocation)
    return found


pods_of = st.lists(claims(), min_size=1, max_size=4)


@given(inventories(), pods_of)
def test_only_shareable_device_is_allocated_twice(inventory: list[Document], pods: list[Document]) -> None:
    shareable = {one["name"] for one in inventory if one.get("allowMultipleAllocations")}
    results = [result for allocation in allocated_in_turn(inventory, pods) for result in allocation.devices.results]
    times = Counter(one.device for one in results)

    assert {name for name, count in times.items() if count > 1} <= shareable
    assert {one.device for one in results if one.share_id is not None} == shareable & times.keys()


@given(inventories(), pods_of)
def test_each_share_has_unique_id(inventory: list[Document], pods: list[Document]) -> None:
    results = [result for allocation in allocated_in_turn(inventory, pods) for result in allocation.devices.results]
    shares = [one.share_id for one in results if one.share_id is not None]

    assert len(set(shares)) == len(shares)


@given(inventories(), pods_of)
def test_counters_are_never_overdrawn(inventory: list[Document], pods: list[Document]) -> None:
    used = {result.device for allocation in allocated_in_turn(inventory, pods) for result in allocation.devices.results}
    amounts = [
        int(demand["counters"]["c"]["value"])
        for one in inventory
        if one["name"] in used
        for demand in one.get("consumesCounters", ())
    ]

    assert sum(amounts) <= LIMIT


@given(inventories(), pods_of)
def test_capacity_is_never_overdrawn(inventory: list[Document], pods: list[Document]) -> None:
    whole = {one["name"]: Quantity(one["capacity"]["memory"]["value"]) for one in inventory}
    for allocation in allocated_in_turn(inventory, pods):
        assert all(amount.sign > 0 for one in allocation.devices.results for amount in one.consumed_capacity.values())
    world = world_of(inventory, *allocated_in_turn(inventory, pods))

    assert all(sums["memory"] <= whole[one.device] for one, sums in world.usage.shared.items())


@given(inventories(), pods_of)
def test_allocation_satisfies_request(inventory: list[Document], pods: list[Document]) -> None:
    slots = {one["name"]: one["attributes"]["slot"]["int"] for one in inventory}
    for pod in pods:
        for allocation in allocate(world_of(inventory), pod) or []:
            results = allocation.devices.results
            for asked in pod["spec"]["devices"]["requests"]:
                mine = [slots[one.device] for one in results if one.request == asked["name"]]
                selector = asked["exactly"]["selectors"][0]["cel"]["expression"]
                assert len(mine) == asked["exactly"]["count"]
                assert set(mine) <= ALLOWED[selector]
            for constraint in pod["spec"]["devices"]["constraints"]:
                under = constraint.get("requests", ["r0", "r1", "r2"])
                covered = [slots[one.device] for one in results if one.request in under]
                assert len(set(covered)) == (1 if "matchAttribute" in constraint else len(covered))


@given(inventories(), pods_of)
def test_deallocate_restores_usage(inventory: list[Document], pods: list[Document]) -> None:
    world = world_of(inventory)
    before = [names(allocate(world, pod)) for pod in pods]
    allocations = [allocation for pod in pods for allocation in allocate(world, pod) or []]
    for allocation in allocations:
        world.allocate(allocation)
    for allocation in allocations:
        world.deallocate(allocation)

    assert not world.usage.exclusive
    assert not world.usage.shared
    assert [names(allocate(world, pod)) for pod in pods] == before


@given(inventories(), pods_of, devices("new"), st.data())
def test_additional_device_never_fails_pod(
    inventory: list[Document], pods: list[Document], new: Document, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(inventory)))
    more = [*inventory[:place], new, *inventory[place:]]
    for pod in pods:
        if allocate(world_of(inventory), pod) is not None:
            assert allocate(world_of(more), pod) is not None


@given(inventories(), pods_of)
def test_updated_snapshot_equals_new_snapshot(inventory: list[Document], pods: list[Document]) -> None:
    kept = world_of([])
    held: list[AllocationResult] = []
    kept.publish(slices_of(inventory))
    for pod in pods:
        found = allocate(kept, pod)
        assert names(found) == names(allocate(world_of(inventory, *held), pod))
        for allocation in found or []:
            kept.allocate(allocation)
            held.append(allocation)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=7),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.sampled_from(SELECTORS), st.sampled_from(SELECTORS)),
    st.booleans(),
    st.sampled_from([AllocatorRules.of(Release.parse("1.37")), AllocatorRules.alpha(DEFAULT)]),
)
def test_search_finds_existing_solution(
    described: list[tuple[int, int]],
    counts: tuple[int, int],
    selectors: tuple[str, str],
    distinct: bool,
    gates: AllocatorRules,
) -> None:
    """Compare with trying all sets of devices, for two requests, counters and a constraint."""
    slots, draws = [slot for slot, _ in described], [amount for _, amount in described]
    inventory = [
        device(
            f"d{number}",
            attributes={"slot": {"int": slot}},
            **(drawing(amount) if amount else {"consumesCounters": []}),
        )
        for number, (slot, amount) in enumerate(described)
    ]
    constraint = {"distinctAttribute" if distinct else "matchAttribute": SLOT}
    asked = [request(f"r{number}", counts[number], selectors[number]) for number in (0, 1)]

    everything = range(len(slots))
    possible = any(
        {slots[one] for one in first} <= ALLOWED[selectors[0]]
        and {slots[one] for one in second} <= ALLOWED[selectors[1]]
        and len({slots[one] for one in first + second}) == (sum(counts) if distinct else 1)
        and sum(draws[one] for one in first + second) <= LIMIT
        for first in combinations(everything, counts[0])
        for second in combinations([one for one in everything if one not in first], counts[1])
    )

    found = allocate(world_of(inventory), claim(*asked, constraints=[constraint]), gates=gates)
    assert (found is not None) == possible


NUMA = f"{DRIVER}/numa"
numbers = st.integers(0, 2)
attributes = st.one_of(
    st.none(), numbers.map(lambda one: {"int": one}), st.frozensets(numbers).map(lambda some: {"ints": sorted(some)})
)


@given(
    st.lists(attributes, min_size=1, max_size=8),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.sampled_from(["matchAttribute", "distinctAttribute"]), st.sampled_from([[], ["r0"], ["r1"]])),
    st.booleans(),
    st.integers(0, 3),
)
def test_pruned_search_finds_first_solution(
    published: list[dict[str, Any] | None],
    counts: tuple[int, int],
    constraint: tuple[str, list[str]],
    lists: bool,
    apart: int,
) -> None:
    """Compare with trying all sets of devices in order, with and without list attributes (KEP-5491)."""
    gates = AllocatorRules.alpha(DEFAULT) if lists else AllocatorRules.of(Release.parse("1.37"))
    inventory = [
        device(f"d{number}", attributes={"slot": {"int": int(number != apart)}} | ({"numa": one} if one else {}))
        for number, one in enumerate(published)
    ]
    asked = [request("r0", counts[0], SELECTORS[2 * (apart % 2)]), request("r1", counts[1])]
    kind, covered = constraint
    distinct = kind == "distinctAttribute"
    everything = range(len(published))
    allowed = ALLOWED[SELECTORS[2 * (apart % 2)]]

    def agree(picked: list[int]) -> bool:
        given = [published[one] for one in picked]
        if not lists:
            scalars = [one.get("int") if one else None for one in given]
            if None in given or None in scalars[1:]:
                return False
            return len(set(scalars)) == (len(scalars) if distinct else min(1, len(scalars)))
        sets = [frozenset(one.get("ints", [one.get("int")])) if one else frozenset() for one in given]
        if not all(sets):
            return False
        if distinct:
            return len(frozenset[Any]().union(*sets)) == sum(map(len, sets))
        return not sets or bool(frozenset.intersection(*sets))

    expected = next(
        (
            [f"d{one}" for one in (*first, *second)]
            for first in combinations(everything, counts[0])
            if all(int(one != apart) in allowed for one in first)
            for second in combinations([one for one in everything if one not in first], counts[1])
            if agree([*(first if "r1" not in covered else ()), *(second if "r0" not in covered else ())])
        ),
        None,
    )

    world = AllocatorState(
        slices=[slice_of(devices=inventory)], classes=[{"metadata": {"name": "any"}}], version=DEFAULT
    )
    found = names(allocate(world, claim(*asked, constraints=[{kind: NUMA, "requests": covered}]), gates=gates))
    assert found == (None if expected is None else [expected])


amounts = st.builds(
    "{}{}e{}".format,
    st.sampled_from(["", "-"]),
    st.sampled_from(["0", "1", "3", "9" * 18, "1" * 29, "7" * 4000, "9" * 5000]),
    st.sampled_from([-(2**31) + 1, -9, 0, 18, 3990, 4000, 5000, 300_000, 2**31 - 6000]),  # all are accepted
)
VERSIONS = [Release.parse("1.37").version, Release.parse("1.38").version]


@given(st.sampled_from(VERSIONS), st.lists(amounts, min_size=1, max_size=8))
def test_billionths_of_any_amount_have_4000_digits_and_keep_the_order(
    version: KubernetesVersion, written: list[str]
) -> None:
    ordered = sorted(Quantity(text, version) for text in written)

    nanos = [to_nano(quantity) for quantity in ordered]

    assert nanos == sorted(nanos)
    assert -(10**4000) <= nanos[0] <= nanos[-1] <= 10**4000


@given(st.sampled_from(VERSIONS), amounts, amounts, amounts, st.sampled_from([{}, {"step": "1"}, {"step": "1500m"}]))
def test_capacities_and_counters_of_any_amount_are_allocated_or_refused(
    version: KubernetesVersion, offered: str, asked: str, drawn: str, step: Document
) -> None:
    gates = AllocatorRules.of(Release.alpha(version).also("DRAFractionalCapacityRange"))
    policy = {"default": "1", "validRange": {"min": "0", "max": offered, **step}}
    shared = device(
        "shared",
        allowMultipleAllocations=True,
        capacity={"memory": {"value": offered, "requestPolicy": policy}},
        consumesCounters=[{"counterSet": "set", "counters": {"c": {"value": drawn}}}],
    )
    sets = {"sharedCounters": [{"name": "set", "counters": {"c": {"value": offered}}}]}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    slices = [slice_of(shared, pool=pool), slice_of(name="slice-2", pool=pool, **sets)]
    world = AllocatorState(slices=slices, classes=[{"metadata": {"name": "any"}}], version=version)
    wanted = claim(request(capacity={"requests": {"memory": asked}}))

    found: list[AllocationResult] | None = None
    with suppress(AllocationError):
        found = allocate(world, wanted, gates=gates)

    assert names(found) in (None, [["shared"]])
    for allocation in found or ():
        world.allocate(allocation)
        world.deallocate(allocation)


def test_scheduler_reads_quantities_in_its_own_release() -> None:
    policy = {"default": "1", "validRange": {"min": "0", "step": "10E"}}
    shared = device(
        "shared", allowMultipleAllocations=True, capacity={"memory": {"value": "100E", "requestPolicy": policy}}
    )
    wanted = claim(request(capacity={"requests": {"memory": "1"}}))
    kinds = []
    for version in VERSIONS:
        gates = AllocatorRules.of(Release.alpha(version))
        world = AllocatorState(slices=[slice_of(shared)], classes=[{"metadata": {"name": "any"}}], version=version)
        try:
            kinds.append(str(names(allocate(world, wanted, gates=gates))))
        except (AllocationError, Unsupported) as error:
            kinds.append(type(error).__name__)

    # before 1.38, the int64 of 10E is 0, which cannot be a step; since, it is the largest int64
    assert kinds == ["Unsupported", "[['shared']]"]
