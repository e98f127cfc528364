"""A small Kubernetes API over HTTP for tests: objects in memory, watches, faults on demand, and a log of requests.

It lives in a thread and a loop of its own, as a process elsewhere would: whatever blocks the loop of a test blocks no
answer. It knows no validation, no defaults and no managed fields. Its garbage collector deletes what names owners none
of which is there by UID, when it is created and when they go.
"""

from __future__ import annotations

import asyncio
import copy
import json
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from aiohttp import web

from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.conversion import drop_disabled_fields
from tests.support.ports import kept_free

T = TypeVar("T")
Object = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name

KINDS: dict[str, tuple[str, str, bool]] = {
    "namespaces": ("v1", "Namespace", False),
    "nodes": ("v1", "Node", False),
    "pods": ("v1", "Pod", True),
    "configmaps": ("v1", "ConfigMap", True),
    "daemonsets": ("apps/v1", "DaemonSet", True),
    "deviceclasses": ("resource.k8s.io/v1", "DeviceClass", False),
    "events": ("events.k8s.io/v1", "Event", True),
    "resourceslices": ("resource.k8s.io/v1", "ResourceSlice", False),
    "resourceclaims": ("resource.k8s.io/v1", "ResourceClaim", True),
}


@dataclass(frozen=True)
class Request:
    """One request as it came, ``at`` a time of :func:`time.monotonic`."""

    method: str
    path: str
    query: Mapping[str, str]
    agent: str
    at: float = field(default_factory=time.monotonic, compare=False)

    def __str__(self) -> str:
        return f"{'WATCH' if 'watch' in self.query else self.method} {self.path}"


@dataclass(frozen=True)
class Fault:
    """The failure of some requests; with status 0, they get no answer."""

    status: int
    methods: tuple[str, ...]
    below: str
    at: str
    agent: str

    def hits(self, request: Request) -> bool:
        return (
            request.path.startswith(self.below)
            and self.at in {"", request.path}
            and self.agent in request.agent
            and (not self.methods or request.method in self.methods)
        )


@dataclass
class _State:
    objects: dict[Key, Object] = field(default_factory=dict)
    history: list[tuple[int, str, Key, Object]] = field(default_factory=list)  # version, type of event, object
    version: int = 1
    faults: list[Fault] = field(default_factory=list)


class Api:
    """Start with ``with``; everything may be called from any thread.

    Args:
        minor: of the Kubernetes release it says to be.
        served: versions of resource.k8s.io.

    Attributes:
        requests: everything that was asked, in order.
        gates: of features; the fields of those that are off are dropped.
    """

    def __init__(self, minor: str = "37", served: Sequence[str] = ("v1",)) -> None:
        self.requests: list[Request] = []
        self.gates: Release = Release.alpha()
        self.port = 0
        self._kept = ExitStack()
        self._documents = _discovery(minor, served)
        self._state = _State()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Condition()
        self._cut = 0
        self._thread = threading.Thread(target=self._loop.run_forever, name="api", daemon=True)
        self._runner: web.AppRunner | None = None

    # -- what a test does

    def __enter__(self) -> Self:
        self.port = self._kept.enter_context(kept_free())  # also while it is away
        self._thread.start()
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._kept.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": "secret"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def put(self, plural: str, obj: Mapping[str, Any]) -> Object:
        """Create or replace an object, as another client in the cluster would; return it as stored."""
        return self._call(self._put(plural, copy.deepcopy(dict(obj))))

    def delete(self, plural: str, name: str, namespace: str = "") -> None:
        """Delete an object; it must be there."""
        self._call(self._delete((plural, namespace, name)))

    def objects(self, plural: str) -> list[Object]:
        """All objects of a kind, by name."""

        async def found() -> list[Object]:
            return [copy.deepcopy(obj) for key, obj in sorted(self._state.objects.items()) if key[0] == plural]

        return self._call(found())

    @contextmanager
    def failing(self, status: int, *methods: str, below: str = "/", at: str = "", agent: str = "") -> Iterator[None]:
        """Answers with an error, or with status 0 not at all, as long as the context lasts.

        Args:
            status: HTTP status.
            methods: which requests; all without any.
            below: what their path starts with.
            at: their path.
            agent: what their User-Agent contains.
        """
        fault = Fault(status, methods, below, at, agent)
        self._call(self._with_faults([*self._state.faults, fault]))
        try:
            yield
        finally:
            self._call(self._with_faults([item for item in self._state.faults if item is not fault]))

    def go_away(self) -> None:
        """Refuses connections from now on, and cuts those that are open."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            self._call(self._notify(cut=True))
            self._call(runner.cleanup())

    def listen(self) -> None:
        """Takes connections, on the port it had before."""
        self._runner = self._call(self._serve())

    def asked(self, method: str, path: str, agent: str = "") -> int:
        """How often something was asked for; ``WATCH`` counts as a method of its own."""
        return sum(str(item) == f"{method} {path}" and agent in item.agent for item in self.requests)

    # -- HTTP

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _serve(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        return runner

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        request = Request(http.method, http.path, dict(http.query), http.headers.get("User-Agent", ""))
        self.requests.append(request)
        for fault in self._state.faults:
            if fault.hits(request):
                if not fault.status:
                    await asyncio.Event().wait()
                return _status(fault.status, f"{request} is refused by the test")
        if http.method == "GET" and http.path in self._documents:
            return web.json_response(self._documents[http.path])
        found = _parse(http.path)
        if found is None:
            return _status(404, f"no such path {http.path}")
        (plural, namespace, name), subresource = found
        if name:
            return await self._answer_object(http, (plural, namespace, name), subresource)
        if http.method == "POST":
            return await self._create(plural, namespace, await http.json(), dry_run="dryRun" in http.query)
        if http.method == "GET" and "watch" in http.query:
            return await self._watch(http, plural)
        return self._list(plural, namespace, http.query)

    async def _answer_object(self, http: web.Request, key: Key, subresource: str) -> web.Response:
        stored = self._state.objects.get(key)
        if stored is None and http.method == "PATCH" and "apply-patch" in http.content_type:
            return await self._create(key[0], key[1], await http.json(), dry_run=False)
        if stored is None:
            return _status(404, f"{key[0]} {key[2]!r} not found", key[2])
        match http.method:
            case "GET":
                return web.json_response(stored)
            case "PUT":
                body = await http.json()
                wanted = body["metadata"].get("resourceVersion")
                if wanted is not None and wanted != stored["metadata"]["resourceVersion"]:
                    return _status(409, f"{key[0]} {key[2]!r} was changed")
                if "dryRun" in http.query:
                    return web.json_response(drop_disabled_fields(body, stored, self.gates))
                return web.json_response(await self._put(key[0], body))
            case "PATCH":
                return await self._patch(key, await http.json(), subresource)
            case "DELETE":
                options = await http.json() if http.can_read_body else {}
                metadata = stored["metadata"]
                if any(metadata[name] != value for name, value in options.get("preconditions", {}).items()):
                    return _status(409, f"{key[0]} {key[2]!r} is another one")
                if not options.get("dryRun"):
                    await self._delete(key)
                return web.json_response({"kind": "Status", "status": "Success"})
        return _status(405, f"{http.method} is not allowed")

    async def _create(self, plural: str, namespace: str, body: Object, *, dry_run: bool) -> web.Response:
        metadata = body["metadata"]
        if "name" not in metadata:
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        if namespace:
            metadata["namespace"] = namespace
        if (plural, namespace, metadata["name"]) in self._state.objects:
            return _status(409, f"{plural} {metadata['name']!r} exists already")
        if dry_run:
            return web.json_response(drop_disabled_fields(body, None, self.gates), status=201)
        created = copy.deepcopy(await self._put(plural, body))
        await self._collect_garbage()
        return web.json_response(created, status=201)

    async def _patch(self, key: Key, body: Object, subresource: str) -> web.Response:
        stored = self._state.objects[key]
        if body.get("metadata", {}).get("uid", stored["metadata"]["uid"]) != stored["metadata"]["uid"]:
            return _status(409, f"{key[0]} {key[2]!r} is another one")
        changed = copy.deepcopy(stored)
        changes = {subresource: body[subresource]} if subresource else body
        if key[0] == "resourceclaims" and "devices" in changes.get("status", {}):
            entries = {_device_key(item): item for item in changed.get("status", {}).get("devices", [])}
            entries |= {_device_key(item): item for item in changes["status"]["devices"]}
            changes = {"status": {"devices": list(entries.values())}}
        _merge(changed, changes)
        return web.json_response(await self._put(key[0], changed))

    def _list(self, plural: str, namespace: str, query: Mapping[str, str]) -> web.Response:
        fields, labels = query.get("fieldSelector", ""), query.get("labelSelector", "")
        items = [
            {name: value for name, value in obj.items() if name not in {"apiVersion", "kind"}}
            for key, obj in sorted(self._state.objects.items())
            if key[0] == plural and namespace in {"", key[1]} and _selected(obj, fields) and _labelled(obj, labels)
        ]
        return web.json_response({"metadata": {"resourceVersion": str(self._state.version)}, "items": items})

    async def _watch(self, http: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(http)
        selector, cut = http.query.get("fieldSelector", ""), self._cut
        since = int(http.query.get("resourceVersion") or self._state.version)
        told = 0
        while cut == self._cut:
            news = self._state.history[told:]
            told += len(news)
            for version, kind, key, obj in news:
                if version > since and key[0] == plural and _selected(obj, selector):
                    await response.write(json.dumps({"type": kind, "object": obj}).encode() + b"\n")
            async with self._changed:
                while cut == self._cut and told == len(self._state.history):
                    await self._changed.wait()
        return response

    # -- state, in the loop of the thread

    async def _put(self, plural: str, obj: Object) -> Object:
        metadata = obj["metadata"]
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        before = self._state.objects.get(key)
        obj = drop_disabled_fields(obj, before, self.gates)
        metadata.setdefault("uid", before["metadata"]["uid"] if before else str(uuid.uuid4()))
        obj["apiVersion"], obj["kind"] = KINDS[plural][:2]
        if before is not None:
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
            if obj == before:
                return before
        self._state.version += 1
        metadata["resourceVersion"] = str(self._state.version)
        self._state.objects[key] = obj
        self._state.history.append((self._state.version, "MODIFIED" if before else "ADDED", key, copy.deepcopy(obj)))
        await self._notify()
        return obj

    async def _delete(self, key: Key) -> None:
        obj = self._state.objects.pop(key)
        self._state.version += 1
        obj["metadata"]["resourceVersion"] = str(self._state.version)
        self._state.history.append((self._state.version, "DELETED", key, obj))
        await self._notify()
        await self._collect_garbage()

    async def _collect_garbage(self) -> None:
        uids = {obj["metadata"]["uid"] for obj in self._state.objects.values()}
        for key, obj in list(self._state.objects.items()):
            owners = {owner["uid"] for owner in obj["metadata"].get("ownerReferences", [])}
            if owners and not owners & uids and key in self._state.objects:
                await self._delete(key)

    async def _with_faults(self, faults: list[Fault]) -> None:
        self._state.faults = faults

    async def _notify(self, *, cut: bool = False) -> None:
        self._cut += cut
        async with self._changed:
            self._changed.notify_all()


async def eventually(condition: Callable[[], object], timeout: float = 120) -> None:
    """Waits until something is true that other tasks, threads or processes make so."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - threads and processes set no asyncio.Event
            await asyncio.sleep(0.01)


def _parse(path: str) -> tuple[Key, str] | None:
    parts = path.strip("/").split("/")
    prefix, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not rest or rest[0] not in KINDS or "/".join(prefix[1:]) != KINDS[rest[0]][0]:
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    return (plural, namespace, name), subresource


def _selected(obj: Mapping[str, Any], selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        path, _, wanted = part.partition("=")
        value: Any = obj
        for name in path.removesuffix("!").split("."):
            value = (value or {}).get(name)
        if ((value or "") == wanted) == path.endswith("!"):
            return False
    return True


def _labelled(obj: Mapping[str, Any], selector: str) -> bool:
    labels = obj["metadata"].get("labels") or {}
    wanted = [part.partition("=") for part in filter(None, selector.split(","))]
    return all(key in labels and value in {labels[key], ""} for key, _, value in wanted)


def _device_key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in ("driver", "pool", "device", "shareID"))


def _merge(target: Object, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        elif value is None:
            target.pop(name, None)
        else:
            target[name] = value


def _discovery(minor: str, served: Sequence[str]) -> dict[str, Any]:
    versions = [{"groupVersion": f"resource.k8s.io/{item}", "version": item} for item in served]
    group = {"name": "resource.k8s.io", "versions": versions, "preferredVersion": versions[0]}
    documents: dict[str, Any] = {
        "/version": {"major": "1", "minor": minor},
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": [group]},
        "/apis/resource.k8s.io": group,
    }
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    for plural, (version, kind, namespaced) in KINDS.items():
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        kinds = documents.setdefault(path, {"resources": []})["resources"]
        kinds.append({"name": plural, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": verbs})
    return documents


def _status(code: int, message: str, name: str = "") -> web.Response:
    body: dict[str, Any] = {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message,
    }  # fmt: skip
    if name:
        body["details"] = {"name": name}
    return web.json_response(body, status=code)
