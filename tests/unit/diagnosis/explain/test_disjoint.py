"""Requests that find devices, but not on the same node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import DEFAULT
from tests.unit.diagnosis.explain.world import (
    PIZZA,
    Document,
    claim,
    cluster,
    device,
    explain,
    held,
    local,
    node,
    pizza,
    request,
)

A, B = (f'{PIZZA}.cheese == "{cheese}"' for cheese in ("a", "b"))
CHEESE = "gpu.example.com/cheese"


def kitchens(**cheeses: str) -> tuple[list[Document], list[Document]]:
    """Nodes by name with one pizza for each letter."""
    slices = [
        local(name, *[pizza(f"d{place}", cheese) for place, cheese in enumerate(found)])
        for name, found in cheeses.items()
    ]
    return slices, [node(name) for name in cheeses]


def blockers(wanted: Document, **cheeses: str) -> tuple[str, ...]:
    slices, nodes = kitchens(**cheeses)
    return explain(cluster(*slices, nodes=nodes), wanted).blockers


def test_requests_that_fit_on_different_nodes_are_reported_with_their_nodes() -> None:
    wanted = claim(request("a", 1, A), request("b", 1, B))

    assert blockers(wanted, n1="a", n2="b") == (
        "no node has devices for all requests: a fits only on n1, b only on n2",
    )


def test_some_of_many_nodes_are_named() -> None:
    wanted = claim(request("a", 1, A), request("b", 1, B))

    [blocker] = blockers(wanted, n1="a", n2="a", n3="b", n4="b", n5="b", n6="b", n7="b")

    assert blocker.endswith("a fits only on n1 and n2, b only on n3, n4, n5 and 2 more")


def test_a_constraint_that_no_devices_of_any_node_satisfy_is_reported_too() -> None:
    wanted = claim(request("a", 1, A), request("b", 2, B), constraints=[{"matchAttribute": CHEESE}])

    nodes, constraint = blockers(wanted, n1="a", n2="bb")

    assert nodes == "no node has devices for all requests: a fits only on n1, b only on n2"
    assert constraint == (
        f"constraint: all devices of the claim must have the same cheese ({CHEESE}); "
        'those that fit a have "a" (1 device), those that fit b have "b" (2 devices)'
    )


def test_a_satisfiable_constraint_is_not_reported() -> None:
    wanted = claim(
        request("a", 1, A), request("b", 2, B), constraints=[{"requests": ["b"], "matchAttribute": CHEESE}]
    )  # fmt: skip

    assert blockers(wanted, n1="a", n2="bb") == (
        "no node has devices for all requests: a fits only on n1, b only on n2",
    )


def test_a_constraint_is_tried_where_all_requests_find_devices() -> None:
    wanted = claim(request("a", 1, A), request("b", 1, B), constraints=[{"matchAttribute": CHEESE}])

    [blocker] = blockers(wanted, **{f"n{place}": "aaa" for place in range(30)}, last="ab")

    assert blocker.startswith("constraint: all devices of the claim must have the same cheese")


def test_all_devices_of_a_node_count_only_where_none_is_in_use() -> None:
    slices, nodes = kitchens(n1="ba", n2="a")
    where = cluster(*slices, nodes=nodes, claims=[held("lunch", "d1", pool="n1")])

    [blocker] = explain(where, claim(request("all", None, A), request("b", 1, B))).blockers

    assert blocker == "no node has devices for all requests: all fits only on n2, b only on n1"


def test_a_derived_value_is_not_compared_with_published_attributes() -> None:
    derived = [{"name": CHEESE, "expression": '"same"'}]
    wanted = claim(
        request("a", 1, A, derivedAttributes=derived), request("b", 1, B), constraints=[{"matchAttribute": CHEESE}]
    )
    slices, nodes = kitchens(n1="a", n2="b")

    reported = explain(cluster(*slices, nodes=nodes, gates=AllocatorRules.alpha(DEFAULT)), wanted).blockers

    assert reported == ("no node has devices for all requests: a fits only on n1, b only on n2",)


ovens = st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=4), min_size=1, max_size=3)


@given(ovens, st.integers(1, 2), st.integers(1, 2))
def test_statements_about_nodes_and_values_are_true(
    nodes: list[list[tuple[int, int]]], first: int, second: int
) -> None:
    slices = [
        local(
            f"n{place}",
            *[
                device(f"d{at}", attributes={"kind": {"int": kind}, "oven": {"int": oven}})
                for at, (kind, oven) in enumerate(found)
            ],
        )
        for place, found in enumerate(nodes)
    ]
    where = cluster(*slices, nodes=[node(f"n{place}") for place in range(len(nodes))])
    wanted = claim(
        request("a", first, f"{PIZZA}.kind == 0"),
        request("b", second, f"{PIZZA}.kind == 1"),
        constraints=[{"matchAttribute": "gpu.example.com/oven"}],
    )

    reported = explain(where, wanted).blockers

    able = [[sum(kind == which for kind, _ in found) >= needed for found in nodes]
            for which, needed in enumerate((first, second))]  # fmt: skip
    apart = all(map(any, able)) and not any(map(all, zip(*able, strict=True)))
    assert any(text.startswith("no node has devices for all requests") for text in reported) == apart
    if any("those that fit a have" in text for text in reported):
        enough = [
            {oven for oven in range(3)
             if sum(each == (which, oven) for found in nodes for each in found) >= needed}
            for which, needed in enumerate((first, second))
        ]  # fmt: skip
        assert not enough[0] & enough[1]
