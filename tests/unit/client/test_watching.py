from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.client.api import split_lines
from dra_kit.client.resources import NODES, PODS
from dra_kit.client.transport import ClientRequest
from dra_kit.errors import Gone, KubeError, Unavailable
from tests.unit.client.wire import answer, event, served, status, stream

CALL = ClientRequest.of_path("/x")


async def chunked(text: bytes, cuts: Sequence[int]) -> AsyncIterator[bytes]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(places):
        yield text[begin:end]


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.lists(st.integers(0, 1000)))
async def test_lines_do_not_depend_on_chunks(sent: list[bytes], cuts: list[int]) -> None:
    text = b"".join(line + b"\n" for line in sent)
    read = [line async for line in split_lines(CALL, chunked(text, cuts))]
    assert read == [line for line in sent if line.strip()]


@given(st.binary(min_size=1, max_size=20).filter(lambda line: b"\n" not in line and line.strip()))
async def test_an_unfinished_line_is_never_an_event(rest: bytes) -> None:
    read = split_lines(CALL, chunked(b"{}\n" + rest, []))
    assert await anext(read) == b"{}"
    with pytest.raises(Unavailable, match="in the middle of an event"):
        await anext(read)


async def test_watch_yields_changes_and_bookmarks_until_the_server_ends_it() -> None:
    pod = {"metadata": {"name": "a", "resourceVersion": "8"}}
    chunks = event("ADDED", pod), event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}), event("DELETED", pod)
    async with served(stream(*chunks)) as wire, wire.client() as client:
        seen = [
            change
            async for change in client.watch(PODS, "default", field_selector="spec.nodeName=n", resource_version="7")
        ]
    assert [change.type for change in seen] == ["ADDED", "BOOKMARK", "DELETED"]
    assert seen[0].object == pod
    query = wire.queries[0]
    assert 240 <= int(query.pop("timeoutSeconds")) <= 300  # clients that began together do not return together
    assert query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "fieldSelector": "spec.nodeName=n",
    }


async def test_short_watch_lasts_as_long_as_asked() -> None:
    async with served(stream()) as wire, wire.client() as client:
        assert [change async for change in client.watch(PODS, resource_version="7", seconds=2)] == []
    assert wire.queries[0]["timeoutSeconds"] == "2"


async def test_watch_yields_a_change_before_the_next_one_comes() -> None:
    async with served(stream(event("ADDED", {}), hang=True)) as wire, wire.client() as client:
        changes = client.watch(PODS, resource_version="7")
        assert (await anext(changes)).type == "ADDED"
        await changes.aclose()


async def test_watch_reads_events_larger_than_any_buffer() -> None:
    big = {"metadata": {"name": "x" * 3_000_000}}
    async with served(stream(event("ADDED", big))) as wire, wire.client() as client:
        assert [change.object async for change in client.watch(PODS, resource_version="7")] == [big]


@pytest.mark.parametrize("as_event", [True, False], ids=["event", "status"])
@pytest.mark.parametrize(("code", "error"), [(410, Gone), (500, Unavailable)])
async def test_a_rejected_watch_raises_the_error_of_its_code(as_event: bool, code: int, error: type[KubeError]) -> None:
    body = {"kind": "Status", "code": code, "reason": "Why", "message": "broken"}
    refusal = stream(event("ERROR", body)) if as_event else status(code, "Why", "broken")
    async with served(refusal) as wire, wire.client() as client:
        with pytest.raises(error, match="WATCH pods: broken"):
            await anext(client.watch(PODS, resource_version="1"))


@pytest.mark.parametrize("cut", [False, True], ids=["ended", "broken"])
async def test_a_watch_cut_within_a_line_is_unavailable(cut: bool) -> None:
    async with served(stream(event("ADDED", {}), event("ADDED", {})[:10], cut=cut)) as wire, wire.client() as client:
        changes = client.watch(PODS, resource_version="1")
        assert (await anext(changes)).type == "ADDED"
        with pytest.raises(Unavailable):
            await anext(changes)


@pytest.mark.parametrize("line", [b"true\n", b"{}\n", b"{\n", b'{"type": "NEW", "object": {}}\n'])
async def test_invalid_watch_line_raises_kube_error(line: bytes) -> None:
    async with served(stream(line)) as wire, wire.client() as client:
        with pytest.raises(KubeError, match="WATCH pods"):
            await anext(client.watch(PODS, resource_version="1"))


async def test_watches_do_not_take_connections_from_requests() -> None:
    async with served(*[stream(event("ADDED", {}), hang=True)] * 20, answer({"n": 1})) as wire, wire.client() as client:
        watches = [client.watch(PODS, resource_version="1") for _ in range(20)]
        await asyncio.gather(*(anext(watch) for watch in watches))
        assert await client.get(NODES, "node-1") == {"n": 1}
        for watch in watches:
            await watch.aclose()
