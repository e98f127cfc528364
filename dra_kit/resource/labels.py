"""Label selectors: which objects they mean, with the rules of k8s.io/apimachinery ``pkg/labels``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Requirement(Struct, frozen=True):
    """One condition on one label; ``operator`` is one of In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels match; NotIn matches where the label is missing."""
        value = labels.get(self.key)
        match self.operator:
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
        if value is None or not re.fullmatch(r"-?\d+", value):
            return False
        bound = int(next(iter(self.values)))
        return int(value) > bound if self.operator == "Gt" else int(value) < bound


class LabelSelector(Struct, frozen=True):
    """Conditions that must all hold; without any it chooses everything."""

    requirements: tuple[Requirement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Return whether the labels of an object match all conditions."""
        labels = obj["metadata"].get("labels") or {}
        return all(requirement.matches(labels) for requirement in self.requirements)


def from_object(selector: Mapping[str, Any] | None) -> LabelSelector:
    """Return a ``metav1.LabelSelector``; an empty one selects everything."""
    selector = selector or {}
    requirements = [
        Requirement(key, "In", frozenset({value})) for key, value in selector.get("matchLabels", {}).items()
    ]
    requirements += [
        Requirement(item["key"], item["operator"], frozenset(item.get("values") or ()))
        for item in selector.get("matchExpressions") or ()
    ]
    return LabelSelector(tuple(requirements))
