"""Plays the phases of a scenario on any API server, and returns the resulting objects."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import DEVICE_TAINT_RULES
from tests.golden.kind import Line
from tests.golden.scenario_summaries import Object, Watcher, in_order, settled

KEYS = ("pods", "claims", "rules", "events")
_SHORT_WHILES = 40
_REFERENCE = re.compile(r"\$\{(\d+)_(\d+)\.([^}]*)\}")


class Player:
    """One scenario on one server; the server is empty when it begins.

    Args:
        url: of the API server.
        session: to send requests with.
        watcher: follows the server's objects.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, watcher: Watcher) -> None:
        self._url = url
        self._session = session
        self._watcher = watcher
        self._answers: dict[tuple[int, int], Object] = {}

    async def send(self, number: int, phase: Line, *, pause: float = 0) -> list[int]:
        """Send the requests of a phase; returns the HTTP statuses.

        Args:
            number: of the phase.
            phase: with its requests; ``at_once`` says that none waits for another one.
            pause: seconds before each request but the first, so that others see what the one before did.
        """
        self._watcher.begin_phase()
        if phase.get("at_once"):
            requests = [self._request(request, (number, step)) for step, request in enumerate(phase["do"])]
            return list(await asyncio.gather(*requests))
        statuses = []
        for step, request in enumerate(phase["do"]):
            await asyncio.sleep(pause if step else 0)
            statuses.append(await self._request(request, (number, step)))
        return statuses

    async def _request(self, request: Object, place: tuple[int, int]) -> int:
        body = request.get("body")
        patch = "application/merge-patch+json" if request["method"] == "PATCH" else "application/json"
        query = f"?{request['query']}" if "query" in request else ""
        async with self._session.request(
            request["method"],
            self._url + self._resolved(request["path"]) + query,
            # compact, as in the recording, because white space in opaque parameters counts
            data=None if body is None else self._resolved(json.dumps(body, separators=(",", ":"))),
            headers={"Content-Type": request.get("contentType", patch)},
        ) as answer:
            self._answers[place] = await answer.json()
            return answer.status

    def _resolved(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            found: Any = self._answers[int(match[1]), int(match[2])]
            for part in match[3].split("."):
                found = found[int(part) if isinstance(found, list) else part]
            return str(found)

        return _REFERENCE.sub(value, text)

    def settled(self) -> dict[str, list[Object]]:
        """Return the current objects by kind, without kinds that have none."""
        found = {key: comparable(items) for key, items in settled(self._watcher.objects).items()}
        return {key: items for key, items in found.items() if items}

    def traces(self) -> dict[str, list[str]]:
        """The distinct states of each object since the phase began."""
        return self._watcher.traces()

    async def calm(self, seconds: float) -> None:
        """Wait until no object changed for a while, from now on.

        The while is made of many short ones: a process that did not run meanwhile has seen nothing, and has let a
        server that shares its loop do nothing.
        """
        quiet, seen = 0, self._watcher.changes
        while quiet < _SHORT_WHILES:
            await asyncio.sleep(seconds / _SHORT_WHILES)
            quiet = quiet + 1 if self._watcher.changes == seen else 0
            seen = self._watcher.changes


def quiet_seconds(phase: Line) -> float:
    """Return how long a phase waits for what still happens, if that is what it waits for."""
    what, *arguments = phase["until"].split()
    return float(arguments[0]) if what == "quiet" else 0.0


def comparable(items: list[Object]) -> list[Object]:
    """Return sorted objects without field managers, which some servers omit, and share ids."""
    kept = [{key: value for key, value in item.items() if key != "managers"} for item in items]
    renamed: list[Object] = json.loads(re.sub(r"<share:\d+>", "<share>", json.dumps(kept)))
    return in_order(renamed)


async def eventually(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition is true or the timeout expires."""
    end = time.monotonic() + seconds
    while True:
        if condition() or time.monotonic() > end:
            return
        await asyncio.sleep(0.02)


@asynccontextmanager
async def playing(credentials: Credentials, client: Client) -> AsyncIterator[Player]:
    """Yield a player for a server, and watch its objects meanwhile.

    Args:
        credentials: an administrator's.
        client: of the same server.
    """
    served = await client.get_path("/apis/resource.k8s.io/v1")
    watcher = Watcher(client, rules=DEVICE_TAINT_RULES.plural in {each["name"] for each in served["resources"]})
    headers = {"User-Agent": "oracle/1"}
    if authorization := await credentials.authorization():
        headers["Authorization"] = authorization
    connector = aiohttp.TCPConnector(ssl=credentials.ssl or True)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(watcher.follow(resource)) for resource in watcher.objects]
        await watcher.synced()
        try:
            yield Player(credentials.connection.server, session, watcher)
        finally:
            for task in tasks:
                task.cancel()
