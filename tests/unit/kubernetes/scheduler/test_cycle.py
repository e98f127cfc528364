from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.client.informer import ObjectChange
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import DEFAULT, Release
from dra_kit.kubernetes.scheduler.claims import NotReady
from dra_kit.kubernetes.scheduler.cycle import Placement, Unschedulable, schedule_pod
from dra_kit.kubernetes.scheduler.nodes import KnownRequests, node_loads
from dra_kit.sandbox.scheduler import DeviceTracker

Object = dict[str, Any]
CLASSES: dict[tuple[str, str], Object] = {
    ("", "pizza"): {"metadata": {"name": "pizza"}, "spec": {"extendedResourceName": "example.com/pizza"}},
    ("", "gold"): {
        "metadata": {"name": "gold"},
        "spec": {"selectors": [{"cel": {"expression": 'device.attributes["dra.pizza"].?gold.orValue(false)'}}]},
    },
}


class Cluster:
    """Nodes with devices, and the scheduler's state."""

    def __init__(self, devices: dict[str, list[Object]], release: str = "1.37") -> None:
        resources = {"pods": "110"}
        self.nodes: list[Object] = [
            {"metadata": {"name": name}, "spec": {}, "status": {"allocatable": resources}} for name in devices
        ]
        self.devices = DeviceTracker(AllocatorRules.of(Release.parse(release)))
        self.placed: list[tuple[str, Object]] = []
        self.claims: dict[tuple[str, str], Object] = {}
        for item in CLASSES.values():
            self.devices.class_changed(ObjectChange("ADDED", item))
        for name, published in devices.items():
            self.publish(name, {"devices": published}, node=name)

    def publish(self, pool: str, *contents: Object, node: str = "node-1") -> None:
        """Publish a pool with a slice for each content."""
        where = {"name": pool, "generation": 1, "resourceSliceCount": len(contents)}
        for number, content in enumerate(contents):
            spec = {"driver": "dra.pizza", "pool": where, "nodeName": node, **content}
            self.devices.slice_changed(ObjectChange("ADDED", {"metadata": {"name": f"{pool}-{number}"}, "spec": spec}))

    def ask(self, name: str, *requests: Object) -> Object:
        claim = {
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"devices": {"requests": list(requests)}},
        }
        self.claims["default", name] = claim
        return pod(name, name)

    def place(self, asking: Object, **options: Any) -> Placement:
        loads = node_loads(self.nodes, self.placed, KnownRequests(DEFAULT))
        return schedule_pod(asking, loads, self.claims, CLASSES, self.devices, **options)

    def hold(self, placement: Placement) -> list[str]:
        """Apply a placement; return the names of the devices."""
        self.placed.append((placement.node, dict(placement.pod)))
        names = []
        for claim, allocation in placement.allocations:
            self.devices.hold(claim["metadata"]["uid"], allocation)
            self.claims["default", claim["metadata"]["name"]]["status"] = {"allocation": allocation}
            names += [f"{item['pool']}/{item['device']}" for item in allocation["devices"]["results"]]
        return names


def pod(name: str, claim: str | None) -> Object:
    entry = {"name": "pizza", "resourceClaimName": claim} if claim else {"name": "x", "resourceClaimTemplateName": "t"}
    spec = {"containers": [{"name": "eater"}], "resourceClaims": [entry]}
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}


def extended_pod() -> Object:
    """A pod that requests a pizza as an extended resource."""
    resources = {"requests": {"example.com/pizza": "1"}}
    return {
        "metadata": {"name": "guest", "namespace": "default", "uid": "1"},
        "spec": {"containers": [{"name": "eater", "resources": resources}]},
    }


def devices(number: int, **attributes: Object) -> list[Object]:
    return [{"name": f"pizza-{i}", "attributes": attributes} for i in range(number)]


def exactly(device_class: str = "pizza", count: int = 1) -> Object:
    return {
        "name": "r",
        "exactly": {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count},
    }


def test_pod_is_placed_on_node_with_devices() -> None:
    cluster = Cluster({"node-1": [], "node-2": devices(1)})

    placement = cluster.place(cluster.ask("a", exactly()))

    assert placement.node == "node-2"
    assert placement.rejections["node-1"].reasons == ("cannot allocate all claims",)


def test_pods_spread_over_nodes() -> None:
    cluster = Cluster({"node-1": devices(2), "node-2": devices(2)})

    placements = []
    for number in range(4):
        placement = cluster.place(cluster.ask(str(number), exactly()))
        cluster.hold(placement)
        placements.append(placement.node)

    assert placements == ["node-1", "node-2", "node-1", "node-2"]


def test_error_on_any_node_aborts_attempt() -> None:
    cluster = Cluster({"node-1": devices(1, gold={"bool": True}), "node-2": devices(1)})

    asked = exactly()
    asked["exactly"]["selectors"] = [{"cel": {"expression": 'device.attributes["dra.pizza"].gold'}}]

    with pytest.raises(Unschedulable, match="no such key: gold") as refusal:
        cluster.place(cluster.ask("a", asked))

    assert refusal.value.reason == "SchedulerError"


def test_first_choice_is_preferred_over_emptier_node() -> None:
    cluster = Cluster({"node-1": devices(2), "node-2": devices(2, gold={"bool": True})})
    defaults = {"allocationMode": "ExactCount", "count": 1}
    choices = [{"name": name, "deviceClassName": name, **defaults} for name in ("gold", "pizza")]
    cluster.placed.append(("node-2", pod("other", None)))

    placement = cluster.place(cluster.ask("a", {"name": "r", "firstAvailable": choices}))

    assert placement.node == "node-2"
    assert placement.allocations[0][1]["devices"]["results"][0]["request"] == "r/gold"


def near(app: str, weight: int) -> Object:
    term = {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": app}}}
    preferred = [{"weight": weight, "podAffinityTerm": term}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def test_preferred_pod_affinity_wins_over_emptier_node() -> None:
    cluster = Cluster({"node-1": devices(1), "node-2": devices(1)})
    for item in cluster.nodes:
        item["metadata"]["labels"] = {"host": item["metadata"]["name"]}
    friend = pod("friend", None)
    friend["metadata"]["labels"] = {"app": "cook"}
    cluster.placed.append(("node-2", friend))
    asking = cluster.ask("a", exactly())
    asking["spec"]["affinity"] = near("cook", 1)

    assert cluster.place(asking).node == "node-2"


def test_order_of_preference_of_a_claim_counts_in_proportion_to_its_alternatives() -> None:
    """A second choice costs 100 // 8 of 100 points, so that any preferred pod affinity wins."""
    cluster = Cluster({"node-1": devices(1, gold={"bool": True}), "node-2": devices(1)})
    for item in cluster.nodes:
        item["metadata"]["labels"] = {"host": item["metadata"]["name"]}
    friend = pod("friend", None)
    friend["metadata"]["labels"] = {"app": "cook"}
    cluster.placed.append(("node-2", friend))
    defaults = {"allocationMode": "ExactCount", "count": 1}
    choices = [{"name": name, "deviceClassName": name, **defaults} for name in ("gold", "pizza")]
    asking = cluster.ask("a", {"name": "r", "firstAvailable": choices})
    asking["spec"]["affinity"] = near("cook", 1)

    assert cluster.place(asking).node == "node-2"


def test_allocated_claim_restricts_pod_to_its_node() -> None:
    cluster = Cluster({"node-1": devices(1), "node-2": devices(1)})
    cluster.hold(cluster.place(cluster.ask("a", exactly())))
    second = pod("b", "a")

    placement = cluster.place(second)

    assert placement.node == "node-1"
    assert placement.allocations == ()
    assert [claim["metadata"]["name"] for claim in placement.reserve] == ["a"]


def test_pod_waits_for_missing_claim() -> None:
    cluster = Cluster({"node-1": devices(1)})

    with pytest.raises(NotReady, match='could not find ResourceClaim "default/nowhere"'):
        cluster.place(pod("a", "nowhere"))
    with pytest.raises(NotReady):
        cluster.place(pod("a", None))


def test_device_plugin_on_one_node_does_not_affect_others() -> None:
    cluster = Cluster({"a": devices(1), "b": []})
    cluster.nodes[1]["status"]["allocatable"] = {"pods": "110", "example.com/pizza": "1"}
    guest = extended_pod()

    first = cluster.place(guest)
    cluster.placed.append(("a", pod("other", None)))
    second = cluster.place(guest)

    assert first.node == "a"
    assert first.extended is not None
    assert second.node == "b"
    assert second.extended is None


def test_stale_extended_resource_claim_is_deleted() -> None:
    cluster = Cluster({"a": devices(1)})
    guest = extended_pod()
    placed = cluster.place(guest)
    assert placed.extended is not None
    document = placed.extended.document
    cluster.claims["default", "stale"] = {**document, "metadata": {**document["metadata"], "name": "stale"}}

    with pytest.raises(Unschedulable, match="1 cannot schedule extended resource claim") as refusal:
        cluster.place(guest)

    assert refusal.value.remedy is not None
    assert refusal.value.remedy.text == "deletion of ResourceClaim completed"


@pytest.mark.parametrize(
    ("consumers", "helps"), [([], True), (["b"], True), (["other"], False), (["b", "other"], False)]
)
def test_claim_on_unsuitable_node_is_deallocated(consumers: list[str], helps: bool) -> None:
    cluster = Cluster({"node-1": devices(1), "node-2": devices(1)})
    cluster.hold(cluster.place(cluster.ask("a", exactly())))
    cluster.claims["default", "a"]["status"]["reservedFor"] = [{"uid": uid} for uid in consumers]
    del cluster.nodes[0]

    with pytest.raises(Unschedulable, match="1 resourceclaim not available on the node") as refusal:
        cluster.place(pod("b", "a"))

    assert (refusal.value.remedy is not None) == helps


def test_claim_is_kept_if_other_claim_does_not_fit() -> None:
    cluster = Cluster({"node-1": devices(1), "node-2": devices(1)})
    cluster.hold(cluster.place(cluster.ask("a", exactly())))
    cluster.ask("b", exactly(count=2))
    del cluster.nodes[0]
    both = pod("guest", "a")
    both["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "b"})

    with pytest.raises(Unschedulable, match="1 cannot allocate all claims") as refusal:
        cluster.place(both)

    assert refusal.value.remedy is None


def binding(status: str, *, failed: bool = False) -> list[Object]:
    kinds = {"Attached": status, "Broken": "True" if failed else "False"}
    return [{"type": kind, "status": value} for kind, value in kinds.items()]


@pytest.mark.parametrize(
    ("conditions", "overdue", "available"),
    [
        pytest.param(binding("True"), True, True, id="ready"),
        pytest.param(binding("False"), False, True, id="not yet ready"),
        pytest.param(binding("False"), True, False, id="never ready"),
        pytest.param(None, False, True, id="null, as the API server stores a status without conditions"),
        pytest.param(binding("False", failed=True), False, False, id="failed"),
    ],
)
def test_devices_that_fail_binding_are_released(
    conditions: list[Object] | None, overdue: bool, available: bool
) -> None:
    cluster = Cluster({"node-1": devices(1)})
    cluster.hold(cluster.place(cluster.ask("a", exactly())))
    status = cluster.claims["default", "a"]["status"]
    (result,) = status["allocation"]["devices"]["results"]
    result |= {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}
    status["devices"] = [{key: result[key] for key in ("driver", "pool", "device")} | {"conditions": conditions}]

    if available:
        assert cluster.place(pod("b", "a"), is_overdue=lambda _: overdue).node == "node-1"
        return
    with pytest.raises(Unschedulable, match="1 resourceclaim not available on the node") as refusal:
        cluster.place(pod("b", "a"), is_overdue=lambda _: overdue)
    assert refusal.value.remedy is not None


def test_missing_class_is_unresolvable() -> None:
    cluster = Cluster({"node-1": devices(1)})

    with pytest.raises(Unschedulable, match="request r: device class salad does not exist"):
        cluster.place(cluster.ask("a", exactly("salad")))


def test_changes_during_attempt_are_seen_afterwards() -> None:
    cluster = Cluster({"node-1": devices(1)})
    with cluster.devices.still():
        cluster.devices.slice_changed(ObjectChange("DELETED", {"metadata": {"name": "node-1-0"}}))
        placement = cluster.place(cluster.ask("a", exactly()))
        cluster.hold(placement)

    assert placement.node == "node-1"
    with pytest.raises(Unschedulable):
        cluster.place(cluster.ask("b", exactly()))


def told(cluster: Cluster, placement: Placement) -> list[str]:
    """Return the explanations of the choices of a placement."""
    node = node_loads(cluster.nodes, [], KnownRequests(DEFAULT))[placement.node].node
    return [str(choice) for _, choice in cluster.devices.explain(node, placement.allocations)]


def test_choice_is_explained() -> None:
    cluster = Cluster({"node-1": [*devices(3), {"name": "salad", "attributes": {"gold": {"bool": True}}}]})
    cluster.hold(cluster.place(cluster.ask("first", exactly())))

    assert told(cluster, cluster.place(cluster.ask("second", exactly()))) == [
        "pizza-1 of pool node-1: the first of 3 that fit; pizza-0 is taken"
    ]
    assert told(cluster, cluster.place(cluster.ask("third", exactly("gold")))) == [
        "salad of pool node-1: the only one that fits; 3 do not fit"
    ]


def test_shareable_device_with_too_little_capacity_is_taken() -> None:
    shared = {"allowMultipleAllocations": True, "capacity": {"slices": {"value": "8"}}}
    cluster = Cluster({"node-1": [{**item, **shared} for item in devices(2)]})
    cluster.hold(cluster.place(cluster.ask("first", exactly())))  # no requested amount: all of pizza-0

    assert told(cluster, cluster.place(cluster.ask("second", exactly()))) == [
        "pizza-1 of pool node-1: the only one that fits; pizza-0 is taken"
    ]


def test_tainted_device_is_not_listed_as_fitting() -> None:
    taint = {"key": "dra.pizza/burnt", "effect": "NoSchedule"}
    cluster = Cluster({"node-1": [{"name": "pizza-9", "taints": [taint]}, *devices(1)]})

    assert told(cluster, cluster.place(cluster.ask("first", exactly()))) == [
        "pizza-0 of pool node-1: the only one that fits; pizza-9 is tainted"
    ]


def test_partition_without_counters_is_not_listed_as_fitting() -> None:
    cluster = Cluster({"node-1": []})
    parts = {"whole": ("left", "right"), "left": ("left",), "right": ("right",)}
    published: list[Object] = [
        {
            "name": name,
            "consumesCounters": [{"counterSet": "card", "counters": {item: {"value": "1"} for item in taken}}],
        }
        for name, taken in parts.items()
    ]
    sets = [{"name": "card", "counters": {"left": {"value": "1"}, "right": {"value": "1"}}}]
    cluster.publish("card", {"sharedCounters": sets}, {"devices": published})

    assert told(cluster, cluster.place(cluster.ask("two", {**exactly(), "name": "a"}, {**exactly(), "name": "b"}))) == [
        "left of pool card: one of 3 that fit",
        "right of pool card: the only one that fits; left is taken; 1 is short of counters",
    ]


def test_pools_of_two_drivers_with_same_name_are_separate() -> None:
    cluster = Cluster({"node-1": devices(2)})
    cluster.publish("oven", {"devices": devices(2)})

    assert told(cluster, cluster.place(cluster.ask("three", exactly(count=3)))) == [
        "pizza-0 of pool node-1: the first of 4 that fit",
        "pizza-1 of pool node-1: the first of 3 that fit; pizza-0 is taken",
        "pizza-0 of pool oven: the first of 2 that fit; node-1/pizza-0, node-1/pizza-1 are taken",
    ]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=12),
)
def test_device_is_never_held_twice(sizes: list[int], steps: list[tuple[bool, int]]) -> None:
    cluster = Cluster({f"node-{number}": devices(size) for number, size in enumerate(sizes)})
    held: dict[str, list[str]] = {}
    for number, (release, count) in enumerate(steps):
        if release and held:
            name = next(iter(held))
            del held[name]
            cluster.devices.hold(name, None)
            continue
        try:
            placement = cluster.place(cluster.ask(f"claim-{number}", exactly(count=count)))
        except Unschedulable:
            free = max(
                size - sum(name.startswith(f"node-{node}/") for names in held.values() for name in names)
                for node, size in enumerate(sizes)
            )
            assert free < count
            continue
        held[f"claim-{number}"] = cluster.hold(placement)

    everything = [name for names in held.values() for name in names]
    assert len(everything) == len(set(everything))


NEGATIVE: Object = {
    "devices": {
        "results": [
            {
                "request": "r",
                "driver": "dra.pizza",
                "pool": "node-1",
                "device": "pizza-0",
                "shareID": "9f6f1f3c-0000-4000-8000-000000000000",
                "consumedCapacity": {"slices": "-2"},
            }
        ]
    }
}


def cluster_with_negative_share(release: str) -> tuple[Cluster, Object]:
    cluster = Cluster({"node-1": [{"name": "pizza-0", "allowMultipleAllocations": True}, {"name": "pizza-1"}]}, release)
    asking = cluster.ask("lunch", exactly())
    cluster.devices.hold("brunch", NEGATIVE, "default/brunch")
    return cluster, asking


def test_claim_with_negative_share_stops_the_scheduler_since_1_38() -> None:
    cluster, asking = cluster_with_negative_share("1.38")

    with pytest.raises(Unschedulable) as refused:
        cluster.place(asking)

    assert refused.value.reason == "SchedulerError"
    assert refused.value.message == (
        'running PreFilter plugin "DynamicResources": gather allocation state: claim default/brunch, device '
        'dra.pizza/node-1/pizza-0: consumed capacity "slices" must not be negative, got -2'
    )


def test_scheduler_goes_on_after_the_negative_share_is_gone() -> None:
    cluster, asking = cluster_with_negative_share("1.38")

    cluster.devices.hold("brunch", None, "default/brunch")

    assert cluster.place(asking).node == "node-1"


def test_claim_with_negative_share_stops_nothing_before_1_38() -> None:
    cluster, asking = cluster_with_negative_share("1.37")

    assert cluster.place(asking).node == "node-1"


@pytest.mark.parametrize(
    ("version", "claim", "text"),
    [
        ("1.36", True, "2 cannot allocate all claims. still not schedulable, preemption: 0/2 nodes are available"),
        ("1.36", False, "2 node(s) were unschedulable. no new claims to deallocate, preemption: 0/2 nodes"),
        ("1.37", True, "2 cannot allocate all claims. preemption: 0/2 nodes are available"),
        ("1.37", False, "2 node(s) were unschedulable. preemption: 0/2 nodes are available"),
    ],
)
def test_claims_that_cannot_be_deallocated_are_reported_before_1_37(version: str, claim: bool, text: str) -> None:
    cluster = Cluster({"node-1": devices(1), "node-2": devices(1)}, version)
    asking = cluster.ask("a", exactly(count=9))
    if not claim:
        asking["spec"]["resourceClaims"] = []
        for node in cluster.nodes:
            node["spec"] = {"unschedulable": True}

    with pytest.raises(Unschedulable) as refused:
        cluster.place(asking)

    assert text in refused.value.message
