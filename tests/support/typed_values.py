"""Random JSON of the types in the schema table."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dra_kit.kubernetes.release import NEWEST
from dra_kit.kubernetes.resource.schema.types import LIST, MAP, item_type, struct

PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text("ab-", max_size=3),
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.integers(-5, 5),
    "bytes": st.sampled_from(["", "YQ=="]),
    "Time": st.just("2026-01-02T03:04:05Z"),
    "MicroTime": st.just("2026-01-02T03:04:05.000006Z"),
    "Quantity": st.sampled_from(["0", "1Gi", "500m"]),
    "IntOrString": st.integers(0, 9) | st.just("25%"),
}


@st.composite
def values(draw: st.DrawFn, type_name: str, depth: int = 3) -> Any:
    """JSON of a type, with nulls and empty parts."""
    if type_name in PLAIN:
        return draw(PLAIN[type_name])
    if type_name.startswith(LIST):
        return draw(st.lists(values(item_type(type_name), depth - 1), max_size=2)) if depth > 0 else []
    if type_name.startswith(MAP):
        below = values(item_type(type_name), depth - 1)
        return draw(st.dictionaries(st.sampled_from("xy"), below, max_size=2)) if depth > 0 else {}
    known = struct(type_name, NEWEST)
    if known is None:
        return {}
    chosen = draw(st.lists(st.sampled_from(sorted(known.fields) or ["none"]), max_size=4, unique=True))
    return {
        name: draw(st.none() | values(known.fields[name].type, depth - 1))
        for name in chosen
        if name in known.fields and depth > 0
    }
