"""Objects that are nested too deeply to be read: the others are."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.client.informer import Informer
from dra_kit.client.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.client.transport import UNREADABLE
from dra_kit.errors import KubeError
from dra_kit.kubernetes.values.json import is_deeper, without_deeper
from tests.unit.client.wire import answer, served, stream

MOST = 5_000  # levels of 10 KiB, which the API server stores
VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a[]{}",:\\', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a{["\\', max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


def claim(name: str, version: int = 1, levels: int = 1) -> str:
    """The JSON of a claim whose parameters and data have so many levels."""
    metadata = json.dumps({"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version)})
    deep = f'{{"a": {"[" * levels}{"]" * levels}}}'
    config = f'[{{"opaque": {{"driver": "d", "parameters": {deep}}}}}]'
    allocation = f'{{"devices": {{"results": [{{"device": "one"}}], "config": {config}}}}}'
    status = f'{{"allocation": {allocation}, "devices": [{{"driver": "d", "data": {deep}}}]}}'
    return f'{{"metadata": {metadata}, "spec": {{"devices": {{"config": {config}}}}}, "status": {status}}}'


def listed(*items: str) -> str:
    return f'{{"metadata": {{"resourceVersion": "5"}}, "items": [{", ".join(items)}]}}'


def change(kind: str, item: str) -> bytes:
    return f'{{"type": "{kind}", "object": {item}}}\n'.encode()


@pytest.mark.parametrize("levels", [300, 900, MOST])
async def test_a_list_has_all_but_opaque_parts_that_cannot_be_read_and_says_so(
    caplog: pytest.LogCaptureFixture, levels: int
) -> None:
    async with (
        served(answer(listed(claim("a"), claim("b", levels=levels), claim("c")))) as wire,
        wire.client() as client,
    ):
        found = await client.list(RESOURCE_CLAIMS)

    assert [item["metadata"]["name"] for item in found.items] == ["a", "b", "c"]
    assert found.resource_version == "5"
    replaced = {"opaque": {"driver": "d", "parameters": UNREADABLE}}
    assert found.items[1]["spec"] == {"devices": {"config": [replaced]}}
    assert found.items[1]["status"] == {
        "allocation": {"devices": {"results": [{"device": "one"}], "config": [replaced]}},
        "devices": [{"driver": "d", "data": UNREADABLE}],
    }
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (record.__dict__["kind"], record.__dict__["object"]) == ("ResourceClaim", "default/b")


async def test_a_list_leaves_out_objects_that_are_deep_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    odd = f'{{"metadata": {{"name": "odd"}}, "spec": {"[" * 300}{"]" * 300}}}'
    async with served(answer(listed(claim("a"), odd))) as wire, wire.client() as client:
        found = await client.list(RESOURCE_CLAIMS)

    assert [item["metadata"]["name"] for item in found.items] == ["a"]
    assert "an object is left out" in caplog.text


async def test_usual_nesting_is_read() -> None:
    async with served(answer(listed(claim("a", levels=200)))) as wire, wire.client() as client:
        assert len((await client.list(RESOURCE_CLAIMS)).items) == 1


async def test_an_informer_sees_deep_objects_and_the_others() -> None:
    events = (
        change("ADDED", claim("deep", 6, MOST)),
        change("MODIFIED", claim("a", 7, MOST)),
        change("ADDED", claim("b", 8)),
        change("DELETED", claim("a", 9, MOST)),
    )
    seen: list[tuple[str, str, str]] = []
    async with served(answer(listed(claim("a"))), stream(*events, hang=True)) as wire, wire.client() as client:
        async for found in Informer(client, RESOURCE_CLAIMS).changes():
            metadata = found.object["metadata"]
            seen.append((found.type, metadata["name"], metadata["resourceVersion"]))
            if found.type == "DELETED":
                break

    assert seen == [
        ("ADDED", "a", "1"), ("ADDED", "deep", "6"), ("MODIFIED", "a", "7"), ("ADDED", "b", "8"), ("DELETED", "a", "9"),
    ]  # fmt: skip


async def test_a_claim_that_becomes_deep_is_not_gone_after_the_next_list() -> None:
    gone = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}\n'
    answers = (
        answer(listed(claim("a"))),
        stream(change("MODIFIED", claim("a", 6, MOST)), gone),
        answer(listed(claim("a", 6, MOST), claim("b", 7))),
    )
    seen: list[tuple[str, str]] = []
    async with served(*answers) as wire, wire.client() as client:
        async for found in Informer(client, RESOURCE_CLAIMS).changes():
            seen.append((found.type, found.object["metadata"]["name"]))
            if found.object["metadata"]["name"] == "b":
                break

    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b")]


async def test_one_object_that_cannot_be_read_is_an_error_in_words() -> None:
    async with served(answer(claim("a", levels=MOST))) as wire, wire.client() as client:
        with pytest.raises(KubeError, match="nested too deeply to be read; write opaque parameters"):
            await client.get(RESOURCE_CLAIMS, "a", "default")


async def test_resources_without_opaque_parts_are_not_searched() -> None:
    async with served(answer(listed(claim("a", levels=300)))) as wire, wire.client() as client:
        assert len((await client.list(RESOURCE_SLICES)).items) == 1


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def cut(value: Any, levels: int) -> Any:
    if isinstance(value, dict | list) and not levels:
        return "…"
    if isinstance(value, dict):
        return {key: cut(item, levels - 1) for key, item in value.items()}
    return [cut(item, levels - 1) for item in value] if isinstance(value, list) else value


@given(VALUES, st.integers(0, 5))
def test_what_is_below_a_level_is_replaced_and_nothing_else(value: Any, levels: int) -> None:
    content = json.dumps(value).encode()

    assert is_deeper(content, levels) == (depth(value) > levels)
    assert json.loads(without_deeper(content, levels, "…")) == cut(value, levels)
