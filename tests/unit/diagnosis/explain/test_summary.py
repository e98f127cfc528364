from __future__ import annotations

from dra_kit.diagnosis.explain.verdicts import summarize
from tests.unit.diagnosis.explain.world import PIZZA, claim, cluster, held, node, pizza, request, slice_of, verdicts

BRIE = claim(request("r", 1, f'{PIZZA}.cheese == "brie"'))


def test_devices_are_counted_by_what_they_fail_for() -> None:
    tainted = pizza("t", "brie", taints=[{"key": "broken", "effect": "NoSchedule"}])
    where = cluster(
        slice_of(*(pizza(f"c{n}", "cheddar") for n in range(5)), pizza("a", "brie"), pizza("b", "brie"), tainted),
        claims=[held("lunch", "a", "b")],
    )

    assert summarize(list(verdicts(where, BRIE).values())) == (
        '8 devices on 1 node: 5 wrong cheese ("cheddar" ≠ "brie"), 2 allocated to default/lunch, '
        "1 tainted (broken:NoSchedule)"
    )


def test_the_most_frequent_of_many_values_are_reported() -> None:
    cheeses = ["gouda", "gouda", "edam", "feta", "tilsit"]
    where = cluster(slice_of(*(pizza(f"c{n}", cheese) for n, cheese in enumerate(cheeses))))

    assert summarize(list(verdicts(where, BRIE).values())) == (
        '5 devices on 1 node: 5 wrong cheese ("gouda", "edam", "feta", … ≠ "brie")'
    )


def test_devices_that_fit_come_first() -> None:
    where = cluster(
        slice_of(pizza("a"), pizza("b", "brie"), pizza("c"), allNodes=True), nodes=[node("node-1"), node("node-2")]
    )

    assert summarize(list(verdicts(where, BRIE).values())).startswith("3 devices on 2 nodes: 1 fits, 2 wrong cheese")


def test_no_devices() -> None:
    assert summarize([]) == "no devices at all"
