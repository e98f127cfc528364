"""Devices that are not what a claim's author expects: tainted, whole, published by several nodes, or not all free."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import model_of_claim
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Release
from tests.unit.cli.cluster.saved import CASES, run, save, words
from tests.unit.cli.cluster.saved import node as saved_node
from tests.unit.diagnosis.explain.world import (
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
    slice_of,
)

FLAKY = {"key": "example.com/flaky", "effect": "NoExecute"}
TOLERATED = CASES / "tolerated-noexecute"


def tolerating(**toleration: str) -> Document:
    return claim(request(tolerations=[{"key": "example.com/flaky", "operator": "Exists", **toleration}]))


def test_toleration_without_effect_gets_the_device_and_no_pod_keeps_it() -> None:
    found = explain(cluster(slice_of(pizza("a", taints=[FLAKY]))), tolerating())

    assert (found.outcome, found.good) == ("evicted", False)
    assert (
        "has the taint example.com/flaky:NoExecute, and the toleration of request r names no effect"
        in found.blockers[0]
    )
    assert found.remedies[0].startswith("with effect: NoExecute in the toleration of example.com/flaky")


def test_toleration_with_effect_keeps_the_device() -> None:
    found = explain(cluster(slice_of(pizza("a", taints=[FLAKY]))), tolerating(effect="NoExecute"))

    assert (found.outcome, found.blockers) == ("fits", ())


def test_eviction_is_a_warning_if_another_node_has_untainted_devices() -> None:
    where = cluster(
        local("node-1", pizza("a", taints=[FLAKY])), local("node-2", pizza("b")), nodes=[node(), node("node-2")]
    )

    found = explain(where, tolerating())

    assert found.outcome == "fits"
    assert "device a of" in found.blockers[0]


def test_taint_of_a_rule_evicts_too() -> None:
    rule = {"metadata": {"name": "recall"}, "spec": {"deviceSelector": {"device": "a"}, "taint": FLAKY}}

    found = explain(cluster(slice_of(pizza("a")), rules=[rule]), tolerating())

    assert found.outcome == "evicted"
    assert "(by DeviceTaintRule recall)" in found.blockers[0]


def test_untolerated_taint_that_evicts_needs_a_toleration_with_its_effect() -> None:
    found = explain(cluster(slice_of(pizza("a", taints=[FLAKY]))), claim(request()))

    assert found.nearest[0].change == "with a toleration of the taint example.com/flaky (effect: NoExecute)"


def test_allocated_device_with_an_evicting_taint_is_reported() -> None:
    lunch = held("lunch", "a")
    where = cluster(slice_of(pizza("a", taints=[FLAKY])), claims=[lunch])

    found = ClaimExplainer(where).explain(model_of_claim(lunch, where.gates))

    assert found.outcome == "allocated"
    assert "the device taint eviction controller deletes pods that have the device" in found.blockers[0]


@pytest.mark.parametrize(("file", "code"), [("with-effect.yaml", 0), ("without-effect.yaml", 3)])
def test_pod_that_is_evicted_at_once_cannot_run(tmp_path: Path, file: str, code: int) -> None:
    card = {"name": "card-0", "taints": [{"key": "card.example.net/flaky", "effect": "NoExecute"}]}
    spec = {
        "driver": "card.example.net",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [card],
    }
    published = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}

    result = run("explain", "-f", TOLERATED / file, "--from", save(tmp_path / "c.yaml", saved_node("n1"), published))

    assert result.exit_code == code
    evicted = "✗ pod default/brave is evicted as soon as it is scheduled to n1\n" in result.output
    assert evicted == bool(code)


def test_device_that_is_given_whole_is_not_shared_by_amounts() -> None:
    amount = {"requests": {"memory": "10Gi"}}
    where = cluster(slice_of(device("a", capacity={"memory": {"value": "80Gi"}})), claims=[held("other", "a")])

    found = explain(where, claim(request(capacity=amount)))

    assert found.outcome == "does-not-fit"
    assert (
        "request r asks for an amount of memory, and gets a whole device: a cannot be allocated" in found.blockers[-1]
    )
    assert "allowMultipleAllocations: true" in found.remedies[0]


def test_shareable_devices_are_not_given_whole() -> None:
    offer = {"value": "80Gi", "requestPolicy": {"default": "10Gi"}}
    shared = device("a", capacity={"memory": offer}, allowMultipleAllocations=True)

    found = explain(cluster(slice_of(shared)), claim(request(capacity={"requests": {"memory": "10Gi"}})))

    assert (found.outcome, found.blockers) == ("fits", ())


def test_one_pool_of_several_nodes_is_named_with_the_remedy_of_the_driver() -> None:
    folder = CASES / "one-pool-name-on-three-nodes"

    text = words(run("explain", "-f", folder / "ask.yaml", "--from", folder / "cluster").output)

    assert "n1, n2 and n3 publish the same pool uplinks of nic.example.net" in text
    assert "device dummy0 of each node is one device, which one claim can have" in text
    assert "→ driver nic.example.net must publish a separate pool for each node" in text


def test_pool_of_several_slices_of_one_node_is_not_repeated() -> None:
    pool = {"name": "shared", "generation": 1, "resourceSliceCount": 2}
    slices = [slice_of(pizza(name), name=name, pool=pool, nodeName="node-1") for name in ("a", "b")]

    found = explain(cluster(*slices), claim(request()))

    assert (found.outcome, found.blockers) == ("fits", ())


def test_request_for_all_devices_fits_once_others_release_theirs_or_with_a_count() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b"), pizza("c")), claims=[held("other", "a")])

    found = explain(where, claim(request(count=None)))

    assert [miss.change for miss in found.nearest] == [
        "once other claims release their devices",
        "with allocationMode: ExactCount and count: 2",
    ]
    assert all(miss.enough for miss in found.nearest)


def test_request_for_all_devices_is_not_told_to_wait_for_tainted_ones() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b", taints=[FLAKY])))

    found = explain(where, claim(request(count=None)))

    assert [miss.change for miss in found.nearest] == ["with allocationMode: ExactCount and count: 1"]


def test_attribute_of_a_constraint_without_domain_is_found_among_the_published_ones() -> None:
    folder = CASES / "unqualified-match-attribute"

    result = run("explain", "-f", folder / "claim.yaml", "--from", folder / "cluster")

    assert result.exit_code == 1
    assert "numaNode is published as resource.kubernetes.io/numaNode (2 devices)" in result.output


def test_capacity_that_is_asked_for_as_an_attribute_is_named() -> None:
    folder = CASES / "memory-among-attributes"

    result = run("explain", "-f", folder / "claim.yaml", "--from", folder / "cluster")

    assert result.exit_code == 3
    text = words(result.output)
    assert "no device has an attribute memory in the domain" in text
    assert 'device.capacity["gpu.example.net"].memory' in text


DISTINCT = claim(request("r", 2), constraints=[{"distinctAttribute": "gpu.example.com/cheese"}])


def test_constraint_that_1_34_stores_without_effect_is_reported() -> None:
    equal = slice_of(pizza("a"), pizza("b"))

    older = explain(cluster(equal, gates=AllocatorRules.of(Release.parse("1.34"))), DISTINCT)
    newer = explain(cluster(equal), DISTINCT)

    assert (older.outcome, newer.outcome) == ("fits", "does-not-fit")
    [blocker] = older.blockers
    assert blocker.startswith(
        "the constraint distinctAttribute gpu.example.com/cheese has no effect: kube-scheduler 1.34"
    )
    assert older.remedies[0].startswith("upgrade the cluster to Kubernetes 1.36")
    assert not any("has no effect" in each for each in newer.blockers)


def test_constraint_that_a_scheduler_without_its_gate_does_not_know_names_the_gate() -> None:
    gates = AllocatorRules.of(Release.parse("1.36").without("DRAConsumableCapacity", "DRADeviceBindingConditions"))

    found = explain(cluster(slice_of(pizza("a"), pizza("b")), gates=gates), DISTINCT)

    assert found.outcome == "error"
    [blocker] = found.blockers
    assert "constraint #0: empty constraint" in blocker
    assert "with distinctAttribute needs Kubernetes 1.35 with DRAConsumableCapacity; on by default since" in blocker
