"""The server of the page: who may ask, and the stream of records."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.sandbox.page.history import PageHistory
from dra_kit.sandbox.page.server import PageServer
from tests.support.page_world import PageWorld, gpu_cluster

SECRETS = ("api/records", "api/events", "api/explanation", "api/explanation.html", "api/output")


class Visitor:
    """A client of a page, which has its token."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.base, _, token = url.partition("#token=")
        self.token = token
        self._http = http

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self._http.get(f"{self.base}{path}", headers=headers) as response:
            return response.status, await response.text()

    async def ask(self, path: str, **headers: str) -> tuple[int, str]:
        return await self.get(path, Authorization=f"Bearer {self.token}", **headers)

    @asynccontextmanager
    async def stream(self, query: str = "", **headers: str) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
        """The events of the stream."""
        headers = {"Authorization": f"Bearer {self.token}", **headers}
        async with self._http.get(f"{self.base}api/events{query}", headers=headers) as response:
            yield _events(response)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
    event: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif event:
            yield event
            event = {}


@asynccontextmanager
async def visiting(history: PageHistory) -> AsyncIterator[Visitor]:
    async with PageServer(history) as server, aiohttp.ClientSession() as http:
        yield Visitor(http, server.url)


# --- access


async def test_what_a_sandbox_knows_needs_the_token() -> None:
    async with visiting(gpu_cluster().history) as visitor:
        for path in SECRETS:
            assert (await visitor.get(path))[0] == 401
            assert (await visitor.get(path, Authorization="Bearer guess"))[0] == 401
            assert (await visitor.get(f"{path}?token={visitor.token}"))[0] == 401
        assert (await visitor.ask("api/records"))[0] == 200


async def test_other_names_of_the_server_are_refused() -> None:
    """A page whose DNS name now leads here asks for its own name (DNS rebinding)."""
    async with visiting(gpu_cluster().history) as visitor:
        for path in ("", "page.css", "api/records"):
            status, text = await visitor.ask(path, Host="evil.example")
            assert (status, text) == (403, "this server has another name: use the URL that dra-kit printed\n")


async def test_pages_of_other_sites_are_refused() -> None:
    async with visiting(gpu_cluster().history) as visitor:
        assert (await visitor.ask("api/records", Origin="http://evil.example"))[0] == 403
        assert (await visitor.ask("api/records", Origin="null"))[0] == 403
        assert (await visitor.ask("api/records", Origin=visitor.base.rstrip("/")))[0] == 200


async def test_only_reading_is_served() -> None:
    async with visiting(gpu_cluster().history) as visitor, aiohttp.ClientSession() as http:
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            async with http.request(method, f"{visitor.base}api/records") as response:
                assert response.status == 405


async def test_only_files_of_the_page_are_served() -> None:
    async with visiting(gpu_cluster().history) as visitor:
        assert "<!doctype html>" in (await visitor.get(""))[1]
        assert "import" in (await visitor.get("main.js"))[1]
        for path in ("server.py", "../server.py", "%2e%2e/server.py", "assets/main.js", "main.js/", "etc/passwd"):
            assert (await visitor.get(path))[0] == 404


async def test_no_page_may_run_other_scripts_or_embed_this_one() -> None:
    async with visiting(gpu_cluster().history) as visitor, aiohttp.ClientSession() as http:
        for path in ("", "main.js", "api/records"):
            async with http.get(f"{visitor.base}{path}") as response:
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cache-Control"] == "no-store"


async def test_the_token_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with visiting(gpu_cluster().history) as visitor:
        await visitor.ask("api/records")
        await visitor.get(f"api/records?token={visitor.token}")
        assert visitor.token not in caplog.text


async def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"--ui-port {port}: Address already in use; use another port"):
            async with PageServer(PageHistory(UNMODIFIED), port=port):
                pass


# --- records


async def test_all_records_come_first() -> None:
    world = gpu_cluster()
    async with visiting(world.history) as visitor:
        found = json.loads((await visitor.ask("api/records"))[1])
        assert [record["number"] for record in found["records"]] == numbers(world.history)
        assert (found["mode"], found["generation"], found["last"]) == ("live", 0, world.history.last)


def numbers(history: PageHistory) -> list[int]:
    return [json.loads(line)["number"] for line in history.lines(0, most=1 << 62)[0]]


async def test_the_stream_goes_on_where_the_client_was() -> None:
    world = gpu_cluster()
    async with visiting(world.history) as visitor:
        for query, header in (("?since={}", ""), ("?since=1", "{}")):
            last = world.history.last
            headers = {"Last-Event-ID": header.format(last - 2)} if header else {}
            async with visitor.stream(query.format(last - 2), **headers) as events:
                first = json.loads((await anext(events))["data"])
                assert first["number"] == last - 1
                await anext(events)
                place = await anext(events)
                assert (place["event"], place["id"]) == ("place", str(last))
                world.pod(f"new-{header}")
                assert json.loads((await anext(events))["data"])["number"] == world.history.last


async def test_the_stream_ends_with_the_sandbox() -> None:
    world = gpu_cluster()
    async with visiting(world.history) as visitor:
        async with visitor.stream(f"?since={world.history.last}") as events:
            world.pod("last")
            world.history.close()
            found = [event async for event in events]
        assert [event.get("event", "record") for event in found] == ["record", "place", "end"]


async def test_clients_start_again_after_older_records_were_dropped() -> None:
    world = PageWorld(PageHistory(UNMODIFIED, limit=20_000))
    async with visiting(world.history) as visitor:
        async with visitor.stream() as events:
            for number in range(200):
                world.pod(f"pod-{number % 3}", node=f"node-{number}")
            found = [event["event"] async for event in events if event.get("event") in {"reset", "end"}]
        assert found == ["reset"]
        assert json.loads((await visitor.ask("api/records"))[1])["generation"] == world.history.generation


async def test_a_client_that_does_not_read_costs_nothing() -> None:
    world = PageWorld()
    async with visiting(world.history) as visitor:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(visitor.base.split(":")[2].strip("/")))
        host = visitor.base.removeprefix("http://").strip("/")
        writer.write(
            f"GET /api/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {visitor.token}\r\n\r\n".encode()
        )
        await reader.readline()
        for number in range(2_000):
            world.pod("pod", node=f"node-{number}")
            if number % 500 == 0:
                await asyncio.sleep(0)
        assert (await visitor.ask("api/records"))[0] == 200  # others are served
        writer.close()


# --- explanations and output


async def test_an_explanation_has_a_verdict_and_yaml_to_copy() -> None:
    world = gpu_cluster()
    async with visiting(world.history) as visitor:
        status, text = await visitor.ask("api/explanation?uid=pod-train-9")
        found: Any = json.loads(text)
        assert status == 200
        assert found["summary"][-1]["text"] == "✗ pod default/train-9 cannot be scheduled"
        manifests = [line["manifest"] for line in found["summary"] if line["manifest"]]
        assert "count: 7" in manifests[0]
        assert "cannot be scheduled" in found["text"]

        status, text = await visitor.ask("api/explanation.html?uid=pod-train-9")
        assert status == 200
        assert "<h1>Pod default/train-9</h1>" in text
        assert (await visitor.ask("api/explanation?uid=pod-train-9&at=3"))[0] == 404


async def test_output_comes_as_text() -> None:
    async with visiting(gpu_cluster().history) as visitor:
        assert await visitor.ask("api/output?container=local-process://train-1") == (200, "epoch 1\nepoch 2\n")
