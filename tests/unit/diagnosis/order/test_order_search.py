"""The search for a better order. Its tests run many simulations, which take seconds in all."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.diagnosis.device_order import Arrangement, OrderAdvice, OrderSearch, PublishedDevices
from dra_kit.diagnosis.workload import ClaimWorkload, WorkloadRequest, default_workload, mean_of, random_trace
from tests.unit.diagnosis.order.worlds import DRIVER, cards, kinds, ovens, plain, published

pytestmark = pytest.mark.processes


def advice(devices: PublishedDevices, workload: ClaimWorkload | None = None, *, seed: int = 0) -> OrderAdvice:
    workload = workload or default_workload(devices)
    return OrderSearch(devices, kinds(devices, workload), workload.load, seed).run()


def score(devices: PublishedDevices, arrangement: Arrangement, *, seeds: int = 6) -> float:
    found = kinds(devices)
    simulation = devices.simulation(arrangement)
    return mean_of([simulation.run(random_trace(f"test/{seed}", found, 0.6, 1), found) for seed in range(seeds)]).score


def test_parts_of_a_card_are_proposed_from_small_to_large() -> None:
    found = advice(published(cards(2)))

    assert found.helps
    assert str(found.steps[-1]) == "from small to large by capacity memory"
    assert found.comparison.better > 3 * found.comparison.worse


def test_order_that_was_proposed_is_kept_afterwards() -> None:
    found = advice(published(cards(2)))
    parts = list(cards(2).devices)
    exec(found.code, {"devices": parts, "counter_sets": cards(2).counter_sets})  # noqa: S102

    again = advice(published(dra.Pool(counter_sets=cards(2).counter_sets, devices=parts)))

    assert not again.helps
    assert again.comparison.before.score == pytest.approx(found.comparison.after.score)


def test_equal_devices_have_no_better_order() -> None:
    found = advice(published(plain([dra.Device(name=f"oven-{place}") for place in range(4)])))

    assert not found.helps
    assert found.steps == ()
    assert found.document()["helps"] is False


def test_groups_of_one_numa_node_need_devices_sorted_by_it() -> None:
    numa = "resource.kubernetes.io/numaNode"
    four = WorkloadRequest(name="four", device_class_name=DRIVER, count=4, match_attribute=numa)
    one = WorkloadRequest(name="one", weight=6, device_class_name=DRIVER)
    alternating = [dra.Device(name=f"oven-{place}", attributes={numa: place % 2}) for place in range(8)]

    found = advice(published(plain(alternating)), ClaimWorkload(load=0.4, requests=(four, one)))

    assert found.helps
    assert [step.name for step in found.steps] == [numa]
    assert found.comparison.before.constrained > found.comparison.after.constrained


def test_pools_with_small_devices_come_first() -> None:
    def pool(name: str, size: int) -> dra.Pool[dra.Device]:
        return plain([dra.Device(name=f"oven-{place}", capacity={"memory": f"{size}Gi"}) for place in range(3)], name)

    found = advice(published(pool("node-1/a", 8), pool("node-1/b", 2)))

    assert found.helps
    assert found.renamed_pools == ["node-1/b", "node-1/a"]
    assert published(pool("node-1/a", 8), pool("node-1/b", 2)).arranged(()).pools == (0, 1)


def test_no_order_of_few_devices_is_better_than_the_proposed_one() -> None:
    ovens_by_size = [dra.Device(name=f"oven-{size}", capacity={"memory": f"{size}Gi"}) for size in (4, 1, 2)]
    devices = published(plain(ovens_by_size))
    found = advice(devices)

    scores = {order: score(devices, Arrangement((order,), (0,)), seeds=24) for order in permutations(range(3))}

    assert found.helps
    assert scores[found.arrangement.devices[0]] == max(scores.values())


@given(ovens, st.integers(0, 3))
@settings(max_examples=10)
def test_no_order_is_proposed_whose_score_is_worse(found: list[dra.Device], seed: int) -> None:
    devices = published(plain(found))
    proposed = advice(devices, seed=seed)

    assert proposed.document() == advice(devices, seed=seed).document()
    if proposed.helps:
        assert proposed.comparison.after.score > proposed.comparison.before.score
        # with other arrivals, up to chance
        assert score(devices, proposed.arrangement, seeds=12) > score(devices, devices.arranged(()), seeds=12) - 0.02
