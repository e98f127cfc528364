"""Whatever a manifest holds, decoding gives an equal model or says what is wrong, with places that can be found."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import dra_kit as dra
from dra_kit.author.config import ConfigDecoder
from dra_kit.kubernetes.values.json import loads


class Inner(BaseModel):
    size: int
    note: str | None = None


class Other(BaseModel):
    size: str
    items: list[Inner] = []


class Flat(dra.OpaqueConfig, api_version="property.example/v1"):
    on: bool = False
    count: int = Field(default=0, ge=0, lt=2**31)
    ratio: float = 0.5
    mode: Literal["a", "b"] = "a"
    name: str = Field(default="", alias="theName", max_length=5)


class Required(dra.OpaqueConfig, api_version="property.example/v1"):
    inner: Inner
    others: list[Inner] = []


class Nested(dra.OpaqueConfig, api_version="property.example/v1"):
    by_name: dict[str, Inner] = {}
    matrix: list[list[int]] = []
    either: Inner | Other | list[Inner] | int | None = None


MODELS: list[type[dra.OpaqueConfig]] = [Flat, Required, Nested]
KEYS = st.sampled_from(
    ["on", "count", "ratio", "mode", "theName", "name", "inner", "others", "by_name", "matrix", "either", "size",
     "note", "items", "Inner", "a.b", "x", ""]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["a", "b", "1", "é"])
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=15
)
INNERS = st.fixed_dictionaries({"size": st.integers()}, optional={"note": st.none() | st.text(max_size=3)})
LIKELY: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "Flat": st.fixed_dictionaries(
        {},
        optional={
            "on": st.booleans(),
            "count": st.integers(-1, 5),
            "ratio": st.floats(0, 1),
            "mode": st.sampled_from("abc"),
            "theName": st.text(max_size=6),
        },
    ),
    "Required": st.fixed_dictionaries({"inner": INNERS}, optional={"others": st.lists(INNERS, max_size=2)}),
    "Nested": st.fixed_dictionaries(
        {},
        optional={
            "by_name": st.dictionaries(st.text(max_size=3), INNERS, max_size=2),
            "matrix": st.lists(st.lists(st.integers(), max_size=2), max_size=2),
            "either": INNERS | st.lists(INNERS, max_size=2) | st.integers(),
        },
    ),
}
STEP = re.compile(r'(?:^|\.)(?P<key>[A-Za-z_][A-Za-z0-9_-]*)|\[(?P<index>\d+)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]')


def steps(path: str) -> list[str | int]:
    found: list[str | int] = []
    position = 0
    while position < len(path):
        match = STEP.match(path, position)
        assert match is not None, path
        if match["index"] is not None:
            found.append(int(match["index"]))
        else:
            found.append(match["key"] if match["key"] is not None else json.loads(match["quoted"]))
        position = match.end()
    return found


def inside(value: Any, part: str | int) -> bool:
    return (isinstance(value, dict) and part in value) or (
        isinstance(value, list) and isinstance(part, int) and part < len(value)
    )


def leads_somewhere(path: str, value: Any, *, missing: bool) -> bool:
    parts = steps(path)
    for number, part in enumerate(parts):
        if not inside(value, part):
            return missing and number == len(parts) - 1 and isinstance(value, dict)
        value = value[part]
    return not missing


def decoded(parameters: Any) -> dra.OpaqueConfig | dra.InvalidConfig:
    try:
        return ConfigDecoder(MODELS).decode(parameters)
    except dra.InvalidConfig as error:
        return error


@st.composite
def models_and_bodies(draw: st.DrawFn) -> tuple[type[dra.OpaqueConfig], dict[str, Any]]:
    model = draw(st.sampled_from(MODELS))
    return model, draw(LIKELY[model.__name__] | st.dictionaries(KEYS, JSON, max_size=5))


@given(models_and_bodies())
@example((Nested, {"either": {"Inner": None}}))  # a key that is named as a member of the union
@example((Nested, {"either": {"Inner": {"size": "x"}, "size": []}}))
def test_decoding_returns_an_equal_model_or_existing_paths(
    drawn: tuple[type[dra.OpaqueConfig], dict[str, Any]],
) -> None:
    model, body = drawn
    parameters = {"apiVersion": "property.example/v1", "kind": model.__name__, **body}
    result = decoded(parameters)
    if isinstance(result, dra.OpaqueConfig):
        assert type(result) is model
        given_back = result.model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert given_back == json.loads(json.dumps(body))
    else:
        assert result.problems
        assert "\n" not in str(result)
        for path, text in result.problems:
            assert leads_somewhere(path, parameters, missing=text == "is required"), (path, text)


@given(JSON)
def test_any_parameters_raise_only_invalid_config(parameters: Any) -> None:
    result = decoded(parameters)
    assert isinstance(result, dra.InvalidConfig)
    assert result.problems


@given(st.sampled_from(sorted(LIKELY)).flatmap(lambda name: LIKELY[name].map(lambda body: (name, body))), st.data())
def test_a_duplicate_key_is_rejected_at_any_depth(drawn: tuple[str, Any], data: st.DataObject) -> None:
    kind, body = drawn
    parameters = {"apiVersion": "property.example/v1", "kind": kind, **body}
    key = data.draw(st.sampled_from(sorted(parameters)))
    text = f"{json.dumps(parameters)[:-1]}, {json.dumps(key)}: {json.dumps(parameters[key])}}}"
    result = decoded(loads(text))
    assert isinstance(result, dra.InvalidConfig)
    assert (key, "occurs twice in the same object; remove one") in result.problems
