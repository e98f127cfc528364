"""Opaque JSON is stored unchanged."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.apiserver.server import ApiServer
from dra_kit.kubernetes.values.json import RawObject, raw_object_texts

PATH = "/apis/resource.k8s.io/v1/deviceclasses"
BODY = '{"metadata":{"name":"c"},"spec":{"config":[{"opaque":{"driver":"d","parameters":%s}}]}}'

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\{}[],: é', max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


def objects(value: Any, path: str = "") -> list[tuple[str, Any]]:
    found = [(path, value)] if isinstance(value, dict) else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += objects(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            found += objects(item, f"{path}[{i}]")
    return found


@given(st.dictionaries(st.sampled_from("abc"), values, max_size=3), st.sampled_from([None, 1]), st.booleans())
@settings(deadline=None)
def test_the_text_of_each_object_is_found(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    found = raw_object_texts(json.dumps(value, indent=indent, ensure_ascii=ascii_only))

    expected = dict(objects(value))  # keys with dots and brackets may make two paths the same
    assert found.keys() == expected.keys()
    if len(expected) == len(objects(value)):
        assert {path: json.loads(text) for path, text in found.items()} == expected


def test_equal_objects_of_different_texts_are_different() -> None:
    assert RawObject({"a": 1}, '{"a":1}') != RawObject({"a": 1}, '{"a": 1}')
    assert RawObject({"a": 1}, '{"a":1}') == RawObject({"a": 1}, '{"a":1}')
    assert RawObject({"a": 1}, '{"a": 1}') == {"a": 1}


async def test_another_spelling_is_a_change(server: ApiServer) -> None:
    headers = {"Content-Type": "application/json"}
    versions: list[str] = []
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        for parameters in ('{"n": 1.0}', '{"n": 1.0}', '{"n": 1.00}'):
            body = BODY % parameters
            request = session.put(f"{PATH}/c", data=body) if versions else session.post(PATH, data=body)
            async with request as answer:
                versions.append((await answer.json())["metadata"]["resourceVersion"])

    assert versions[0] == versions[1] != versions[2]
