"""A policy refuses nothing that the node accepts, and lets nothing pass but what it says it leaves to the node."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given

from dra_kit.admission.policy.manifest import policy_objects
from tests.unit.admission.policy.canteen import API_VERSION, configs, driver
from tests.unit.admission.policy.deciding import (
    compiled,
    left_to_the_node,
    node_accepts,
    node_problems,
    of_config,
    webhook_accepts,
)

POLICY = compiled(driver)
LEFT = policy_objects(driver).left


def scalars(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "Scalars", **fields}


@given(configs())
@example(scalars(number=2**63))
@example(scalars(number=-(2**63) - 1))
@example(scalars(low=-(2**63) - 1))
@example(scalars(low=-(2**63)))
@example(scalars(huge=2**63 - 1))
@example(scalars(huge=2**63))
@example(scalars(loose="\u212ax"))
@example(scalars(cores="1e-9"))
@example(scalars(cores=1e-12))
@example(scalars(cores=2**63))
@example(scalars(share=1e21))
@example({"apiVersion": API_VERSION, "kind": "Left", "as_text": None})  # its validator raises TypeError
@example({"apiVersion": API_VERSION, "kind": "Left", "tree": {"value": 1, "next": {"value": 2, "next": {"value": 3}}}})
def test_policy_decides_as_the_node_except_for_rules_left_to_the_node(parameters: dict[str, Any]) -> None:
    denials = of_config(POLICY, driver, parameters)
    assert webhook_accepts(driver, parameters) == node_accepts(driver, parameters)
    if denials:
        assert not node_accepts(driver, parameters), denials
    else:
        problems = node_problems(driver, parameters)
        assert left_to_the_node(problems, parameters, LEFT), problems


def test_policy_rejects_entries_that_are_not_configs_of_the_driver() -> None:
    some: list[Any] = [None, 1, "a", [], {}, {"kind": "Scalars"}, scalars(kind=["Scalars"]), scalars(apiVersion=1)]
    for parameters in some:
        assert of_config(POLICY, driver, parameters), parameters


def test_policy_leaves_quantities_with_huge_exponents_to_the_node() -> None:
    parameters = scalars(cores="1e2147483647")
    assert not of_config(POLICY, driver, parameters)
    assert not node_accepts(driver, parameters)
