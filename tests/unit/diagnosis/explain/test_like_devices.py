"""Equivalent devices are judged once, with the verdict that each would have alone."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterView, model_of_claim
from dra_kit.diagnosis.explain.verdicts import NodeOutcome
from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from tests.unit.diagnosis.explain.world import PIZZA, claim, cluster, device, held, node, request, slice_of, verdicts

Document = dict[str, Any]

TAINTS = st.sampled_from(
    [[], [{"key": "hot", "effect": "NoSchedule"}], [{"key": "hot", "value": "very", "effect": "NoExecute"}]]
)
POLICIES = st.sampled_from([None, {"default": "1Gi"}, {"default": "2Gi", "validValues": ["2Gi", "4Gi"]}])
ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "cheese": st.sampled_from([{"string": "mozzarella"}, {"string": "cheddar"}, {"int": 3}, {"string": "käse"}]),
        "uuid": st.integers(0, 99).map(lambda number: {"string": f"uuid-{number}"}),
    },
)


@st.composite
def devices(draw: st.DrawFn) -> Document:
    """A device without its name."""
    policy = draw(POLICIES)
    memory: Document = {"value": draw(st.sampled_from(["4Gi", "4096Mi", "8Gi"]))}
    if policy is not None:
        memory["requestPolicy"] = policy
    return {
        "attributes": draw(ATTRIBUTES),
        "capacity": draw(st.sampled_from([{}, {"memory": memory}])),
        "taints": draw(TAINTS),
        **draw(st.sampled_from([{}, {"allowMultipleAllocations": True}, {"bindingConditions": ["ready"]}])),
    }


SELECTORS = st.sampled_from(
    [
        (),
        (f'{PIZZA}.cheese == "mozzarella"',),
        (f'"cheese" in {PIZZA} && {PIZZA}.cheese == "mozzarella"', 'device.driver == "gpu.example.com"'),
        ("device.allowMultipleAllocations == true",),
        (f'{PIZZA}.uuid == "uuid-1"',),
    ]
)
REQUESTS = st.builds(
    lambda selectors, count, fields: request("r", count, *selectors, **fields),
    SELECTORS,
    st.sampled_from([1, 1, 2]),
    st.sampled_from(
        [{}, {"capacity": {"requests": {"memory": "3Gi"}}}, {"tolerations": [{"key": "hot", "operator": "Exists"}]}]
    ),
)
WORLDS = st.lists(st.tuples(devices(), st.sampled_from(["", "", "a", "b"])), min_size=1, max_size=9)


def world(found: list[tuple[Document, str]], only: int | None = None) -> ClusterView:
    """Devices on two nodes, some of which a claim holds; or a single one of them."""
    nodes: dict[str, list[Document]] = {"node-1": [], "node-2": []}
    holders: dict[str, list[str]] = {}
    for index, (content, holder) in enumerate(found):
        if only is None or index == only:
            name = f"device-{index}"
            nodes[f"node-{index % 2 + 1}"].append(device(name, **content))
            if holder:
                holders.setdefault(f"{holder}-{index % 2 + 1}", []).append(name)
    return cluster(
        *(
            slice_of(*there, name=f"slice-{name}", pool=f"pool-{name[-1]}", nodeName=name)
            for name, there in nodes.items()
            if there
        ),
        nodes=[node("node-1"), node("node-2")],
        claims=[held(name, *held_, pool=f"pool-{name[-1]}") for name, held_ in holders.items()],
    )


@given(WORLDS, REQUESTS)
def test_a_device_among_others_has_the_same_verdict_as_alone(
    found: list[tuple[Document, str]], asked: Document
) -> None:
    together = verdicts(world(found), claim(asked))

    for index in range(len(found)):
        alone = verdicts(world(found, only=index), claim(asked))[f"device-{index}"]
        assert [(reason.check, reason.text) for reason in together[f"device-{index}"].reasons] == [
            (reason.check, reason.text) for reason in alone.reasons
        ]


@given(WORLDS, REQUESTS, REQUESTS)
def test_each_node_has_the_outcome_that_the_allocator_has(
    found: list[tuple[Document, str]], first: Document, second: Document
) -> None:
    where = world(found)
    wanted = model_of_claim(claim(first, {**second, "name": "s"}), where.gates)

    for outcome in ClaimExplainer(where).explain(wanted).nodes:
        expected: NodeOutcome
        try:
            allocations = Allocator(where.snapshot, where.gates).allocate(outcome.node, [wanted])
            expected = NodeOutcome(outcome.node, allocations)
        except AllocationError as error:
            expected = NodeOutcome(outcome.node, error=error)
        assert summary(outcome) == summary(expected)


def summary(outcome: NodeOutcome) -> object:
    """An outcome without the identifiers of shares, which are random."""
    if outcome.error is not None:
        return outcome.error.kind
    if outcome.allocations is None:
        return None
    return [(each.request, each.device) for allocation in outcome.allocations for each in allocation.devices.results]
