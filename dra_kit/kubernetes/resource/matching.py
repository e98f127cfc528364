"""Label selectors, node selectors, taints and tolerations, and what they match."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from dra_kit.kubernetes.resource.names import label_key, label_value
from dra_kit.kubernetes.resource.v1 import (
    DeviceTaint,
    DeviceTaintSelector,
    DeviceToleration,
    NodeSelector,
    NodeSelectorRequirement,
)
from dra_kit.kubernetes.values.quantity import INT64_MAX, INT64_MIN

_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]{1,19})")  # Python converts no text of thousands of digits


@dataclass(frozen=True, slots=True)
class Node:
    """The properties of a node that allocations read; all selectors treat nodes with the same ``key`` equally."""

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
    """Whether a slice or device with this node scope is for ``node``; the name is checked first, then ``all_nodes``.

    Raises:
        ValueError: the selector is invalid; only if it is evaluated.
    """
    if name:
        return node.name == name
    if all_nodes:
        return True
    return selector is not None and node_selector_matches(selector, node)


def node_selector_matches(selector: NodeSelector, node: Node) -> bool:
    """Whether any term of a selector matches ``node``; a term without requirements matches none.

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


def merge_node_selectors(selectors: Sequence[NodeSelector]) -> NodeSelector | None:
    """Return a selector with all requirements of selectors of at most one term, or None if there are none."""
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


@lru_cache(maxsize=10_000)  # called for each attempt on a node
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
            elif any(int64_of(value) is None for value in values):
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


def _label_fits(requirement: NodeSelectorRequirement | LabelRequirement, labels: Mapping[str, str]) -> bool:
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
            left, right = int64_of(value or ""), int64_of(next(iter(requirement.values)))
            if left is None or right is None:
                return False
            return left > right if requirement.operator == "Gt" else left < right


def _field_fits(requirement: NodeSelectorRequirement, node: Node) -> bool:
    value = node.name if requirement.key == "metadata.name" else ""
    return (value == requirement.values[0]) == (requirement.operator == "In")


def int64_of(text: str) -> int | None:
    """Return the operand of Gt and Lt as Go reads it (``strconv.ParseInt``); None if it is not an int64."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    number = int(match[1] + match[2])
    return number if INT64_MIN <= number <= INT64_MAX else None


class LabelRequirement(Struct, frozen=True):
    """One condition on one label; ``operator`` is one of In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels match; NotIn also matches a missing label."""
        return _label_fits(self, labels)


class LabelSelector(Struct, frozen=True):
    """Requirements that must all match; an empty selector matches everything."""

    requirements: tuple[LabelRequirement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Return whether the labels of an object match all conditions."""
        labels = obj["metadata"].get("labels") or {}
        return all(requirement.matches(labels) for requirement in self.requirements)


def parse_label_selector(selector: Mapping[str, Any] | None) -> LabelSelector:
    """Return a ``metav1.LabelSelector``; an empty one selects everything."""
    selector = selector or {}
    requirements = [
        LabelRequirement(key, "In", frozenset({value})) for key, value in selector.get("matchLabels", {}).items()
    ]
    requirements += [
        LabelRequirement(item["key"], item["operator"], frozenset(item.get("values") or ()))
        for item in selector.get("matchExpressions") or ()
    ]
    return LabelSelector(tuple(requirements))


def taint_rule_covers(
    selector: DeviceTaintSelector | None,
    device: tuple[str, str, str],
    is_selected: Callable[[DeviceTaintSelector], bool] = lambda _: False,
) -> bool:
    """Whether a DeviceTaintRule with this selector taints a device; one without a selector taints none (KEP-5055).

    Args:
        selector: of the rule.
        device: driver, pool and name.
        is_selected: whether the device matches class and expressions, which only Kubernetes 1.34 knows.
    """
    if selector is None or any(
        wanted not in {None, found}
        for wanted, found in zip((selector.driver, selector.pool, selector.device), device, strict=True)
    ):
        return False
    return not has_expressions(selector) or is_selected(selector)


def has_expressions(selector: DeviceTaintSelector | None) -> bool:
    """Whether a DeviceTaintRule selects by class or expressions."""
    return selector is not None and bool(selector.device_class_name is not None or selector.selectors)


def taint_rule_may_cover(selector: DeviceTaintSelector | None, driver: str, pool: str) -> bool:
    """Whether a DeviceTaintRule with this selector may taint some device of a pool."""
    return selector is not None and selector.driver in {None, driver} and selector.pool in {None, pool}


def all_tolerated(taints: Sequence[DeviceTaint], tolerations: Sequence[DeviceToleration]) -> bool:
    """Whether each of the taints, which have a blocking effect, is tolerated."""
    return all(any(tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether a toleration covers a taint; an empty key or effect covers every key or effect (KEP-5055)."""
    if toleration.effect not in {"", taint.effect} or toleration.key not in {"", taint.key}:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False
