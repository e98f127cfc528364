from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.explain.conditions import shorten
from tests.unit.explain.world import PIZZA, Document, claim, cluster, device, explain, held, pizza, request, slice_of

Values = tuple[int, int, int]

devices = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=8)


def world(values: Sequence[Values]) -> Document:
    return slice_of(*[
        device(f"d{place}", attributes={name: {"int": value} for name, value in zip("abc", each, strict=True)})
        for place, each in enumerate(values)
    ])  # fmt: skip


def conditions() -> list[str]:
    return [f"{PIZZA}.{name} == 1" for name in "abc"]


@given(devices)
def test_without_the_condition_as_many_devices_fit_as_was_said(values: list[Values]) -> None:
    where = cluster(world(values))
    explanation = explain(where, claim(request("r", 1, " && ".join(conditions()))))

    for miss in explanation.nearest:
        kept = [each for each in conditions() if f"without `{shorten(each)}`" != miss.change]
        relaxed = explain(where, claim(request("r", 1, " && ".join(kept))))
        assert len(kept) == 2
        assert len(relaxed.requests[0].ways[0].fits) == miss.devices
        assert relaxed.good == miss.enough


@given(devices)
def test_a_miss_is_told_wherever_one_change_would_do(values: list[Values]) -> None:
    explanation = explain(cluster(world(values)), claim(request("r", 1, " && ".join(conditions()))))

    expected = {f"without `{name} == 1`" for place, name in enumerate("abc")
                if any(sum(each) == 2 and not each[place] for each in values)}  # fmt: skip
    assert {miss.change for miss in explanation.nearest} == (set() if explanation.good else expected)


def test_waiting_for_devices_comes_before_taking_others() -> None:
    where = cluster(slice_of(pizza("a", "brie"), pizza("b"), pizza("c")), claims=[held("lunch", "a")])

    explanation = explain(where, claim(request("r", 1, f'{PIZZA}.cheese == "brie"')))

    assert [miss.change for miss in explanation.nearest] == [
        "once other claims release their devices",
        'without `cheese == "brie"`',
    ]


def test_a_change_that_gives_too_few_devices_says_so() -> None:
    where = cluster(slice_of(pizza("a", "brie"), pizza("b")))

    [miss] = explain(where, claim(request("r", 3, f'{PIZZA}.cheese == "brie"'))).nearest

    assert (miss.devices, miss.enough) == (2, False)


def test_a_taint_can_be_tolerated() -> None:
    where = cluster(slice_of(pizza("a", taints=[{"key": "broken", "effect": "NoSchedule"}])))

    assert [miss.change for miss in explain(where, claim(request())).nearest] == [
        "with a toleration of the taint broken"
    ]
