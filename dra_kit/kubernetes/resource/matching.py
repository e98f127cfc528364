"""Nodes, and which of them a node selector means."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from dra_kit.resource.names import label_key, label_value
from dra_kit.resource.v1 import NodeSelector, NodeSelectorRequirement
from dra_kit.values.amount import INT64_MAX, INT64_MIN

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Node:
    """What an allocation needs to know of a node.

    Attributes:
        name: ``metadata.name``.
        labels: ``metadata.labels``.
        declared_features: ``status.declaredFeatures``.
        key: equal for nodes that every selector treats alike.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    declared_features: frozenset[str] = frozenset()
    key: Hashable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.name, frozenset(self.labels.items())))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Node:
        """Return the node of a v1 Node object as JSON."""
        metadata, status = document.get("metadata") or {}, document.get("status") or {}
        return cls(
            metadata.get("name", ""), metadata.get("labels") or {}, frozenset(status.get("declaredFeatures") or ())
        )


def node_matches(node: Node, name: str | None, all_nodes: bool | None, selector: NodeSelector | None) -> bool:
    """Whether a slice or device with this node scope is for ``node``; the name is looked at first, then ``all_nodes``.

    Raises:
        ValueError: the selector is not valid; only if it is looked at.
    """
    if name:
        return node.name == name
    if all_nodes:
        return True
    return selector is not None and selects(selector, node)


def selects(selector: NodeSelector, node: Node) -> bool:
    """Whether any term of a selector means ``node``; a term without requirements means none.

    Raises:
        ValueError: a requirement of any term is not valid (rules of k8s.io/component-helpers v0.37.1).
    """
    terms = [term for term in selector.node_selector_terms if term.match_expressions or term.match_fields]
    for term in terms:
        for requirement in term.match_expressions:
            _check_expression(requirement)
        for requirement in term.match_fields:
            _check_field(requirement)
    return any(
        all(_label_fits(requirement, node.labels) for requirement in term.match_expressions)
        and all(_field_fits(requirement, node) for requirement in term.match_fields)
        for term in terms
    )


def merge_selectors(selectors: Sequence[NodeSelector]) -> NodeSelector | None:
    """One selector that demands what all of them demand, without repeating a requirement; None if nothing is.

    Args:
        selectors: each of at most one term.
    """
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for selector in selectors:
        for term in selector.node_selector_terms:
            _add_new(term.match_fields, fields)
            _add_new(term.match_expressions, expressions)
    if not fields and not expressions:
        return None
    return NodeSelector.model_validate(
        {"node_selector_terms": [{"match_fields": fields, "match_expressions": expressions}]}
    )


@lru_cache(maxsize=10_000)  # asked for with every attempt on a node
def only_node(name: str) -> NodeSelector:
    """Return the selector of the one node that has this name."""
    requirement = NodeSelectorRequirement(key="metadata.name", operator="In", values=(name,))
    return NodeSelector.model_validate({"node_selector_terms": [{"match_fields": [requirement]}]})


def _add_new(requirements: Sequence[NodeSelectorRequirement], known: list[NodeSelectorRequirement]) -> None:
    for new in requirements:
        if not any(
            (old.key, old.operator, set(old.values)) == (new.key, new.operator, set(new.values)) for old in known
        ):
            known.append(new)


def _check_expression(requirement: NodeSelectorRequirement) -> None:
    problems = label_key(requirement.key)
    values = requirement.values
    match requirement.operator:
        case "In" | "NotIn":
            if not values:
                problems.append("values must be non-empty for In and NotIn")
        case "Exists" | "DoesNotExist":
            if values:
                problems.append("values must be empty for Exists and DoesNotExist")
        case "Gt" | "Lt":
            if len(values) != 1:
                problems.append("Gt and Lt need exactly one value")
            elif any(_integer(value) is None for value in values):
                problems.append("the value of Gt and Lt must be an integer")
        case operator:
            problems.append(f"{operator!r} is not a valid operator")
    for value in values:
        problems += label_value(value)
    _refuse(requirement, problems)


def _check_field(requirement: NodeSelectorRequirement) -> None:
    problems = []
    if requirement.operator not in {"In", "NotIn"}:
        problems.append(f"{requirement.operator!r} is not a valid operator for fields")
    elif len(requirement.values) != 1:
        problems.append("a field needs exactly one value")
    _refuse(requirement, problems)


def _refuse(requirement: NodeSelectorRequirement, problems: list[str]) -> None:
    if problems:
        raise ValueError(f"node selector requirement on {requirement.key!r}: {'; '.join(problems)}")


def _label_fits(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            left, right = _integer(value or ""), _integer(requirement.values[0])
            if left is None or right is None:
                return False
            return left > right if requirement.operator == "Gt" else left < right


def _field_fits(requirement: NodeSelectorRequirement, node: Node) -> bool:
    value = node.name if requirement.key == "metadata.name" else ""
    return (value == requirement.values[0]) == (requirement.operator == "In")


def _integer(text: str) -> int | None:
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if INT64_MIN <= number <= INT64_MAX else None
