"""Affinity between pods; the messages are those of kube-scheduler 1.37.1."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.release import DEFAULT
from dra_kit.kubernetes.resource.matching import parse_label_selector
from dra_kit.kubernetes.scheduler.nodes import (
    KnownRequests,
    Rejection,
    node_loads,
    node_rejection,
    node_topology_helps,
    placed_pod_helps,
    pod_affinity,
)

Object = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TOGETHER = Rejection(("node(s) didn't match pod affinity rules",), "pods")
APART = Rejection(("node(s) didn't match pod anti-affinity rules",), "pods", hopeless=False)
CLOSED = Rejection(("node(s) didn't satisfy existing pods anti-affinity rules",), "pods", hopeless=False)
NAMESPACES = {
    ("", name): {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, "team": team}}}
    for name, team in (("default", "red"), ("kitchen", "blue"))
}


def node(name: str, **labels: str) -> Object:
    status = {"allocatable": {"pods": "110"}}
    return {"metadata": {"name": name, "labels": {"host": name, **labels}}, "spec": {}, "status": status}


NODES = [node("one", zone="a"), node("two", zone="a"), node("three", zone="b"), node("four")]


def term(key: str = "host", selector: Object | None = None, **fields: Any) -> Object:
    """A term that selects pods of the app cook, unless it gets another selector."""
    labels = {"matchLabels": {"app": "cook"}} if selector is None else selector
    return {"topologyKey": key, "labelSelector": labels, **fields}


def pod(
    app: str = "", *, namespace: str = "default", together: Any = (), apart: Any = (), near: Any = (), far: Any = ()
) -> Object:
    def weighted(terms: Any) -> list[Object]:
        return [{"weight": weight, "podAffinityTerm": item} for weight, item in terms]

    affinity: Object = {}
    if together or near:
        affinity["podAffinity"] = {REQUIRED: list(together), PREFERRED: weighted(near)}
    if apart or far:
        affinity["podAntiAffinity"] = {REQUIRED: list(apart), PREFERRED: weighted(far)}
    metadata = {"name": app, "namespace": namespace, "labels": {"app": app} if app else {}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c"}], "affinity": affinity}}


def verdicts(asking: Object, *placed: tuple[str, Object]) -> dict[str, Rejection | None]:
    loads = node_loads(NODES, placed, KnownRequests(DEFAULT))
    affinity = pod_affinity(asking, loads, NAMESPACES)
    return {name: node_rejection(asking, load, {}, (), affinity) for name, load in loads.items()}


def scores(asking: Object, *placed: tuple[str, Object]) -> list[int]:
    loads = node_loads(NODES, placed, KnownRequests(DEFAULT))
    return pod_affinity(asking, loads, NAMESPACES).scores(load.node.labels for load in loads.values())


def test_anti_affinity_keeps_pod_off_nodes_of_the_same_topology() -> None:
    found = verdicts(pod(apart=[term("zone")]), ("one", pod("cook")))

    assert found == {"one": APART, "two": APART, "three": None, "four": None}


def test_anti_affinity_of_placed_pod_keeps_selected_pods_off() -> None:
    guard = pod("guard", apart=[term("zone")])

    assert verdicts(pod("cook"), ("three", guard)) == {"one": None, "two": None, "three": CLOSED, "four": None}
    assert not any(verdicts(pod("waiter"), ("three", guard)).values())


def test_affinity_needs_a_node_of_the_topology_with_a_selected_pod() -> None:
    found = verdicts(pod(together=[term("zone")]), ("three", pod("cook")))

    assert found == {"one": TOGETHER, "two": TOGETHER, "three": None, "four": TOGETHER}


def test_one_pod_must_match_all_affinity_terms() -> None:
    cooks, waiters = term("zone"), term("zone", {"matchLabels": {"app": "waiter"}})

    found = verdicts(pod(together=[cooks, waiters]), ("one", pod("cook")), ("one", pod("waiter")))

    assert set(found.values()) == {TOGETHER}


def test_first_of_pods_that_select_each_other_needs_only_the_topology() -> None:
    first = pod("cook", together=[term("zone")])

    assert verdicts(first) == {"one": None, "two": None, "three": None, "four": TOGETHER}
    assert verdicts(first, ("three", pod("cook")))["one"] == TOGETHER


@pytest.mark.parametrize(
    ("fields", "selects"),
    [
        ({}, False),
        ({"namespaces": ["kitchen"]}, True),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "blue"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "red"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "red"}}, "namespaces": ["kitchen"]}, True),
    ],
)
def test_terms_select_pods_of_namespaces(fields: Object, selects: bool) -> None:
    cook = pod("cook", namespace="kitchen")

    assert (verdicts(pod(apart=[term(**fields)]), ("one", cook))["one"] == APART) is selects


@pytest.mark.parametrize(
    "selector", [None, {"matchExpressions": [{"key": "app", "operator": "In"}]}, {"matchExpressions": [{"key": "x"}]}]
)
def test_missing_or_invalid_selector_selects_no_pod(selector: Object | None) -> None:
    nothing = {"topologyKey": "host", "labelSelector": selector}

    assert not any(verdicts(pod(apart=[nothing]), ("one", pod("cook"))).values())
    assert set(verdicts(pod(together=[nothing]), ("one", pod("cook"))).values()) == {TOGETHER}


def test_finished_pods_do_not_count() -> None:
    done = {**pod("cook"), "status": {"phase": "Succeeded"}}

    assert not any(verdicts(pod(apart=[term()]), ("one", done)).values())


def test_scores_of_preferences() -> None:
    assert scores(pod(near=[(10, term("zone"))]), ("one", pod("cook"))) == [100, 100, 0, 0]
    assert scores(pod(far=[(10, term("host"))]), ("one", pod("cook"))) == [0, 100, 100, 100]
    assert scores(pod(near=[(3, term("host")), (1, term("zone"))]), ("one", pod("cook"))) == [100, 25, 0, 0]


def test_scores_of_the_affinity_of_placed_pods() -> None:
    wanted = pod("cook")

    assert scores(wanted, ("three", pod("guest", together=[term("zone")]))) == [0, 0, 100, 0]
    assert scores(wanted, ("three", pod("guest", near=[(5, term("zone"))]))) == [0, 0, 100, 0]
    assert scores(wanted, ("three", pod("guest", far=[(5, term("zone"))]))) == [100, 100, 0, 100]
    assert scores(wanted, ("three", pod("guest"))) == [0, 0, 0, 0]


APPS = st.sampled_from(["cook", "waiter", "guest"])
SELECTORS = st.one_of(
    st.builds(lambda app: {"matchLabels": {"app": app}}, APPS),
    st.builds(lambda app: {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]}, APPS),
    st.just({}),
    st.none(),
)
TERMS = st.builds(
    lambda key, selector, more: {"topologyKey": key, "labelSelector": selector, **more},
    st.sampled_from(["host", "zone", "rack"]),
    SELECTORS,
    st.sampled_from(
        [
            {},
            {"namespaces": ["kitchen"]},
            {"namespaceSelector": {}},
            {"namespaceSelector": {"matchLabels": {"team": "red"}}},
        ]
    ),
)
SOME = st.lists(TERMS, max_size=2)
WEIGHTED = st.lists(st.tuples(st.integers(1, 100), TERMS), max_size=2)
PODS = st.builds(
    pod, APPS, namespace=st.sampled_from(["default", "kitchen"]), together=SOME, apart=SOME, near=WEIGHTED, far=WEIGHTED
)
PLACED = st.lists(st.tuples(st.sampled_from([item["metadata"]["name"] for item in NODES]), PODS), max_size=5)


def plainly_selects(owner: Object, item: Object, other: Object) -> bool:
    own, there = owner["metadata"]["namespace"], other["metadata"]["namespace"]
    names, selector = item.get("namespaces"), item.get("namespaceSelector")
    inside = there in (names or ([own] if selector is None else []))
    if selector is not None and parse_label_selector(selector).matches(NAMESPACES["", there]):
        inside = True
    return inside and item["labelSelector"] is not None and parse_label_selector(item["labelSelector"]).matches(other)


def plain_terms(owner: Object, field: str, kind: str = REQUIRED) -> list[Object]:
    return list(owner["spec"]["affinity"].get(field, {}).get(kind, ()))


def labels_of(name: str) -> Object:
    return next(item["metadata"]["labels"] for item in NODES if item["metadata"]["name"] == name)


def share(key: str, one: str, other: str) -> bool:
    return key in labels_of(one) and labels_of(one)[key] == labels_of(other).get(key)


def plain_verdict(asking: Object, place: str, placed: list[tuple[str, Object]]) -> Rejection | None:
    """Judge one node by the text of the documentation, without counting."""
    together, apart = plain_terms(asking, "podAffinity"), plain_terms(asking, "podAntiAffinity")
    matching = [
        at for at, other in placed if together and all(plainly_selects(asking, item, other) for item in together)
    ]
    near = all(any(share(item["topologyKey"], place, at) for at in matching) for item in together)
    has_topology = all(item["topologyKey"] in labels_of(place) for item in together)
    reachable = any(item["topologyKey"] in labels_of(at) for at in matching for item in together)
    first = not reachable and all(plainly_selects(asking, item, asking) for item in together)
    if together and not (has_topology and (near or first)):
        return TOGETHER
    if any(
        plainly_selects(asking, item, other) and share(item["topologyKey"], place, at)
        for item in apart
        for at, other in placed
    ):
        return APART
    if any(
        plainly_selects(other, item, asking) and share(item["topologyKey"], place, at)
        for at, other in placed
        for item in plain_terms(other, "podAntiAffinity")
    ):
        return CLOSED
    return None


@given(PODS, PLACED)
def test_verdict_equals_plain_definition(asking: Object, placed: list[tuple[str, Object]]) -> None:
    found = verdicts(asking, *placed)

    assert found == {name: plain_verdict(asking, name, placed) for name in found}


def plain_score(asking: Object, place: str, placed: list[tuple[str, Object]]) -> int:
    total = 0
    for at, other in placed:
        for field, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
            for owner, selected in ((asking, other), (other, asking)):
                for item in plain_terms(owner, field, PREFERRED):
                    preferred = item["podAffinityTerm"]
                    if plainly_selects(owner, preferred, selected) and share(preferred["topologyKey"], place, at):
                        total += sign * item["weight"]
        for item in plain_terms(other, "podAffinity"):
            total += plainly_selects(other, item, asking) and share(item["topologyKey"], place, at)
    return total


@given(PODS, PLACED)
def test_order_of_scores_equals_plain_definition(asking: Object, placed: list[tuple[str, Object]]) -> None:
    names = [item["metadata"]["name"] for item in NODES]
    found = scores(asking, *placed)
    plain = [plain_score(asking, name, placed) for name in names]

    if max(plain) > min(plain):
        assert found[plain.index(max(plain))] == 100
        assert found[plain.index(min(plain))] == 0
        assert all(found[i] <= found[j] for i in range(4) for j in range(4) if plain[i] <= plain[j])
    else:
        assert found == [0, 0, 0, 0]


COOK, WAITER = pod("cook"), pod("waiter")
GUARD = pod("guard", apart=[term()])


@pytest.mark.parametrize(
    ("waiting", "before", "after", "helps"),
    [
        (pod(together=[term()]), None, COOK, True),
        (pod(together=[term()]), None, WAITER, False),
        (pod(together=[term()]), WAITER, COOK, True),
        (pod(together=[term()]), COOK, WAITER, False),
        (pod(together=[term()]), COOK, None, False),
        (pod("cook", together=[term()]), COOK, None, True),
        (pod(apart=[term()]), COOK, None, True),
        (pod(apart=[term()]), WAITER, None, False),
        (pod(apart=[term()]), COOK, WAITER, True),
        (pod(apart=[term()]), None, WAITER, False),
        (pod("cook"), GUARD, None, True),
        (pod("waiter"), GUARD, None, False),
    ],
)
def test_placed_pod_helps(waiting: Object, before: Object | None, after: Object | None, helps: bool) -> None:
    assert placed_pod_helps(waiting, before, after, NAMESPACES) is helps


@pytest.mark.parametrize(
    ("waiting", "before", "after", "helps"),
    [
        (pod(together=[term("zone")]), None, node("n", zone="a"), True),
        (pod(together=[term("zone")]), None, node("n"), False),
        (pod(together=[term("zone")]), node("n"), node("n", zone="a"), True),
        (pod(together=[term("zone")]), node("n", zone="a"), node("n", zone="b"), True),
        (pod(together=[term("zone")]), node("n", zone="a"), node("n"), False),
        (pod(apart=[term("zone")]), None, node("n"), True),
        (pod(apart=[term("zone")]), node("n", zone="a"), node("n"), True),
        (pod(apart=[term("zone")]), node("n"), node("n", zone="a"), False),
        (pod(apart=[term("zone")]), node("n", zone="a"), node("n", zone="a", rack="1"), False),
        (pod(), None, node("n"), False),
    ],
)
def test_node_helps(waiting: Object, before: Object | None, after: Object, helps: bool) -> None:
    assert node_topology_helps(waiting, before, after) is helps
