"""Usual devices are judged by class, with the same explanation as one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.diagnosis.explain.documents import claim_document
from dra_kit.diagnosis.explain.text import ReportWriter, render_claim
from tests.unit.diagnosis.explain.world import PIZZA, claim, cluster, device, explain, held, node, request, slice_of

Document = dict[str, Any]

DRIVER = "gpu.example.com"
OTHER = "nic.example.com"
NODES = ("node-1", "node-2", "node-3")
CHEESES = st.sampled_from([{"string": "mozzarella"}, {"string": "cheddar"}, {"int": 3}, {"bool": True}])
ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "cheese": CHEESES,
        f"{DRIVER}/cheese": CHEESES,
        "release": st.sampled_from([{"version": "1.0.0"}, {"version": "2.1.0"}]),
        "uuid": st.integers(0, 99).map(lambda number: {"string": f"uuid-{number}"}),
    },
)
CAPACITIES = st.sampled_from(
    [{}, {"memory": {"value": "4Gi"}}, {"memory": {"value": "8Gi"}}, {"memory": {"value": "-1"}}]
)
DEVICES = st.lists(st.tuples(ATTRIBUTES, CAPACITIES), max_size=3)
SCOPES = st.sampled_from([{}, {}, {}, {"allNodes": True}, {"nodeName": "node-9"}, {"skipNodeOperations": ["Prepare"]}])
SLICES = st.lists(
    st.tuples(
        DEVICES, SCOPES, st.sampled_from([DRIVER, DRIVER, OTHER]), st.sampled_from([1, 1, 2]), st.sampled_from(NODES)
    ),
    min_size=1,
    max_size=4,
)
MEMORY = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("5Gi")) >= 0'
CONDITIONS = (
    f'{PIZZA}.cheese == "mozzarella"',
    f'"cheese" in {PIZZA} && {PIZZA}.cheese == "mozzarella"',
    f'"release" in {PIZZA} && {PIZZA}.release.isGreaterThan(semver("1.5.0"))',
    f'{PIZZA}.?uuid.orValue("") == "uuid-1"',
    MEMORY,
    f'device.driver == "{DRIVER}"',
    "device.attributes[device.driver].cheese == 3",  # only evaluation shows which attributes it reads
    "device.allowMultipleAllocations",
    "not CEL",
)
REQUESTS = st.builds(
    lambda selectors, count, fields: request("r", count, *selectors, **fields),
    st.lists(st.sampled_from(CONDITIONS), max_size=2),
    st.sampled_from([1, 2, None]),
    st.sampled_from([{}, {}, {"capacity": {"requests": {"memory": "3Gi"}}}]),
)
RULES = st.sampled_from(
    [
        [],
        [],
        [{"driver": DRIVER}],
        [{"pool": "pool-0", "device": "device-0"}],
        [{"driver": OTHER, "pool": "pool-1"}],
    ]
)


def documents(found: list[Any], rules: list[Document], holds: frozenset[str]) -> dict[str, Any]:
    """Make the arguments of a cluster: slices, each a pool or a part of one; claims that hold devices; rules."""
    slices, claims = [], []
    for number, (devices, scope, driver, size, node_name) in enumerate(found):
        there = [
            device(f"device-{index}", attributes=attributes, **({"capacity": capacity} if capacity else {}))
            for index, (attributes, capacity) in enumerate(devices)
        ]
        where = {} if "allNodes" in scope else {"nodeName": node_name}
        pool = f"pool-{number}"
        whole = {"name": pool, "generation": 1, "resourceSliceCount": size}  # with two, one is missing
        slices.append(slice_of(*there, name=f"slice-{number}", pool=whole, driver=driver, **where | scope))
        if driver == DRIVER and there and node_name in holds:
            claims.append(held(f"holder-{number}", "device-0", pool=pool))
    taint = {"key": "hot", "effect": "NoSchedule"}
    return {
        "slices": slices,
        "claims": claims,
        "rules": [
            {"metadata": {"name": f"rule-{number}"}, "spec": {"deviceSelector": selector, "taint": taint}}
            for number, selector in enumerate(rules)
        ],
    }


def world(slices: list[Document], **others: Any) -> ClusterView:
    return cluster(*slices, nodes=[node(name) for name in NODES], **others)


def reported(where: ClusterView, wanted: Document) -> tuple[Any, str]:
    """An explanation, for programs and for people."""
    explanation = explain(where, wanted)
    page = ReportWriter(100, colour=False, everything=True)
    render_claim(page, explanation)
    return claim_document(explanation), str(page)


@given(SLICES, RULES, st.frozensets(st.sampled_from(NODES)), REQUESTS, st.booleans())
def test_the_explanation_is_the_same_as_without_the_shortcut(
    found: list[Any], rules: list[Document], holds: frozenset[str], asked: Document, constrained: bool
) -> None:
    given_ = documents(found, rules, holds)
    one_by_one = copy.deepcopy(given_)
    for slice_ in one_by_one["slices"]:
        for each in slice_["spec"].get("devices", ()):
            each["taints"] = []  # such a device is not a usual one
    constraints = [{"matchAttribute": f"{DRIVER}/cheese"}] if constrained else []
    wanted = claim(asked, constraints=constraints)

    assert reported(world(**given_), wanted) == reported(world(**one_by_one), wanted)


def test_the_devices_of_this_test_take_the_shortcut() -> None:
    given_ = documents([([({"cheese": {"int": 3}}, {})], {}, DRIVER, 1, "node-1")], [], frozenset())

    assert world(**given_).slices[0].usual is not None


def summary_of(where: ClusterView, selector: str) -> str:
    """What an explanation says of the devices for a request with this selector."""
    (asked,) = reported(where, claim(request("r", 1, selector)))[0]["requests"]
    return str(asked["choices"][0]["summary"])


@pytest.mark.parametrize("first", ["cheese", f"{DRIVER}/cheese"])
@pytest.mark.parametrize("wanted", ["mozzarella", "cheddar"])
def test_of_an_attribute_with_two_values_selectors_read_the_later_one(first: str, wanted: str) -> None:
    """It is published with and without the driver as its domain."""
    values = {"cheese": {"string": "mozzarella"}, f"{DRIVER}/cheese": {"string": "cheddar"}}
    attributes = {first: values.pop(first), **values}
    (later,) = [value["string"] for name, value in attributes.items() if name != first]
    where = world(**documents([([(attributes, {})], {}, DRIVER, 1, "node-1")], [], frozenset()))

    summary = summary_of(where, f'{PIZZA}.cheese == "{wanted}"')

    assert summary.endswith("1 fits" if wanted == later else f'wrong cheese ("{later}" ≠ "{wanted}")')


def test_of_a_capacity_with_two_values_selectors_read_the_later_one() -> None:
    capacity = {"memory": {"value": "4Gi"}, f"{DRIVER}/memory": {"value": "8Gi"}}
    where = world(**documents([([({}, capacity)], {}, DRIVER, 1, "node-1")], [], frozenset()))

    assert summary_of(where, MEMORY).endswith("1 fits")
