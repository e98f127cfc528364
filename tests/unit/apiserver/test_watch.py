"""Watches: what they replay, what they select, how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.apiserver.api import ALL_VERSIONS, KINDS
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.selectors import reader
from dra_kit.apiserver.server import ApiServer
from dra_kit.apiserver.storage import INDEXED, Storage, StorageChange
from dra_kit.apiserver.verbs.read import PENDING
from dra_kit.client.api import Client, WatchEvent
from dra_kit.client.resources import CONFIG_MAPS, PODS, RESOURCE_SLICES
from dra_kit.errors import Gone
from dra_kit.kubernetes.release import Release
from tests.support.api import eventually
from tests.unit.apiserver.conftest import Http, config_map, pod


async def take(events: AsyncGenerator[WatchEvent, None], count: int) -> list[tuple[str, str]]:
    """Types and names of the next events, bookmarks left out."""
    found: list[tuple[str, str]] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            event = await anext(events)
            if event.type != "BOOKMARK":
                found.append((event.type, event.object["metadata"]["name"]))
    return found


async def test_watch_continues_from_a_list(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("before"))
    version = (await client.list(CONFIG_MAPS)).resource_version
    await client.create(CONFIG_MAPS, config_map("between"))

    async with aclosing(client.watch(CONFIG_MAPS, resource_version=version)) as events:
        assert await take(events, 1) == [("ADDED", "between")]
        await client.patch(CONFIG_MAPS, "before", {"data": {"a": "b"}}, "default")
        await client.delete(CONFIG_MAPS, "between", "default")
        assert await take(events, 2) == [("MODIFIED", "before"), ("DELETED", "between")]


PATH = "/api/v1/namespaces/default/configmaps"


async def test_watch_from_a_future_version_shows_only_later_changes(server: ApiServer, client: Client) -> None:
    version = int((await client.list(CONFIG_MAPS)).resource_version) + 2

    async with aclosing(client.watch(CONFIG_MAPS, resource_version=str(version))) as events:
        first = asyncio.create_task(take(events, 1))
        await eventually(lambda: server.requests["tests/1", "watch", "configmaps"])
        for name in ("one", "two", "three"):
            await client.create(CONFIG_MAPS, config_map(name))
        assert await first == [("ADDED", "three")]


@pytest.mark.parametrize("path", ["", "/settings"])
async def test_read_at_a_future_version_is_rejected(http: Http, client: Client, path: str) -> None:
    await client.create(CONFIG_MAPS, config_map())

    status, answer, _ = await http("GET", f"{PATH}{path}?resourceVersion=999")

    assert (status, answer["reason"]) == (504, "Timeout")


async def test_watch_with_initial_events_rejects_a_continue_token(http: Http) -> None:
    status, answer, _ = await http("GET", f"{PATH}?watch=1&continue=abc")

    assert (status, answer["details"]["causes"][0]["field"]) == (422, "resourceVersionMatch")


async def test_watch_without_a_version_starts_with_the_existing_objects(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("there"))

    async with aclosing(client.watch(CONFIG_MAPS, "default", resource_version="")) as events:
        assert await take(events, 1) == [("ADDED", "there")]


async def test_objects_enter_and_leave_the_view_of_a_selector(client: Client) -> None:
    version = (await client.list(PODS)).resource_version
    await client.create(PODS, pod())
    selected = client.watch(PODS, resource_version=version, label_selector="seen=yes")

    async with aclosing(selected) as events:
        for value in ("yes", "no", "yes"):
            await client.patch(PODS, "pod-1", {"metadata": {"labels": {"seen": value}}}, "default")
        assert await take(events, 3) == [("ADDED", "pod-1"), ("DELETED", "pod-1"), ("ADDED", "pod-1")]


async def test_compacted_version_is_gone(server: ApiServer, client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map())
    server.api.storage.compact()

    async with aclosing(client.watch(CONFIG_MAPS, resource_version="1")) as events:
        with pytest.raises(Gone):
            await anext(events)


async def test_initial_events_end_with_a_bookmark(http: Http, client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("there"))
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"

    lines = await http.lines(f"/api/v1/namespaces/default/configmaps?{query}")

    assert [line["type"] for line in lines] == ["ADDED", "BOOKMARK"]
    assert lines[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_shows_objects_in_its_own_version(client: Client, http: Http) -> None:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {"driver": "d", "pool": {"name": "p", "resourceSliceCount": 1}, "nodeName": "n",
                 "devices": [{"name": "gpu-0", "allowMultipleAllocations": True}]},
    }  # fmt: skip
    await client.create(RESOURCE_SLICES, body)

    [line] = await http.lines("/apis/resource.k8s.io/v1beta1/resourceslices?watch=1&timeoutSeconds=1")

    assert line["object"]["spec"]["devices"] == [{"name": "gpu-0", "basic": {"allowMultipleAllocations": True}}]


def listeners(server: ApiServer) -> int:
    return sum(map(len, server.api.storage._listeners.values()))


async def test_a_closed_watch_leaves_no_listener(server: ApiServer, client: Client) -> None:
    before = listeners(server)
    events = client.watch(CONFIG_MAPS, resource_version="")
    opening = asyncio.create_task(anext(events))
    await eventually(lambda: listeners(server) > before)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await eventually(lambda: listeners(server) <= before)


async def test_a_watch_that_falls_behind_ends(server: ApiServer, client: Client, http: Http) -> None:
    storage = server.api.storage
    created = await client.create(CONFIG_MAPS, config_map("often"))
    version = created["metadata"]["resourceVersion"]
    idle = listeners(server)
    watching = asyncio.create_task(http.lines(f"{PATH}?watch=1&resourceVersion={version}"))
    await eventually(lambda: listeners(server) > idle)

    for number in range(PENDING + 1):
        storage.update("configmaps", "default/often", config_map("often", {"number": str(number)}, uid="often"))

    assert listeners(server) == idle, "what it has not sent is forgotten"
    async with asyncio.timeout(30):
        assert await watching == []
    listed = await client.list(CONFIG_MAPS)
    assert listed.items[-1]["data"] == {"number": str(PENDING)}


async def test_changes_that_a_watch_does_not_select_are_not_kept_for_it(server: ApiServer, client: Client) -> None:
    """In a cluster of many nodes, nearly all changes are for other watches."""
    storage, idle = server.api.storage, listeners(server)
    storage.create("configmaps", "default/often", config_map("often", uid="often"))
    version = (await client.list(CONFIG_MAPS)).resource_version
    events = client.watch(CONFIG_MAPS, field_selector="metadata.name=seldom", resource_version=version)
    async with aclosing(events):
        first = asyncio.create_task(take(events, 1))
        await eventually(lambda: listeners(server) > idle)
        for number in range(PENDING + 1):
            storage.update("configmaps", "default/often", config_map("often", {"number": str(number)}, uid="often"))
        assert listeners(server) > idle, "the watch goes on"
        storage.create("configmaps", "default/seldom", config_map("seldom", uid="seldom"))
        assert await first == [("ADDED", "seldom")]


def named(name: str, node: str, value: int = 0) -> dict[str, Any]:
    spec = {"nodeName": node} if node else {}
    return {"metadata": {"name": name}, "spec": spec, "value": value}


nodes = st.sampled_from(["", "node-1", "node-2"])


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["put", "delete"]), nodes), max_size=30))
def test_the_index_finds_what_a_look_at_each_object_finds(changes: list[tuple[str, str, str]]) -> None:
    """The changes that a listener of one node gets are those of objects that are its own, or were."""
    storage = Storage()
    heard: list[tuple[str, str]] = []
    everything: list[StorageChange] = []
    end = storage.listen("things", lambda change: heard.append((change.type, change.key)), indexed="node-1")
    storage.listen("things", everything.append)
    for number, (key, action, node) in enumerate(changes):
        if action == "put":
            write = storage.create if storage.get("things", key) is None else storage.update
            write("things", key, named(key, node, number))
        elif storage.get("things", key) is not None:
            storage.delete("things", key)
        for value in ("", "node-1", "node-2"):
            found = [key for key, _ in storage.items_indexed("things", value)]
            assert found == [
                key for key, item in storage.items("things") if item.object["spec"].get("nodeName", "") == value
            ]
    concerned = [
        (change.type, change.key)
        for change in everything
        if any(item and item.object["spec"].get("nodeName") == "node-1" for item in (change.stored, change.previous))
    ]
    assert heard == concerned
    end()
    storage.create("things", "z", named("z", "node-1"))
    assert heard == concerned


@pytest.mark.parametrize("value", [None, "", "a", True, False, 0, 7])
def test_the_index_reads_a_value_as_field_selectors_do(value: object) -> None:
    storage, item = Storage(), {"metadata": {"name": "a"}, "spec": {"nodeName": value}}
    storage.create("things", "a", item)
    assert [key for key, _ in storage.items_indexed("things", reader(INDEXED)(item))] == ["a"]


def test_a_watch_of_one_node_costs_nothing_when_others_change() -> None:
    """As many calls as there are watches that want the change: their number, not that of all nodes, decides."""
    storage = Storage()
    calls = 0

    def heard(_: StorageChange) -> None:
        nonlocal calls
        calls += 1

    for number in range(1000):
        storage.listen("things", heard, indexed=f"node-{number}")
    for number in range(10):
        storage.create("things", f"of-{number}", named(f"of-{number}", f"node-{number}"))
    assert calls == 10


writes = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "delete"])), max_size=25)


@given(writes, st.data())
def test_list_at_any_version_plus_later_changes_gives_the_current_state(
    changes: list[tuple[str, str]], data: st.DataObject
) -> None:
    storage = Storage()
    moments: list[dict[str, int]] = [{}]
    start = storage.revision
    for i, (key, action) in enumerate(changes):
        obj = {"metadata": {"name": key}, "value": i}
        if storage.get("things", key) is None:
            storage.create("things", key, obj)
        elif action == "put":
            storage.update("things", key, obj)
        else:
            storage.delete("things", key)
        moments.append({name: stored.object["value"] for name, stored in storage.items("things")})
    chosen = data.draw(st.integers(0, len(moments) - 1))

    past = {key: stored.object["value"] for key, stored in storage.items_at(start + chosen, "things")}
    assert past == moments[chosen]
    for change in storage.changes_since(start + chosen, "things"):
        if change.type == "DELETED":
            del past[change.key]
        else:
            past[change.key] = change.stored.object["value"]
    assert past == moments[-1]


@pytest.mark.parametrize("form", ["PartialObjectMetadata", "Table"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.full_name)
async def test_bookmark_has_the_form_that_the_client_asked_for(kind: Kind, form: str) -> None:
    """As on kube-apiserver 1.37.1; informers of metadata wait for this bookmark."""
    version = next(iter(kind.types))
    path = f"/apis/{kind.group}/{version}/{kind.plural}" if kind.group else f"/api/{version}/{kind.plural}"
    query = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    accept = f"application/json;as={form};v=v1;g=meta.k8s.io"
    async with (
        ApiServer(release=Release.alpha(), runtime_config=ALL_VERSIONS) as server,
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}{path}?{query}", headers={"Accept": accept}) as answer,
    ):
        async for line in answer.content:
            event = json.loads(line)
            if event["type"] == "BOOKMARK":
                break

    described = event["object"]["rows"][0]["object"] if form == "Table" else event["object"]
    assert (event["object"]["kind"], event["object"]["apiVersion"]) == (form, "meta.k8s.io/v1")
    assert described["kind"] == "PartialObjectMetadata"
    assert described["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
