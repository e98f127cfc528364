from __future__ import annotations

from tests.unit.diagnosis.explain.world import (
    PIZZA,
    Document,
    claim,
    cluster,
    device,
    device_class,
    explain,
    held,
    local,
    node,
    pizza,
    request,
    slice_of,
)
from tests.unit.kubernetes.allocator.cluster import way

BRIE = f'{PIZZA}.cheese == "brie"'


def test_a_claim_that_fits_gets_what_the_allocator_gives_it_on_each_node() -> None:
    where = cluster(
        local("node-1", pizza("a"), pizza("b", "brie"), pizza("c", "brie")),
        local("node-2", pizza("d")),
        nodes=[node("node-1"), node("node-2")],
    )

    explanation = explain(where, claim(request("r", 1, BRIE)))

    assert explanation.outcome == "fits"
    [outcome] = explanation.fitting_nodes
    assert outcome.node.name == "node-1"
    assert outcome.allocations is not None
    assert [found.device for found in outcome.allocations[0].devices.results] == ["b"]
    assert explanation.nearest == ()


def test_a_claim_that_has_devices_is_explained_by_its_allocation() -> None:
    explanation = explain(cluster(slice_of(pizza("a"))), held("lunch", "a"))

    assert explanation.outcome == "allocated"
    assert explanation.good


def test_devices_that_match_and_are_in_use() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b")), claims=[held("lunch", "a"), held("dinner", "b")])

    explanation = explain(where, claim(request()))

    assert explanation.outcome == "does-not-fit"
    assert explanation.blockers == (
        "request r: 2 devices match, but none is available: 2 allocated to default/lunch, default/dinner",
    )


def test_too_few_devices_on_one_node() -> None:
    where = cluster(
        local("node-1", pizza("a"), pizza("b")), local("node-2", pizza("c")), nodes=[node("node-1"), node("node-2")]
    )

    [blocker] = explain(where, claim(request("r", 3))).blockers

    assert blocker == ("request r: needs 3 devices on one node, but no node has more than 2 that fit (node node-1)")


def test_no_device_at_all() -> None:
    [blocker] = explain(cluster(), claim(request())).blockers

    assert blocker == "request r: no driver has published any device; is a driver installed and running?"


def test_a_class_that_does_not_exist_may_be_a_typo() -> None:
    where = cluster(slice_of(pizza("a")), classes=[device_class("pizza"), device_class("gpu")])
    wanted = claim(request())
    wanted["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "piza"

    explanation = explain(where, wanted)

    assert explanation.outcome == "error"
    assert explanation.blockers == ('request r: DeviceClass piza does not exist; did you mean "pizza"?',)


def test_without_any_class_the_driver_may_be_missing() -> None:
    [blocker] = explain(cluster(slice_of(pizza("a")), classes=[]), claim(request())).blockers

    assert "is the driver's chart installed?" in blocker


def test_a_selector_that_fails_stops_the_attempt() -> None:
    explanation = explain(cluster(slice_of(pizza("a"))), claim(request("r", 1, f"{PIZZA}.slices > 3")))

    assert explanation.outcome == "error"
    *_, blocker = explanation.blockers
    assert "CEL runtime error: no such key: slices" in blocker
    assert "gives up the whole pod" in blocker


def ovens(*numbers: int) -> list[Document]:
    return [device(f"d{place}", attributes={"oven": {"int": oven}}) for place, oven in enumerate(numbers)]


OVEN = "gpu.example.com/oven"


def test_a_constraint_that_cannot_be_satisfied_is_reported_with_what_there_is() -> None:
    wanted = claim(request("r", 3), constraints=[{"matchAttribute": OVEN}])

    [blocker] = explain(cluster(slice_of(*ovens(1, 1, 2, 2))), wanted).blockers

    assert blocker == (
        "constraint: all devices of the claim must have the same oven (gpu.example.com/oven); "
        "on node-1 those that fit have 1 (2 devices), 2 (2 devices)"
    )


def test_only_the_violated_constraint_is_reported() -> None:
    wanted = claim(
        request("a", 2), request("b", 2),
        constraints=[{"requests": ["a"], "matchAttribute": OVEN}, {"requests": ["b"], "distinctAttribute": OVEN}],
    )  # fmt: skip

    [blocker] = explain(cluster(slice_of(*ovens(1, 1, 1, 1))), wanted).blockers

    assert blocker.startswith("constraint: all devices of b must each have another oven")


def test_several_violated_constraints_are_reported_together() -> None:
    both = [
        device("x", attributes={n: {"int": 1} for n in "ab"}),
        device("y", attributes={n: {"int": 2} for n in "ab"}),
    ]
    wanted = claim(request("r", 2), constraints=[{"matchAttribute": f"gpu.example.com/{name}"} for name in "ab"])

    [blocker] = explain(cluster(slice_of(*both)), wanted).blockers

    assert blocker == "no set of devices satisfies all constraints at once: gpu.example.com/a, gpu.example.com/b"


def test_requests_that_need_the_same_devices() -> None:
    wanted = claim(request("a", 1, BRIE), request("b", 1, BRIE))

    [blocker] = explain(cluster(slice_of(pizza("a", "brie"), pizza("b"))), wanted).blockers

    assert blocker.startswith("each request alone finds devices, but no node has devices for all of them")


def test_all_devices_are_asked_for_and_one_is_in_use() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b")), claims=[held("lunch", "b")])

    [blocker] = explain(where, claim(request("r", None))).blockers

    assert blocker.endswith("on node-1: b (allocated to default/lunch)")


def test_every_way_to_satisfy_a_request_is_explained() -> None:
    wanted = claim({"name": "r", "firstAvailable": [way(1, BRIE, name="best"), way(1, name="any")]})

    explanation = explain(cluster(slice_of(pizza("a"))), wanted)

    [found] = explanation.requests
    assert [(each.name, len(each.fits)) for each in found.choices] == [("r/best", 0), ("r/any", 1)]
    assert explanation.outcome == "fits"


def test_nodes_that_could_not_be_read_are_those_that_slices_name() -> None:
    where = cluster(local("node-7", pizza("a")), nodes=[])

    assert [outcome.node.name for outcome in explain(where, claim(request())).fitting_nodes] == ["node-7"]
