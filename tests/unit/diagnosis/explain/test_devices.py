"""All reasons why a device does not fit a request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra_kit.kubernetes.allocator.rules import OPTIONAL_NODE_OPERATIONS, AllocatorRules
from dra_kit.kubernetes.release import Release
from tests.unit.diagnosis.explain.world import (
    PIZZA,
    Document,
    claim,
    cluster,
    device,
    device_class,
    explain,
    held,
    node,
    pizza,
    reasons,
    request,
    slice_of,
    texts,
    verdicts,
)

WITHOUT_SHARING = AllocatorRules.of(Release.parse("1.35"))
SKIPPING = replace(AllocatorRules.of(Release.parse("1.37")), optional_node_operations=True)


def pool(slices: int = 1, generation: int = 1) -> Document:
    return {"name": "pool-a", "generation": generation, "resourceSliceCount": slices}


def test_a_device_that_fits_has_no_reasons() -> None:
    assert reasons(cluster(slice_of(pizza("a")))) == {"a": []}


def test_every_condition_that_fails_is_reported() -> None:
    selector = f'{PIZZA}.cheese == "brie" && device.driver == "gpu.example.com" && !has({PIZZA}.cheese)'

    assert texts(cluster(slice_of(pizza("a"))), claim(request("r", 1, selector))) == {
        "a": ['cheese is "mozzarella", not "brie"', "not `!has(cheese)` (has(cheese) is true)"]
    }


def test_conditions_of_the_class_come_before_those_of_the_request() -> None:
    where = cluster(slice_of(pizza("a")), classes=[device_class("any", f'{PIZZA}.cheese == "gouda"')])

    assert reasons(where, claim(request("r", 1, f'{PIZZA}.cheese == "brie"'))) == {"a": ["class", "selector"]}


def test_a_selector_that_fails_for_a_device_is_an_error() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b", "brie")))

    assert texts(where, claim(request("r", 1, f'{PIZZA}.cheese == "mozzarella" && {PIZZA}.slices > 3'))) == {
        "a": ["has no slices, which a selector of request r reads without has()"],
        "b": ['cheese is "brie", not "mozzarella"', "has no slices"],
    }


def test_a_selector_that_is_not_cel_is_an_error() -> None:
    [[text]] = texts(cluster(slice_of(pizza("a"))), claim(request("r", 1, "device."))).values()

    assert text.startswith("a selector of request r is not valid CEL: 1:8")


def test_the_claims_that_hold_a_device_are_reported() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b")), claims=[held("lunch", "a")])

    assert texts(where) == {"a": ["allocated to default/lunch"], "b": []}


def test_admin_access_may_have_devices_in_use() -> None:
    where = cluster(slice_of(pizza("a")), claims=[held("lunch", "a")])

    assert texts(where, claim(request("r", 1, adminAccess=True))) == {"a": []}


def test_admin_access_of_others_holds_nothing() -> None:
    where = cluster(slice_of(pizza("a")), claims=[held("inspector", "a", adminAccess=True)])

    assert texts(where) == {"a": []}


TAINT = {"key": "oven/broken", "value": "yes", "effect": "NoExecute"}


def test_a_taint_is_reported_unless_it_is_tolerated() -> None:
    where = cluster(slice_of(pizza("a", taints=[TAINT, {"key": "info", "effect": "None"}])))
    tolerations = [{"key": "oven/broken", "operator": "Exists"}]

    assert texts(where) == {"a": ["tainted oven/broken=yes:NoExecute"]}
    assert texts(where, claim(request("r", 1, tolerations=tolerations))) == {"a": []}


def test_the_rule_that_taints_is_reported() -> None:
    rule = {"metadata": {"name": "maintenance"}, "spec": {"deviceSelector": {"device": "a"}, "taint": TAINT}}
    where = cluster(slice_of(pizza("a"), pizza("b")), rules=[rule])

    assert texts(where) == {"a": ["tainted oven/broken=yes:NoExecute (by DeviceTaintRule maintenance)"], "b": []}


SHARED = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
SHARING = held("lunch", "a", shareID="8d0e7a5c-0000-4000-8000-000000000001", consumedCapacity={"memory": "60Gi"})


def asking(**capacity: str) -> Document:
    return claim(request("r", 1, capacity={"requests": capacity}))


def test_capacity_that_is_not_left_is_reported_with_what_is_short() -> None:
    where = cluster(slice_of(device("a", **SHARED)), claims=[SHARING])

    assert texts(where, asking(memory="40Gi")) == {
        "a": ["memory is short by 20Gi: 40Gi requested, 20Gi of 80Gi left, the rest went to default/lunch"]
    }
    assert texts(where, asking(memory="20Gi")) == {"a": []}


def test_a_share_keeps_a_device_that_is_no_longer_shareable_since_1_38() -> None:
    rules = AllocatorRules.of(Release.parse("1.38"))
    where = cluster(slice_of(device("a"), device("b")), claims=[SHARING], gates=rules)

    assert texts(where, claim(request("r", 2))) == {"a": ["allocated to default/lunch"], "b": []}


def test_the_total_is_reported_for_a_device_without_consumers() -> None:
    where = cluster(slice_of(device("a", **SHARED)))

    assert texts(where, asking(memory="81Gi")) == {"a": ["memory is short by 1Gi: 81Gi requested, it has 80Gi"]}
    assert texts(where, asking(memory="7e3000")) == {"a": ["memory is short by 7e3000: 7e3000 requested, it has 80Gi"]}
    [reason] = verdicts(where, asking(memory="81Gi"))["a"].reasons
    assert (reason.brief, reason.found, reason.wanted) == ("short of memory", "has 80Gi", "< 81Gi")


@pytest.mark.parametrize(
    ("policy", "reported"),
    [
        (None, "all of it needed, as the request names no amount and the device has no request policy with a default"),
        ({"default": "40Gi"}, "the default of 40Gi needed, as the request names no amount"),
    ],
    ids=["no policy", "default"],
)
def test_capacity_that_is_not_requested_is_not_reported_as_requested(policy: Document | None, reported: str) -> None:
    capacity = {"value": "80Gi", **({"requestPolicy": policy} if policy else {})}
    published = device("a", allowMultipleAllocations=True, capacity={"memory": capacity})

    [[text]] = texts(cluster(slice_of(published), claims=[SHARING]), claim(request("r", 1))).values()

    assert f": {reported}, 20Gi of 80Gi left, the rest went to default/lunch" in text


def test_capacity_that_a_device_does_not_have_is_reported() -> None:
    where = cluster(slice_of(device("a", **SHARED)))

    assert texts(where, asking(cores="1")) == {"a": ["has no capacity cores"]}


def test_capacities_that_a_device_does_not_have_are_reported_in_the_order_of_the_request() -> None:
    where = cluster(slice_of(device("a", **SHARED)))
    names = ["cores", "bandwidth", "links", "engines", "slots", "copies", "planes"]

    assert texts(where, asking(**dict.fromkeys(names, "1"))) == {"a": [f"has no capacity {name}" for name in names]}


@pytest.mark.parametrize(
    ("policy", "reported"),
    [
        ({"validRange": {"min": "10Gi", "max": "20Gi", "step": "5Gi"}}, "from 10Gi to 20Gi in steps of 5Gi"),
        ({"default": "10Gi", "validValues": ["10Gi", "20Gi"]}, "in amounts of 10Gi, 20Gi"),
    ],
)
def test_an_amount_that_the_policy_does_not_allow_is_reported(policy: Document, reported: str) -> None:
    capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    where = cluster(slice_of(device("a", allowMultipleAllocations=True, capacity=capacity)))

    assert texts(where, asking(memory="30Gi")) == {"a": [f"gives memory only {reported}, not 30Gi"]}


def test_a_counter_that_is_short_is_reported_with_who_holds_the_rest() -> None:
    def partition(name: str, memory: str) -> Document:
        counters = {"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}
        return device(name, consumesCounters=[counters])

    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    where = cluster(
        slice_of(name="counters", pool=pool(2), sharedCounters=counters),
        slice_of(partition("half", "40Gi"), partition("quarter", "20Gi"), partition("whole", "80Gi"), pool=pool(2)),
        claims=[held("lunch", "half")],
    )

    assert texts(where) == {
        "half": ["allocated to default/lunch"],
        "quarter": [],
        "whole": ["gpu-0 is short of memory by 40Gi: 80Gi needed, 40Gi left (devices of default/lunch)"],
    }


def test_a_feature_that_is_off_is_reported() -> None:
    where = cluster(
        slice_of(device("a", bindingConditions=["ready"], bindingFailureConditions=["failed"])), gates=WITHOUT_SHARING
    )

    assert texts(where) == {"a": ["has binding conditions, and the feature gate DRADeviceBindingConditions is off"]}


def test_a_device_of_a_node_that_does_not_exist_is_reported() -> None:
    assert texts(cluster(slice_of(pizza("a")), nodes=[node("node-2")])) == {
        "a": ["on node node-1, which does not exist"]
    }


def test_a_device_for_labels_that_no_node_has_is_reported() -> None:
    terms = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}]
    far = slice_of(pizza("a"), nodeSelector={"nodeSelectorTerms": terms})

    assert texts(cluster(far)) == {"a": ["for nodes with labels that no node has"]}
    assert texts(cluster(far, nodes=[node(rack="r1")])) == {"a": []}


def test_an_incomplete_pool_is_reported() -> None:
    assert texts(cluster(slice_of(pizza("a"), pool=pool(3)))) == {
        "a": ["its pool pool-a is incomplete: 1 of 3 slices are published"]
    }


def test_an_invalid_pool_is_reported() -> None:
    where = cluster(slice_of(pizza("a"), pool=pool(2)), slice_of(pizza("a"), pool=pool(2), name="slice-2"))

    assert texts(where) == {"a": ["its pool pool-a is invalid: duplicate device name a"]}


def test_devices_of_an_older_generation_are_ignored() -> None:
    newer = slice_of(pizza("new"), pool=pool(generation=2), name="slice-2")
    where = cluster(slice_of(pizza("old"), pool=pool()), newer)

    assert texts(where) == {"new": []}


def test_all_nodes_of_a_shared_device_are_known() -> None:
    where = cluster(slice_of(pizza("a"), allNodes=True), nodes=[node("node-1"), node("node-2")])

    assert list(verdicts(where, claim(request()))["a"].nodes) == ["node-1", "node-2"]


def test_a_device_of_a_pool_that_is_invalid_on_one_node_alone_fits_on_the_others() -> None:
    everywhere = slice_of(pizza("a"), name="everywhere", pool=pool(2), allNodes=True)
    where = cluster(everywhere, slice_of(pizza("a"), name="once-more", pool=pool(2)), nodes=[node(), node("node-2")])

    [asked] = explain(where, claim(request())).requests

    assert [[str(reason.check) for reason in device.reasons] for device in asked.choices[0].devices] == [[], ["pool"]]
    assert asked.choices[0].fitting == {"node-2": 1}


@pytest.mark.parametrize("skipping", ["node-1", "node-2"])
def test_a_device_whose_driver_is_not_called_fits_on_nodes_that_can_skip_calls(skipping: str) -> None:
    nodes = [node(name) for name in ("node-1", "node-2")]
    for each in nodes:
        able = each["metadata"]["name"] == skipping
        each["status"] = {"declaredFeatures": [OPTIONAL_NODE_OPERATIONS] if able else []}
    slice_ = slice_of(pizza("a"), allNodes=True, skipNodeOperations=["Prepare", "Unprepare"])

    [asked] = explain(cluster(slice_, nodes=nodes, gates=SKIPPING), claim(request())).requests

    assert asked.choices[0].fitting == {skipping: 1}


def test_selectors_are_judged_by_the_release_of_the_cluster() -> None:
    wanted = claim(request("r", 1, selectors=[{"cel": {"expression": "cidr('10.0.0.0/8').isMask()"}}]))
    newer = cluster(slice_of(device("a")), gates=AllocatorRules.of(Release.parse("1.38")))
    older = cluster(slice_of(device("a")), gates=AllocatorRules.of(Release.parse("1.37")))

    assert texts(newer, wanted) == {"a": []}
    [text] = texts(older, wanted)["a"]
    assert "is not valid CEL" in text


def test_counters_of_an_incomplete_pool_of_1_34_are_those_of_the_slice() -> None:
    def part(name: str, memory: str) -> Document:
        return device(name, consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}])

    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    where = cluster(
        slice_of(part("small", "40Gi"), part("large", "90Gi"), pool=pool(2), sharedCounters=counters),
        gates=AllocatorRules.of(Release.parse("1.34").also("DRAPartitionableDevices")),
    )

    assert reasons(where) == {"small": [], "large": ["counters"]}
