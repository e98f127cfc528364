"""Cells of tables that several kinds have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dra_kit.apiserver.kinds.kind import Column
from dra_kit.kubernetes.values.json import Object, value_at

NONE: Final = "<none>"


def at(path: str) -> Callable[[Object], Any]:
    """Return the value at a path, None where there is none."""
    names = path.split(".")
    return lambda obj: value_at(obj, names)


def text(path: str) -> Callable[[Object], str]:
    """Return the value at a path as text, empty where there is none."""
    read = at(path)

    def cell(obj: Object) -> str:
        value = read(obj)
        return "" if value is None else str(value)

    return cell


def count(path: str) -> Callable[[Object], int]:
    """Return how many items are at a path."""
    read = at(path)
    return lambda obj: len(read(obj) or ())


def number(path: str) -> Callable[[Object], int]:
    """Return the number at a path, 0 where there is none."""
    read = at(path)
    return lambda obj: read(obj) or 0


def selector(path: str) -> Callable[[Object], str]:
    """Return a LabelSelector at a path as kubectl writes it."""
    read = at(path)

    return lambda obj: written_selector(read(obj)) or NONE


def written_selector(selector: Object | None) -> str:
    """Return a LabelSelector as one text, by the keys; empty where it selects everything."""
    wanted = selector or {}
    parts = [(key, f"{key}={value}") for key, value in sorted((wanted.get("matchLabels") or {}).items())]
    parts += [(item["key"], _requirement(item)) for item in wanted.get("matchExpressions") or ()]
    return ",".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def _requirement(item: Object) -> str:
    match item["operator"]:
        case "Exists":
            return str(item["key"])
        case "DoesNotExist":
            return f"!{item['key']}"
        case operator:
            return f"{item['key']} {operator.lower()} ({','.join(sorted(item.get('values') or ()))})"


def labels(path: str) -> Callable[[Object], str]:
    """Return a map of labels at a path."""
    read = at(path)
    return lambda obj: ",".join(f"{key}={value}" for key, value in sorted((read(obj) or {}).items())) or NONE


def _containers(field: str) -> Callable[[Object], str]:
    read = at("spec.template.spec.containers")
    return lambda obj: ",".join(item.get(field, "") for item in read(obj) or ())


TEMPLATE: Final = (
    Column("Containers", _containers("name"), priority=1),
    Column("Images", _containers("image"), priority=1),
)
"""What ``-o wide`` tells of a pod template."""

SELECTOR: Final = Column("Selector", selector("spec.selector"), priority=1)
"""The selector of a workload, which only ``-o wide`` shows."""
