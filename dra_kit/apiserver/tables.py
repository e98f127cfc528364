"""Tables, which ``kubectl get`` prints: columns and how to read their cells, rows, and partial metadata.

The columns of a kind are ``columns`` where the kind is defined, in ``kinds/``; ``-o wide`` shows those of priority 1.

Source: k8s.io/apimachinery 0.37 ``pkg/util/duration``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from dra_kit.apiserver.requests import Query
from dra_kit.apiserver.status_errors import bad_request
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.values.json import Object, value_at


class Column(Struct, frozen=True):
    """A column of the table that ``kubectl get`` prints.

    Attributes:
        cell: the value for an object in storage version; None for the age.
        type: a type of the API (``string``, ``integer``, ``number``, ``boolean``, ``date``), or ``age`` for a time that
            is shown as the time since then and sent as a string.
        format: ``name`` for the column of names.
        priority: 1 for columns that only ``-o wide`` shows.
    """

    name: str
    cell: Callable[[Object], Any] | None
    type: str = "string"
    format: str = ""
    priority: int = 0


NAME = Column("Name", lambda obj: obj["metadata"].get("name", ""), format="name")
AGE = Column("Age", None)
CREATED = Column("Created At", lambda obj: obj["metadata"].get("creationTimestamp", ""), type="date")


NONE: Final = "<none>"


def value_at_path(path: str) -> Callable[[Object], Any]:
    """Return the value at a path, None if it is missing."""
    names = path.split(".")
    return lambda obj: value_at(obj, names)


def text_cell(path: str, missing: str = "") -> Callable[[Object], str]:
    """Return the value at a path as text; another text if it is missing or empty."""
    read = value_at_path(path)

    def cell(obj: Object) -> str:
        value = read(obj)
        return missing if value is None else str(value) or missing

    return cell


def count_cell(path: str) -> Callable[[Object], int]:
    """Return the number of items at a path."""
    read = value_at_path(path)
    return lambda obj: len(read(obj) or ())


def number_cell(path: str) -> Callable[[Object], int]:
    """Return the number at a path, 0 if it is missing."""
    read = value_at_path(path)
    return lambda obj: read(obj) or 0


def selector_cell(path: str) -> Callable[[Object], str]:
    """Return a LabelSelector at a path as kubectl writes it."""
    read = value_at_path(path)

    return lambda obj: written_selector(read(obj)) or NONE


def true_condition(obj: Object, type_: str) -> Object | None:
    """Return the condition of a type in the status of an object, None unless it is true."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == type_ and item.get("status") == "True"), None)


def written_selector(selector: Object | None) -> str:
    """Return a LabelSelector as text, sorted by key; empty if it selects everything."""
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


def labels_cell(path: str) -> Callable[[Object], str]:
    """Return a map of labels at a path."""
    read = value_at_path(path)
    return lambda obj: ",".join(f"{key}={value}" for key, value in sorted((read(obj) or {}).items())) or NONE


def _containers(field: str) -> Callable[[Object], str]:
    read = value_at_path("spec.template.spec.containers")
    return lambda obj: ",".join(item.get(field, "") for item in read(obj) or ())


TEMPLATE: Final = (
    Column("Containers", _containers("name"), priority=1),
    Column("Images", _containers("image"), priority=1),
)
"""The columns of a pod template that only ``-o wide`` shows."""
SELECTOR: Final = Column("Selector", selector_cell("spec.selector"), priority=1)
"""The selector of a workload, which only ``-o wide`` shows."""
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 31_536_000
UNKNOWN: Final = "<unknown>"


def format_age(timestamp: str | None, moment: datetime) -> str:
    """Return how long ago a ``Time`` or ``MicroTime`` was, as kubectl prints it."""
    if not timestamp:
        return UNKNOWN
    return format_duration(int((moment - datetime.fromisoformat(timestamp)).total_seconds()))


def format_duration(seconds: int) -> str:
    """Return seconds in one or two units, such as ``5m10s`` and ``3d4h``."""
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 10 * _MINUTE:
        return _two(seconds, _MINUTE, "m", 1, "s")
    if seconds < 3 * _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < 8 * _HOUR:
        return _two(seconds, _HOUR, "h", _MINUTE, "m")
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR}h"
    if seconds < 8 * _DAY:
        return _two(seconds, _DAY, "d", _HOUR, "h")
    if seconds < 2 * _YEAR:
        return f"{seconds // _DAY}d"
    if seconds < 8 * _YEAR:
        return _two(seconds, _YEAR, "y", _DAY, "d")
    return f"{seconds // _YEAR}y"


def _two(seconds: int, unit: int, name: str, small: int, small_name: str) -> str:
    rest = seconds % unit // small
    return f"{seconds // unit}{name}" + (f"{rest}{small_name}" if rest else "")


def render_table(
    columns: Sequence[Column], rows: Sequence[tuple[Object, Object]], metadata: Object, *, version: str, include: str,
    with_columns: bool = True,
) -> Object:  # fmt: skip
    """Return a ``Table`` in a version of meta.k8s.io.

    ``rows`` has each object as it is stored, and in the request's version. ``include`` is ``None``, ``Metadata`` or
    ``Object``: what each row says about its object.
    """
    moment = datetime.now(UTC)
    # kinds without columns of their own: null for no rows
    empty: list[Object] | None = None if columns[-1].type == "date" else []
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in columns] if with_columns else None,
        "rows": [
            {
                "cells": [_cell(column, stored, moment) for column in columns],
                "object": _shown(wire, version, include),
            }
            for stored, wire in rows
        ]
        or empty,
    }


def included(query: Query) -> str:
    """Return what each row includes of its object.

    Raises:
        StatusError: 400, the requested value is not one of the choices.
    """
    wanted = query.text("includeObject")
    if wanted not in {"", "None", "Metadata", "Object"}:
        cause = f"includeObject: Invalid value: {go_quote(wanted)}: must be 'Metadata', 'Object', 'None', or empty"
        raise bad_request(f"Unable to convert to Table as requested: {cause}")
    return wanted or "Metadata"


def _definition(column: Column) -> Object:
    shown = "string" if column.type == "age" else column.type
    return {
        "name": column.name, "type": shown, "format": column.format, "description": _DESCRIPTIONS.get(column.name, ""),
        "priority": column.priority,
    }  # fmt: skip


_DESCRIPTIONS: Final = {"Age": "Time since the object was created.", "Name": "Name of the object."}


def _shown(wire: Object, version: str, include: str) -> Object | None:
    if include == "Object":
        return wire
    return None if include == "None" else partial_metadata(wire, version)


def partial_metadata(wire: Object, version: str = "v1") -> Object:
    """Return ``PartialObjectMetadata`` of an object."""
    metadata = wire.get("metadata", {})
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": metadata}


def _cell(column: Column, obj: Object, moment: datetime) -> Any:
    if column.cell is None:
        return format_age(obj["metadata"].get("creationTimestamp"), moment)
    value = column.cell(obj)
    return format_age(value, moment) if column.type == "age" else value
