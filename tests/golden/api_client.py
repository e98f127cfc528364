"""Sends the requests of a recorded line to an embedded API server, and normalizes the answers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import Callable
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.server import ApiServer
from dra_kit.kubernetes.release import KubernetesVersion, Release
from tests.golden.kind import Line

_TEMPLATE = re.compile(r"\$\{(\d+)\.([^}]*)\}")
_REPEAT = re.compile(r"\$\{repeat:(.*?):(\d+)\}", re.DOTALL)
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_LABEL = "resource.kubernetes.io/admin-access"
_SETTLE_SECONDS = 0.5
"""A real API server knows of roles and pods, through its own watches, after this time."""
REQUEST = (
    "method", "path", "query", "contentType", "accept", "headers", "body", "rawBody", "keep", "keys", "only",
    "keepItems", "keepResources", "keepPaths", "sortItems", "managedFields", "causesUnordered",
)  # fmt: skip
"""Fields of a step that say what is sent, and which part of the answer is kept."""
NAMESPACES = {"team-a": {}, "team-b": {}, "admin-a": {_LABEL: "true"}, "admin-off": {_LABEL: "false"}}


def expand(value: Any) -> Any:
    """Return a line with its repetitions expanded."""
    return _with_texts(value, lambda text: _REPEAT.sub(lambda match: match[1] * int(match[2]), text))


def _with_texts(value: Any, changed: Callable[[str], str]) -> Any:
    """Return a value with all keys and texts changed."""
    if isinstance(value, str):
        return changed(value)
    if isinstance(value, dict):
        return {changed(key): _with_texts(item, changed) for key, item in value.items()}
    return [_with_texts(item, changed) for item in value] if isinstance(value, list) else value


class Replayer:
    """Embedded servers of a release by set of gates, emptied before each line."""

    def __init__(self, version: KubernetesVersion) -> None:
        self._version = version
        self._servers: dict[str, ApiServer] = {}
        self._session: aiohttp.ClientSession | None = None
        self._stack = contextlib.AsyncExitStack()
        self._namespaces: dict[str, Line] = {}

    async def close(self) -> None:
        await self._stack.aclose()

    async def answers(self, line: Line) -> list[Line]:
        """Return the normalized answer to each step, and fill in templates in ``body`` for comparison."""
        server = await self._server(line.get("gates", "default"))
        await self._reset(server)
        steps = Steps(server.url, await self._client(), compact=server.api.storage.compact)
        return [await steps.take(step) for step in line["steps"]]

    async def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            session = aiohttp.ClientSession(connector=connector, headers={"User-Agent": "oracle/1"})
            self._session = await self._stack.enter_async_context(session)
        return self._session

    async def _server(self, gates: str) -> ApiServer:
        if gates not in self._servers:
            chosen = (Release.alpha if gates == "alpha" else Release.of)(self._version)
            server = ApiServer(release=chosen, runtime_config=ALL_VERSIONS, garbage_collection=False)
            self._servers[gates] = await self._stack.enter_async_context(server)
        return self._servers[gates]

    async def _reset(self, server: ApiServer) -> None:
        server.reset()
        storage = server.api.storage
        if len(self._namespaces) < len(NAMESPACES):
            client = await self._client()
            for name, labels in NAMESPACES.items():
                body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
                async with client.post(f"{server.url}/api/v1/namespaces", json=body) as answer:
                    answer.raise_for_status()
                stored = storage.get("namespaces", name)
                assert stored is not None
                self._namespaces[name] = stored.object
        else:  # their form is known by now
            for name, namespace in self._namespaces.items():
                storage.create("namespaces", name, namespace)


class Steps:
    """Runs the steps of one line in order.

    Args:
        url: of the server.
        client: to send with.
        compact: makes the server forget its history; None where that cannot be asked for.
        patient: whether a watch is read until the server ends it, not only until all that should come has come, and a
            pause is made where the line has one.

    Attributes:
        objects: the parsed answers so far, for templates.
    """

    def __init__(
        self, url: str, client: aiohttp.ClientSession, *, compact: Callable[[], None] | None = None,
        patient: bool = False,
    ) -> None:  # fmt: skip
        self._url, self._client, self._compact, self._patient = url, client, compact, patient
        self.objects: list[Any] = []

    async def take(self, step: Line) -> Line:
        if "method" not in step:  # "settle" waits for effects that are immediate in the embedded server
            if self._patient:
                await asyncio.sleep(step.get("sleep", _SETTLE_SECONDS))
            if step.get("compact"):
                assert self._compact is not None, "this server cannot be made to forget"
                self._compact()
            self.objects.append(None)
            return dict(step)
        if "events" in step:
            return await self._watch(step)
        async with self._request(step) as answer:
            content = await answer.read()
        return await self._with_during(step, self._recorded(step, answer, content))

    async def _with_during(self, step: Line, got: Line) -> Line:
        """Add requests sent during a watch that got an ordinary answer instead."""
        if "during" in step:
            got["during"] = [await self.take(inner) for inner in step["during"]]
        return got

    def _request(self, step: Line) -> Any:
        headers: CIMultiDict[str] = CIMultiDict({"Accept": step.get("accept", "application/json")})
        for name, value in step.get("headers", {}).items():
            for one in value if isinstance(value, list) else [value]:
                headers.add(name, one)
        data: bytes | None = None
        if "rawBody" in step:
            data = str(self._fill(step["rawBody"])).encode()
        elif "body" in step:
            data = json.dumps(self._fill(step["body"]), separators=(",", ":"), ensure_ascii=False).encode()
        skipped = []
        if data is not None or "contentType" in step:
            headers["Content-Type"] = step.get("contentType", "application/json")
        else:
            skipped.append("Content-Type")
        url = self._url + self._fill(step["path"])
        if "query" in step:
            url += "?" + self._fill(step["query"])
        return self._client.request(
            step["method"],
            URL(url, encoded=True),
            data=None if data is None else io.BytesIO(data),
            headers=headers,
            skip_auto_headers=skipped,
        )

    def _fill(self, value: Any) -> Any:
        return _with_texts(value, lambda text: _TEMPLATE.sub(lambda match: self._value(int(match[1]), match[2]), text))

    def _value(self, step: int, path: str) -> str:
        value = self.objects[step]
        for name in path.split("."):
            if isinstance(value, list):
                value = value[int(name)] if int(name) < len(value) else ""
            else:
                value = value.get(name, "") if isinstance(value, dict) else ""
        return str(value)

    async def _watch(self, step: Line) -> Line:
        events: list[Any] = []

        async def collect(answer: aiohttp.ClientResponse) -> None:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] != "BOOKMARK" or (event["object"].get("metadata") or {}).get("annotations"):
                    events.append(event)

        async with self._request(step) as answer:
            if answer.status != 200 or answer.content_type != "application/json" or not _is_watch(step):
                return await self._with_during(step, self._recorded(step, answer, await answer.read()))
            reader = asyncio.create_task(collect(answer))
            number = len(self.objects)
            self.objects.append(None)
            during = [await self.take(inner) for inner in step.get("during", [])]
            del self.objects[number + 1 :]
            if self._patient:
                await reader
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5 if "ERROR" in str(step["events"]) else None):
                    await self._settle(reader, expected=len(step["events"]), seen=events)
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
        got = {key: value for key, value in step.items() if key != "warnings"}
        got |= {"status": answer.status, "events": events}
        # older recordings lack warnings of watches
        if (warnings := _warnings(answer)) and (self._patient or "warnings" in step):
            got["warnings"] = warnings
        return got | ({"during": during} if "during" in step else {})

    async def _settle(self, reader: asyncio.Task[None], *, expected: int, seen: list[Any]) -> None:
        """Wait at most a second for expected events, and then for round trips in which others could arrive."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 1
        while len(seen) < expected and loop.time() < deadline and not reader.done():
            await asyncio.wait([reader], timeout=0.002)
        for _ in range(3):
            async with self._client.get(f"{self._url}/version") as answer:
                await answer.read()

    def _recorded(self, step: Line, answer: aiohttp.ClientResponse, content: bytes) -> Line:
        """Return the step with our answer instead of the recorded one."""
        kept = (*REQUEST, "events", "sortRules", "either", "anyOf", "warningsUnordered")
        got: Line = {key: step[key] for key in kept if key in step}
        got["status"] = answer.status
        parsed: Any = None
        with contextlib.suppress(ValueError):
            parsed = json.loads(content)
        self.objects.append(parsed)
        if step.get("keep") == "status":
            text = {"responseType": answer.headers.get("Content-Type", ""), "text": content.decode(errors="replace")}
            found = text | {"warnings": _warnings(answer)}
            return got | {key: value for key, value in found.items() if key in step}
        if warnings := _warnings(answer):
            got["warnings"] = sorted(warnings) if step.get("warningsUnordered") else warnings
        content_type = answer.headers.get("Content-Type", "")
        failed = isinstance(parsed, dict) and parsed.get("kind") == "Status" and parsed.get("status") == "Failure"
        if step.get("keep") == "verdict" and parsed is not None and not failed:
            return got
        if content_type != "application/json":
            got["responseType"] = content_type
        if parsed is None:
            got["text"] = content.decode()
        elif failed:
            got |= _failure(parsed, answer.status, unordered="causesUnordered" in step)
        else:
            got["stored"] = _partly(step, parsed)
        return got


def _is_watch(step: Line) -> bool:
    return "watch" in step["query"] or "/watch/" in step["path"]


def _warnings(answer: aiohttp.ClientResponse) -> list[str]:
    texts = (match[1] for header in answer.headers.getall("Warning", ()) for match in _WARNING.finditer(header))
    return [re.sub(r"\\(.)", r"\1", text) for text in texts]


def _failure(status: Line, code: int, *, unordered: bool) -> Line:
    details = dict(status.get("details") or {})
    causes = details.pop("causes", None)
    got: Line = {"reason": status.get("reason", ""), "message": status.get("message", "")}
    if details:
        got["details"] = details
    if causes:
        causes = [{"field": "", "reason": "", "message": "", **cause} for cause in causes]
        got["causes"] = causes
    if unordered:
        del got["message"]
        got["causes"] = sorted(causes or [], key=lambda cause: json.dumps(cause, sort_keys=True))
    if status.get("code") != code:
        got["code"] = status.get("code")
    return got


def _partly(step: Line, value: Any) -> Any:
    if "keys" in step and not isinstance(step.get("stored"), dict):  # some recordings have the whole instead
        for name in filter(None, step["keys"].split(".")):
            value = value.get(name, {})
        return sorted(value)
    if "only" in step:
        value = {key: value[key] for key in step["only"] if key in value}
    if step.get("sortRules"):
        for name in ("resourceRules", "nonResourceRules"):
            value["status"][name] = sorted(value["status"][name], key=_sorted_text)
    if "keepItems" in step:
        name = "items" if "items" in value else "groups"
        value[name] = [item for item in value[name] if _name(item) in step["keepItems"]]
    if "keepResources" in step:
        for holder in _resource_holders(value):
            holder["resources"] = [
                item for item in holder["resources"]
                if (item.get("resource") or item.get("name", "")).partition("/")[0] in step["keepResources"]
            ]  # fmt: skip
    if "keepPaths" in step:
        value["paths"] = {path: value["paths"][path] for path in step["keepPaths"] if path in value["paths"]}
        for entry in value["paths"].values():
            entry["serverRelativeURL"] = re.sub(r"hash=\w+", "hash=<hash>", entry["serverRelativeURL"])
    if step.get("sortItems") and isinstance(value, dict):
        value["items"] = sorted(value.get("items", []), key=_name)
    return value


def _sorted_text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _name(item: Line) -> str:
    return str(item.get("name") or (item.get("metadata") or {}).get("name", ""))


def _resource_holders(value: Line) -> list[Line]:
    if "resources" in value:
        return [value]
    return [version for item in value.get("items", []) for version in item["versions"]]
