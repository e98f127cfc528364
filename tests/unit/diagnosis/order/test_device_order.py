"""The order of devices: what a sort does, how orders are measured."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.diagnosis.device_order import Arrangement, PublishedDevices, SortStep
from dra_kit.diagnosis.workload import (
    WorkloadRequest,
    claim_of,
    random_trace,
)
from dra_kit.kubernetes.release import Release
from tests.unit.diagnosis.order.worlds import DRIVER, cards, kinds, ovens, plain, published

ANY = claim_of(WorkloadRequest(name="any", device_class_name=DRIVER), Release.of())


def names(devices: PublishedDevices, steps: tuple[SortStep, ...]) -> list[str]:
    [places], [pool] = devices.arranged(steps).devices, devices.pools
    return [pool.devices[place].name for place in places]


@given(ovens, st.data())
@settings(max_examples=30)
def test_printed_code_makes_the_order_that_was_measured(found: list[dra.Device], data: st.DataObject) -> None:
    devices = published(plain(found))
    steps = devices.steps()
    chosen = tuple(data.draw(st.lists(st.sampled_from(steps), max_size=3))) if steps else ()
    sorted_devices = list(found)

    for step in chosen:
        scope = {"devices": sorted_devices, "counter_sets": []}
        exec(step.helpers + step.code, scope)  # noqa: S102 - the code of the advice

    assert [device.name for device in sorted_devices] == names(devices, chosen)


def test_printed_code_sorts_parts_of_cards_by_what_they_exclude() -> None:
    pool = cards(2)
    devices = published(pool)
    for down in (False, True):
        step = SortStep("exclusions", descending=down)
        parts = list(pool.devices)

        exec(step.helpers + step.code, {"devices": parts, "counter_sets": pool.counter_sets})  # noqa: S102

        assert [device.name for device in parts] == names(devices, (step,))
    assert names(devices, (SortStep("exclusions"),))[0] == "card-0-1-0"
    assert names(devices, (SortStep("exclusions", descending=True),))[0] == "card-0-4-0"


@given(ovens, st.data())
@settings(max_examples=10)
def test_scheduler_takes_the_first_device_of_the_arranged_order(found: list[dra.Device], data: st.DataObject) -> None:
    devices = published(plain(found))
    steps = devices.steps()
    chosen = tuple(data.draw(st.lists(st.sampled_from(steps), max_size=2))) if steps else ()

    allocation = devices.simulation(devices.arranged(chosen)).allocate(ANY, devices.nodes)

    assert allocation is not None
    assert allocation.devices.results[0].device == names(devices, chosen)[0]


@given(ovens, st.randoms(use_true_random=False), st.integers(1, 10))
@settings(max_examples=8)
def test_measures_are_within_their_bounds_and_leave_nothing_in_use(
    found: list[dra.Device], shuffle: object, load: int
) -> None:
    devices = published(plain(found))
    of_claims = kinds(devices)
    places = list(range(len(found)))
    shuffle.shuffle(places)  # type: ignore[attr-defined]
    simulation = devices.simulation(Arrangement((tuple(places),), (0,)))

    measure = simulation.run(random_trace("bounds", of_claims, load / 10, 1), of_claims)

    assert 0 <= measure.score <= 1
    assert 0 <= measure.served <= 1
    assert all(0 <= fitting <= len(found) for fitting in measure.fitting)
    assert 0 <= measure.constrained <= measure.stranded
    assert simulation.count(ANY) == len(found)


def test_reordered_slices_keep_their_names_sizes_and_counters() -> None:
    pool = cards(3)
    devices = published(pool)
    before = {each.metadata.name: each for each in devices.pools[0].slices}
    places = devices.arranged((SortStep("reverse"),)).devices[0]

    after = list(devices.pools[0].in_order(places, "other"))

    assert [each.metadata.name for each in after] == list(before)
    assert [device.name for each in after for device in each.spec.devices] == [
        device.name for device in reversed(pool.devices)
    ]
    assert {each.spec.pool.name for each in after} == {"other"}
    for each in after:
        assert len(each.spec.devices) == len(before[each.metadata.name].spec.devices)
        assert each.spec.shared_counters == before[each.metadata.name].spec.shared_counters
