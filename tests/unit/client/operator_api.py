"""An API server with discovery, list and watch of ResourceSlices, as far as kopf talks to one.

It has a thread and a loop of its own: kopf cancels the tasks of the loop it lives in.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self, TypeVar

from aiohttp import web

T = TypeVar("T")

SLICES_PATH = "/apis/resource.k8s.io/v1/resourceslices"


def resource_slice(name: str, node: str = "node-1", driver: str = "dra.pizza", version: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
        "spec": {"nodeName": node, "driver": driver},
    }


class OperatorApi:
    """Start with ``with``; everything else may be called from any thread.

    It serves ResourceSlices, or other objects of that group, which are then called slices here.
    """

    def __init__(self, preferred: str = "v1", plural: str = "resourceslices", kind: str = "ResourceSlice") -> None:
        self._plural, self._kind = plural, kind
        self.requests: list[tuple[str, str, dict[str, str], str | None]] = []  # method, path, query, authorization
        self.preferred = preferred
        self.token: str | None = None  # what is accepted; None accepts everybody
        self.slices: dict[str, dict[str, Any]] = {}
        self.url = ""
        self._refusal: tuple[int, str, str] | None = None
        self._watches: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._serve())
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._call(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def refuse(self, status: int, reason: str = "", below: str = SLICES_PATH) -> None:
        """Answers everything below a path with an error from now on, and cuts the running watches."""
        self._refusal = (status, reason, below)
        self.cut()

    def allow(self) -> None:
        """Ends the refusal."""
        self._refusal = None

    def cut(self) -> None:
        """Ends all running watches, as an API server does that shuts down."""
        self._call(self._send(None))

    def put(self, item: dict[str, Any]) -> None:
        """Adds or changes a slice and tells the watches."""
        name = item["metadata"]["name"]
        event = {"type": "MODIFIED" if name in self.slices else "ADDED", "object": item}
        self.slices[name] = item
        self._call(self._send(event))

    def error_event(self, code: int) -> None:
        """Sends an ERROR event to the watches."""
        self._call(self._send({"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "broken"}}))

    def watching(self) -> bool:
        return bool(self._watches)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _serve(self) -> None:
        app = web.Application(middlewares=[self._gate])
        app.router.add_get("/api", self._json({"versions": ["v1"]}))
        app.router.add_get("/api/v1", self._json({"resources": [_kind("namespaces", "Namespace")]}))
        versions = [{"version": "v1"}, {"version": "v1beta2"}]
        groups = [
            {"name": "resource.k8s.io", "versions": versions, "preferredVersion": {"version": self.preferred}},
            {
                "name": "apiextensions.k8s.io",
                "versions": [{"version": "v1"}],
                "preferredVersion": {"version": "v1"},
            },
        ]
        app.router.add_get("/apis", self._json({"groups": groups}))
        slices = {"resources": [_kind(self._plural, self._kind)]}
        app.router.add_get("/apis/resource.k8s.io/v1", self._json(slices))
        app.router.add_get("/apis/resource.k8s.io/v1beta2", self._json(slices))
        crds = {"resources": [_kind("customresourcedefinitions", "CustomResourceDefinition")]}
        app.router.add_get("/apis/apiextensions.k8s.io/v1", self._json(crds))
        app.router.add_get(SLICES_PATH.replace("resourceslices", self._plural), self._slices)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    @web.middleware
    async def _gate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        authorization = request.headers.get("Authorization")
        self.requests.append((request.method, request.path, dict(request.query), authorization))
        if self.token is not None and authorization != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if self._refusal is not None and request.path.startswith(self._refusal[2]):
            return _status(*self._refusal[:2])
        return await handler(request)

    async def _slices(self, request: web.Request) -> web.StreamResponse:
        wanted = dict(part.split("=", 1) for part in request.query.get("fieldSelector", "").split(",") if part)
        if "watch" not in request.query:
            items = [item for item in self.slices.values() if _matches(item, wanted)]
            limit = int(request.query.get("limit") or len(items))
            more = {"continue": "more"} if len(items) > limit else {}
            return web.json_response({"metadata": {"resourceVersion": "1", **more}, "items": items[:limit]})
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._watches.add(queue)
        try:
            while (event := await queue.get()) is not None:
                if event["type"] == "ERROR" or _matches(event["object"], wanted):
                    await response.write(json.dumps(event).encode() + b"\n")
        finally:
            self._watches.discard(queue)
        return response

    async def _send(self, event: dict[str, Any] | None) -> None:
        for queue in self._watches:
            queue.put_nowait(event)

    @staticmethod
    def _json(body: dict[str, Any]) -> Callable[[web.Request], Coroutine[Any, Any, web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response(body)

        return answer


def _kind(plural: str, kind: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {"name": plural, "singularName": "", "kind": kind, "namespaced": False, "verbs": verbs}


def _matches(item: dict[str, Any], wanted: dict[str, str]) -> bool:
    return all(item["spec"].get(field.removeprefix("spec.")) == value for field, value in wanted.items())


def _status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
    return web.json_response(body, status=code)
