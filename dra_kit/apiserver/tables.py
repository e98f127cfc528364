"""Tables and partial metadata: what ``kubectl get`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from dra_kit.apiserver.kinds.kind import Column, Kind, format_age
from dra_kit.apiserver.requests import Query, ResponseFormat
from dra_kit.apiserver.status_errors import StatusError, bad_request
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.values.json import Object


def render_table(
    kind: Kind, rows: Sequence[tuple[Object, Object]], metadata: Object, *, version: str, include: str,
    with_columns: bool = True,
) -> Object:  # fmt: skip
    """Return a ``Table`` in a version of meta.k8s.io.

    ``rows`` has each object as it is stored, and in the request's version. ``include`` is ``None``, ``Metadata`` or
    ``Object``: what each row says about its object.
    """
    moment = datetime.now(UTC)
    # kinds without columns of their own: null for no rows
    empty: list[Object] | None = None if kind.columns[-1].type == "date" else []
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in kind.columns] if with_columns else None,
        "rows": [
            {
                "cells": [_cell(column, stored, moment) for column in kind.columns],
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


def not_of_form(form: ResponseFormat, kind: Kind) -> StatusError:
    """Return 406: the metadata of a list are requested where there is one object, or the other way round."""
    group = kind.group.partition(".")[0] or "core"
    is_list = not form.list
    go_type = f"*{group}.{kind.list_kind or kind.kind + 'List' if is_list else kind.kind}"
    asked = form.kind + ("List" if form.list else "")
    what = "a list" if is_list else "not a list"
    return StatusError(406, "NotAcceptable", f"you requested {asked}, but the requested object is {what} ({go_type})")


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
