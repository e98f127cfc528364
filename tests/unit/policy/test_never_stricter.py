"""A policy refuses nothing that the node accepts, and decides as the node does where CEL can tell."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given

from tests.unit.policy.canteen import API_VERSION, JUNK, configs, driver
from tests.unit.policy.deciding import compiled, node_accepts, of_config

POLICY = compiled(driver)


@given(configs())
@example({"apiVersion": API_VERSION, "kind": "Scalars", "number": 2**63})
@example({"apiVersion": API_VERSION, "kind": "Scalars", "low": -(2**63) - 1})
@example({"apiVersion": API_VERSION, "kind": "Left", "tree": {"value": 1, "next": {"value": 2, "next": {"value": 3}}}})
def test_nothing_that_the_node_accepts_is_refused(parameters: dict[str, Any]) -> None:
    denials = of_config(POLICY, driver, parameters)
    assert not denials or not node_accepts(driver, parameters), denials


@given(configs(["Scalars", "Containers", "Unions"]))
@example({"apiVersion": API_VERSION, "kind": "Scalars", "code": "a-\u0967"})
def test_without_validators_policy_and_node_decide_equally(parameters: dict[str, Any]) -> None:
    accepted = node_accepts(driver, parameters)
    denials = of_config(POLICY, driver, parameters)
    if "code" in parameters and not str(parameters["code"]).isascii():
        return  # the policy's comments say so
    assert (not denials) == accepted, denials


@given(JUNK)
def test_what_is_no_config_at_all_is_refused(parameters: Any) -> None:
    assert of_config(POLICY, driver, parameters)
