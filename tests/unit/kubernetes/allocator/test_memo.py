"""Cached outcomes of other nodes and pods never change the allocation of a pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.errors import AllocationError, Unsupported
from dra_kit.kubernetes.allocator import memo
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.search import DeviceSearch
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import DEFAULT, UNMODIFIED, Release
from dra_kit.kubernetes.resource.matching import Node, only_node
from dra_kit.kubernetes.resource.v1 import AllocationResult
from tests.unit.kubernetes.allocator.cluster import (
    DRIVER,
    Document,
    claim,
    counters,
    device,
    device_class,
    drawing,
    holder,
    request,
    result,
    way,
    without_share_ids,
    zones,
)

NODES: Final = ("node-1", "node-2", "node-3")
GATES = [
    AllocatorRules.alpha(DEFAULT),
    AllocatorRules.alpha(DEFAULT),
    AllocatorRules.of(Release.parse("1.37")),
    AllocatorRules.of(Release.parse("1.34")),
    AllocatorRules(
        partitionable_devices=True, device_taints=True, admin_access=True, prioritized_list=True, version=DEFAULT
    ),
]


# --- nodes: each has its own two pools and may differ from the others in some properties


def advertised(node: str) -> list[Document]:
    """The slices of a node: a pool of devices that consume counters, and a pool of shareable devices."""
    slot = {"slot": {"int": 0}, "numa": {"int": 0}}
    exact = [
        device(f"d{number}", attributes={**slot, "kind": {"string": "exact"}}, **drawing(1)) for number in range(3)
    ]
    shared = [
        device(
            f"s{number}",
            attributes={**slot, "kind": {"string": "shared"}},
            capacity={"memory": {"value": "2Gi"}},
            allowMultipleAllocations=True,
        )
        for number in range(2)
    ]
    return [
        slice_("exact", node, "exact", 2, nodeName=node, devices=exact),
        slice_("counters", node, "exact", 2, nodeName=node, **counters(2)),
        slice_("shared", node, "shared", 1, nodeName=node, devices=shared),
    ]


def slice_(name: str, node: str, pool: str, count: int, **spec: Any) -> Document:
    where = {"name": f"{node}-{pool}", "generation": 1, "resourceSliceCount": count}
    return {"metadata": {"name": f"{node}-{name}"}, "spec": {"driver": DRIVER, "pool": where, **spec}}


def of_first(pool: int, **fields: Any) -> Callable[[list[Document]], None]:
    """Set fields of the first device of a slice."""

    def change(slices: list[Document]) -> None:
        slices[pool]["spec"]["devices"][0] |= deepcopy(fields)

    return change


def attributed(**attributes: Document) -> Callable[[list[Document]], None]:
    """Set the attributes of the first device."""
    return of_first(0, attributes={"kind": {"string": "exact"}, **attributes})


def of_slice(pool: int, **fields: Any) -> Callable[[list[Document]], None]:
    """Set fields of a slice; fields that select nodes replace ``nodeName``."""

    def change(slices: list[Document]) -> None:
        spec = slices[pool]["spec"]
        if fields.keys() & {"allNodes", "nodeSelector", "perDeviceNodeSelection"}:
            spec.pop("nodeName", None)
        spec |= deepcopy(fields)

    return change


def of_devices(**fields: Any) -> Callable[[list[Document]], None]:
    """Use per-device node selection in the first slice: all devices except the first are for all nodes."""

    def change(slices: list[Document]) -> None:
        of_slice(0, perDeviceNodeSelection=True)(slices)
        first, *others = slices[0]["spec"]["devices"]
        first |= deepcopy(fields)
        for other in others:
            other["allNodes"] = True

    return change


def incomplete(slices: list[Document]) -> None:
    slices[2]["spec"]["pool"]["resourceSliceCount"] = 2


def invalid(slices: list[Document]) -> None:
    slices[2]["spec"]["devices"][1]["name"] = slices[2]["spec"]["devices"][0]["name"]


def divided(slices: list[Document], amount: int = 2) -> None:
    """Add devices on another node that consume the same counters."""
    there = deepcopy(slices[0])
    there["metadata"]["name"] += "-elsewhere"
    there["spec"]["nodeName"] = "elsewhere"
    there["spec"]["devices"] = [
        item | {"name": f"e{item['name']}"} | drawing(amount) for item in there["spec"]["devices"]
    ]
    slices.append(there)
    for item in (slices[0], slices[1], there):
        item["spec"]["pool"]["resourceSliceCount"] = 3


def renamed(slices: list[Document]) -> None:
    for item in slices:
        for number, found in enumerate(item["spec"].get("devices", ())):
            found["name"] = f"other-{number}"


def taint(value: str = "", effect: str = "NoSchedule") -> list[Document]:
    return [{"key": "bad", "value": value, "effect": effect}]


def memory(value: str, **policy: Any) -> Document:
    return {"memory": {"value": value, **({"requestPolicy": policy} if policy else {})}}


TWEAKS: dict[str, Callable[[list[Document]], None]] = {
    "taint": of_first(0, taints=taint()),
    "tolerated-taint": of_first(0, taints=taint("fine")),
    "harmless-taint": of_first(0, taints=taint(effect="None")),
    "attribute": attributed(slot={"int": 1}, numa={"int": 0}),
    "constrained-attribute": attributed(slot={"int": 0}, numa={"int": 1}),
    "missing-attribute": attributed(numa={"int": 0}),
    "list-attribute": attributed(slot={"int": 0}, numa={"ints": [1, 2]}),
    "useless-attribute": attributed(slot={"int": 0}, numa={"int": 0}, v={"version": "x"}),
    "unread-attribute": attributed(slot={"int": 0}, numa={"int": 0}, uuid={"string": "u"}),
    "demand": of_first(0, **drawing(2)),
    "no-demand": of_first(0, consumesCounters=[]),
    "groups": of_first(
        0,
        consumesCounters=[{"counterSet": "set", "counters": {"c": {"value": "1"}}, "compatibilityGroups": ["a"]}],
    ),
    "unshareable": of_first(2, allowMultipleAllocations=False),
    "shareable": of_first(0, allowMultipleAllocations=True),
    "less-capacity": of_first(2, capacity=memory("1Gi")),
    "capacity-in-other-notation": of_first(2, capacity=memory("2147483648")),
    "default": of_first(2, capacity=memory("2Gi", default="1Gi")),
    "default-in-other-notation": of_first(2, capacity=memory("2Gi", default="1073741824")),
    "other-default": of_first(2, capacity=memory("2Gi", default="2Gi")),
    "valid-values": of_first(2, capacity=memory("2Gi", default="1Gi", validValues=["1Gi", "2Gi"])),
    "other-values": of_first(2, capacity=memory("2Gi", default="1Gi", validValues=["1Gi"])),
    "range": of_first(2, capacity=memory("2Gi", default="2Gi", validRange={"min": "512Mi"})),
    "higher-range": of_first(2, capacity=memory("2Gi", default="2Gi", validRange={"min": "2Gi"})),
    "other-range": of_first(2, capacity=memory("2Gi", default="2Gi", validRange={"min": "1Gi", "step": "1Gi"})),
    "no-capacity": of_first(2, capacity={}),
    "binding": of_first(0, bindingConditions=["ready"], bindingFailureConditions=["failed"]),
    "pinned": of_first(0, bindsToNode=True),
    "skipping": of_slice(0, skipNodeOperations=["Prepare"]),
    "all-nodes": of_slice(2, allNodes=True),
    "one-zone": of_slice(2, nodeSelector=zones("a")),
    "two-zones": of_slice(2, nodeSelector=zones("a", "b")),
    "wrong-zone": of_slice(2, nodeSelector=zones("*")),
    "device-of-a-node": of_devices(nodeName="node-1"),
    "device-of-another-node": of_devices(nodeName="node-2"),
    "device-of-a-zone": of_devices(nodeSelector=zones("a")),
    "device-of-two-zones": of_devices(nodeSelector=zones("a", "b")),
    "device-of-no-zone": of_devices(nodeSelector=zones("*")),
    "fewer-counters": of_slice(1, **counters(1)),
    "other-driver": of_slice(2, driver="other.example.com"),
    "incomplete": incomplete,
    "invalid": invalid,
    "divided": divided,
    "renamed": renamed,
    "divided-too": divided,
    "divided-by-less": lambda slices: divided(slices, amount=1),
    "divided-by-none": lambda slices: divided(slices, amount=0),
    "first-of-all-nodes": of_devices(allNodes=True),
    "unscoped": of_first(0, nodeName="node-1"),
    "empty": of_slice(2, devices=[]),
}


class Family(NamedTuple):
    """Alternative tweaks, and the pods that they affect.

    Attributes:
        kind: of the affected devices.
        tweaks: their names.
        asked: fields of requests.
    """

    kind: str
    tweaks: list[str]
    asked: list[Document]


def tolerating(value: str) -> Document:
    return {"tolerations": [{"key": "bad", "operator": "Equal", "value": value}]}


def asking(amount: str) -> Document:
    return {"capacity": {"requests": {"memory": amount}}}


def selecting(expression: str) -> Document:
    return {"selectors": [{"cel": {"expression": expression}}]}


NUMA: Final = f"{DRIVER}/numa"
SLOT: Final = f'device.attributes["{DRIVER}"].slot'
DERIVED: Final = {
    "derivedAttributes": [{"name": NUMA, "expression": f'device.attributes["{DRIVER}"].?slot.orValue(7)'}]
}
OTHERWISE_DERIVED: Final = {"derivedAttributes": [{"name": NUMA, "expression": "3"}]}
NOTHING: Final[Document] = {}

FAMILIES = [
    # these differ only in the usage
    Family("shared", ["renamed"], [NOTHING, asking("1Gi"), asking("2Gi")]),
    Family("exact", ["divided", "divided-too"], [NOTHING]),
    Family("shared", ["default", "default-in-other-notation", "capacity-in-other-notation"], [NOTHING, asking("1Gi")]),
    Family("exact", ["taint", "tolerated-taint", "harmless-taint"], [NOTHING, tolerating(""), tolerating("fine")]),
    Family(
        "exact",
        ["attribute", "missing-attribute", "list-attribute", "useless-attribute", "unread-attribute"],
        [
            selecting(f"{SLOT} == 0"),  # an error if the attribute is missing
            selecting(f'device.attributes["{DRIVER}"].?slot.orValue(0) == 0'),
            selecting("!device.attributes[device.driver].?uuid.hasValue()"),
            DERIVED,
            OTHERWISE_DERIVED,
        ],
    ),
    Family(
        "exact",
        ["constrained-attribute", "attribute", "list-attribute", "binding", "renamed"],
        [NOTHING, DERIVED, OTHERWISE_DERIVED],
    ),
    Family("exact", ["demand", "no-demand", "groups", "fewer-counters", "pinned"], [NOTHING, {"adminAccess": True}]),
    Family("exact", ["divided", "divided-by-less", "divided-by-none"], [NOTHING]),
    Family("", ["unshareable", "shareable"], [NOTHING, asking("1Gi"), selecting("device.allowMultipleAllocations")]),
    Family("", ["other-driver"], [NOTHING, selecting(f'device.driver == "{DRIVER}"')]),
    Family(
        "shared",
        ["less-capacity", "no-capacity", "unshareable"],
        [NOTHING, asking("1Gi"), asking("1024Mi"), asking("2Gi"), asking("-1")],
    ),
    Family(
        "shared",
        ["default", "other-default", "valid-values", "other-values"],
        [NOTHING, asking("1Gi"), asking("2Gi"), asking("1536Mi")],
    ),
    Family("shared", ["range", "other-range", "higher-range"], [NOTHING, asking("1Gi"), asking("1536Mi")]),
    Family("exact", ["skipping", "binding", "pinned"], [NOTHING, {"adminAccess": True}]),
    Family("shared", ["one-zone", "two-zones", "wrong-zone", "all-nodes"], [NOTHING]),
    Family(
        "exact",
        ["device-of-a-node", "device-of-another-node", "device-of-a-zone", "device-of-two-zones", "device-of-no-zone"],
        [NOTHING],
    ),
    Family("exact", ["device-of-a-node", "first-of-all-nodes", "unscoped"], [NOTHING]),
    Family("", ["incomplete", "invalid", "empty"], [NOTHING, {"allocationMode": "All"}, selecting("true")]),
]


nodes = st.builds(
    Node,
    st.just(""),
    st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]),
    st.sampled_from([frozenset(), frozenset({"DRAOptionalNodeOperations"})]),
)


@st.composite
def clusters(draw: st.DrawFn, family: Family) -> list[tuple[Node, list[str], list[Document]]]:
    """Nodes with their tweaks and the devices in use."""
    tweaks = draw(st.permutations([*([name] for name in family.tweaks), []]))[:3]
    alike, place = draw(st.integers(0, 3)), draw(nodes)
    same, taken = draw(st.booleans()), draw(held)
    return [(place if alike else draw(nodes), each, taken if same else draw(held)) for each in tweaks]


HELD: list[Document] = [
    {"device": "d0", "pool": "exact"},
    {"device": "ed0", "pool": "exact"},
    {"device": "ed0", "pool": "exact"},
    {"device": "s0", "pool": "shared"},
    {"device": "s0", "pool": "shared", "shareID": "a", "consumedCapacity": {"memory": "1Gi"}},
    {"device": "s0", "pool": "shared", "shareID": "b"},
    {"device": "d0", "pool": "exact", "shareID": "c"},
]
held: st.SearchStrategy[list[Document]] = st.one_of(st.just([]), st.lists(st.sampled_from(HELD), max_size=2))


# --- pods


def exactly(family: Family, asked: Document, count: int | None) -> Document:
    """A request for the devices that the tweaks of a family affect."""
    kind = [f'device.attributes["{DRIVER}"].kind == "{family.kind}"'] if family.kind else []
    found = way(count, *kind) | {name: value for name, value in asked.items() if name != "selectors"}
    found["selectors"] = [*found["selectors"], *asked.get("selectors", [])]
    return found


@st.composite
def requests(draw: st.DrawFn, name: str, family: Family) -> Document:
    ways = [exactly(family, draw(st.sampled_from(family.asked)), draw(st.sampled_from([1, 1, 2, 3]))) for _ in "xy"]
    if draw(st.integers(0, 3)) == 0:
        for one in ways:
            one.pop("adminAccess", None)
        return {"name": name, "firstAvailable": [{"name": sub} | one for sub, one in zip("xy", ways, strict=True)]}
    return {"name": name, "exactly": ways[0] | {"deviceClassName": draw(st.sampled_from(["any", "some"]))}}


constraints = st.sampled_from(
    [
        [],
        [],
        [{"matchAttribute": NUMA}],
        [{"distinctAttribute": NUMA}],
        [{"matchAttribute": NUMA, "requests": ["r1"]}],
        [{"matchAttribute": NUMA, "requests": ["r0/x"]}],
    ]
)


@st.composite
def pods(draw: st.DrawFn, family: Family) -> list[Document]:
    return [
        claim(
            *[draw(requests(f"r{number}", family)) for number in range(draw(st.sampled_from([1, 1, 2])))],
            name=f"claim-{position}",
            constraints=draw(constraints),
        )
        for position in range(draw(st.sampled_from([1, 1, 1, 2])))
    ]


def probes(family: Family) -> list[list[Document]]:
    """Pods for each property that a family may affect."""
    return [
        [claim({"name": "r", "exactly": exactly(family, asked, count)}, constraints=bound)]
        for asked in family.asked
        for count in (1, 2, None)
        for bound in ([], [{"matchAttribute": NUMA}], [{"distinctAttribute": NUMA}])
        if count == 2 or not bound
    ]


def rule(**selector: str) -> Document:
    return {"metadata": {"name": "rule"}, "spec": {"deviceSelector": selector, "taint": taint()[0]}}


CLASSES = [device_class("some"), device_class("some", "false"), device_class("some", f"{SLOT} == 0")]
CHANGES: list[Callable[[AllocatorState], None]] = [
    lambda world: world.taint([]),
    lambda world: world.taint([rule(pool="node-1-exact", device="d0")]),
    lambda world: world.taint([rule(driver="other.example.com")]),
    lambda world: world.define([CLASSES[1]]),
    lambda world: world.define([CLASSES[2]]),
    lambda world: world.publish(advertised("node-1")),
    lambda world: world.publish(remove=["node-2-shared"]),
]


# --- with and without cache


class Game(NamedTuple):
    """A sequence of pods on a cluster.

    Attributes:
        family: of the tweaks.
        nodes: each with its tweaks and the devices in use.
        pods: in order, each with the change after it.
        gates: of the scheduler.
    """

    family: Family
    nodes: list[tuple[Node, list[str], list[Document]]]
    pods: list[tuple[list[Document], Callable[[AllocatorState], None] | None]]
    gates: AllocatorRules


def outcome(allocator: Allocator, node: Node, pod: Sequence[Document]) -> tuple[object, list[AllocationResult]]:
    """The outcome of an attempt without share ids, and the allocations."""
    try:
        found = allocator.allocate(node, pod)
    except (AllocationError, Unsupported) as error:
        return (type(error), getattr(error, "kind", None), str(error)), []
    if found is None:
        return None, []
    return without_share_ids(found), found


@st.composite
def games(draw: st.DrawFn) -> Game:
    family = draw(st.sampled_from(FAMILIES))
    played = [(draw(pods(family)), draw(st.sampled_from([None, None, *CHANGES]))) for _ in range(2)]
    return Game(family, draw(clusters(family)), played, draw(st.sampled_from(GATES)))


@given(games())
def test_cached_outcome_equals_fresh_outcome(game: Game) -> None:
    check(game)


def check(game: Game) -> None:
    """Play a game with a cache, and compare each attempt with one without a cache."""
    slices: list[Document] = []
    holders: list[Document] = []
    places: list[Node] = []
    for name, (node, tweaks, taken) in zip(NODES, game.nodes, strict=False):
        mine = advertised(name)
        for tweak in tweaks:
            TWEAKS[tweak](mine)
        slices += mine
        holders += [holder(result(item["device"], **item | {"pool": f"{name}-{item['pool']}"})) for item in taken]
        places.append(Node(name, node.labels, node.declared_features))
    world = AllocatorState(slices=slices, classes=[device_class(), CLASSES[0]], claims=holders, version=DEFAULT)
    cached = Allocator(world, game.gates)

    for pod, change in game.pods:
        for probe in probes(game.family):
            compared(world, cached, places, probe, game.gates)
        for allocation in compared(world, cached, places, pod, game.gates):
            world.allocate(allocation)
        if change is not None:
            change(world)


def compared(
    world: AllocatorState, cached: Allocator, places: Sequence[Node], pod: Sequence[Document], gates: AllocatorRules
) -> list[AllocationResult]:
    """The allocations of a pod on the first node that fits."""
    first: list[AllocationResult] = []
    for node in places:
        expected, _ = outcome(Allocator(world, gates), node, pod)
        observed, found = outcome(cached, node, pod)
        assert observed == expected
        first = first or found
    return first


# --- what is cached


def same(count: int, **fields: Any) -> tuple[AllocatorState, list[Node]]:
    """Nodes with two devices each, which differ only in an attribute that no pod reads."""
    slices = [
        slice_(
            "gpus",
            f"n{number}",
            "gpus",
            1,
            nodeName=f"n{number}",
            devices=[device(f"d{one}", attributes={"uuid": {"string": f"{number}-{one}"}}, **fields) for one in (0, 1)],
        )
        for number in range(count)
    ]
    return AllocatorState(slices=slices, classes=[device_class()], version=DEFAULT), [
        Node(f"n{number}") for number in range(count)
    ]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list with an entry for each search."""
    begun: list[int] = []
    run = DeviceSearch.run

    def counted(search: DeviceSearch) -> bool:
        begun.append(1)
        return run(search)

    monkeypatch.setattr(DeviceSearch, "run", counted)
    return begun


def test_equal_nodes_are_searched_once(searches: list[int]) -> None:
    world, places = same(10)
    allocator = Allocator(world, AllocatorRules.of(UNMODIFIED))

    found = [allocator.allocate(node, [claim(request())]) for node in places]

    assert [item.node_selector for one in found for item in one or ()] == [only_node(node.name) for node in places]
    assert len(searches) == 1


def test_equal_pods_are_searched_once(searches: list[int]) -> None:
    world, [node] = same(1)
    allocator = Allocator(world, AllocatorRules.of(UNMODIFIED))

    for name in ("one", "two"):
        assert allocator.allocate(node, [claim(request(), name=name)]) is not None

    assert len(searches) == 1


def test_equal_nodes_that_do_not_fit_are_searched_once(searches: list[int]) -> None:
    world, places = same(10)
    allocator = Allocator(world, AllocatorRules.of(UNMODIFIED))

    assert {allocator.allocate(node, [claim(request("r", 3))]) is None for node in places} == {True}
    assert len(searches) == 1


def test_errors_are_not_cached(searches: list[int]) -> None:
    world, places = same(3)
    attempt = Allocator(world, AllocatorRules.of(UNMODIFIED)).attempt([claim(request("r", 1, SLOT + " == 0"))])

    devices = []
    for node in places:
        with pytest.raises(AllocationError) as caught:
            attempt.on(node)
        devices.append(caught.value.device)

    assert devices == [f"{DRIVER}/n{number}-gpus/d0" for number in range(3)]
    assert len(searches) == 3


def test_each_share_gets_a_new_id() -> None:
    world, places = same(5, allowMultipleAllocations=True)
    allocator = Allocator(world, AllocatorRules.of(UNMODIFIED))
    attempt = allocator.attempt([claim(request())])
    found = [attempt.on(node) for node in (*places, *places)]

    ids = [one.share_id for allocations in found for item in allocations or () for one in item.devices.results]
    assert len(set(ids)) == 10
    assert found[0] is not None
    assert found[0][0] is found[0][0]


@settings(max_examples=30)
@given(games())
def test_outcomes_are_the_same_with_tiny_caches(game: Game) -> None:
    with patch.multiple(memo, _POD_SHAPES=1, _OUTCOMES=2, _DEVICES=4):
        check(game)
