"""An API server as far as the controller and the webhook talk to one: discovery, claims with history, Events."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
VERSIONS = ("v1", "v1beta2", "v1beta1")


class ClusterApi:
    """Start with ``async with``; it lives in the loop of the test.

    Attributes:
        requests: method and path of everything that was asked.
        events: the Events that were created.
        claims: by UID; lists and watches of an earlier resource version return their earlier state.
        refused: how many were there already.
        versions: of resource.k8s.io that are served.
        leases: by path.
        list_failures: how many lists are still to be answered 503.
        down: every answer is 503.
        silent: the server does not answer.
        hold_leases: requests for leases are answered 503.
        hold_events_of: Events that this instance reports are answered 503.
    """

    def __init__(self, versions: tuple[str, ...] = VERSIONS) -> None:
        self.requests: list[tuple[str, str]] = []
        self.events: list[dict[str, Any]] = []
        self.refused = 0
        self.versions = versions
        self.claims: dict[str, dict[str, Any]] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.lists = 0
        self.list_failures = 0
        self.forbidden = False
        self.creates_no_lease = False
        self.down = False
        self.silent = False
        self.hold_leases = False
        self.hold_events_of = ""
        self.url = ""
        self._version = 100
        self._states: list[tuple[int, str, dict[str, Any] | None]] = []  # of claims: version, UID, None where deleted
        self._changes: list[tuple[int, dict[str, Any]]] = []  # what watches are sent
        self._watches: set[asyncio.Queue[dict[str, Any] | None]] = set()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for queue in self._watches:
            queue.put_nowait(None)
        await self._runner.cleanup()

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

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.requests if request[0] != "GET"]

    @property
    def watched(self) -> bool:
        return bool(self._watches)

    @property
    def watches(self) -> int:
        return len(self._watches)

    def apply(self, claim: dict[str, Any], *, silent: bool = False) -> None:
        """Stores a claim; silently: no watch hears of it, as in a gap."""
        self._version += 1
        stored = copy.deepcopy(claim)
        stored["metadata"]["resourceVersion"] = str(self._version)
        known = self.claims.get(stored["metadata"]["uid"])
        self.claims[stored["metadata"]["uid"]] = stored
        self._states.append((self._version, stored["metadata"]["uid"], stored))
        if not silent:
            self._tell("MODIFIED" if known else "ADDED", stored)

    def delete(self, uid: str, *, silent: bool = False) -> None:
        self._version += 1
        claim = copy.deepcopy(self.claims.pop(uid))
        claim["metadata"]["resourceVersion"] = str(self._version)
        self._states.append((self._version, uid, None))
        if not silent:
            self._tell("DELETED", claim)

    def _tell(self, kind: str, claim: dict[str, Any]) -> None:
        event = {"type": kind, "object": claim}
        self._changes.append((self._version, event))
        for queue in self._watches:
            queue.put_nowait(event)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if self.down:
            return _status(503, "ServiceUnavailable")
        if self.silent:
            await asyncio.Event().wait()  # until the client gives up
        if request.method == "POST" and request.path.startswith("/apis/events.k8s.io/v1/namespaces/"):
            event = await request.json()
            if event["reportingInstance"] == self.hold_events_of:
                return _status(503, "ServiceUnavailable")
            if event["metadata"]["name"] in {each["metadata"]["name"] for each in self.events}:
                self.refused += 1
                return _status(409, "AlreadyExists")
            self.events.append(event)
            return web.json_response(event, status=201)
        if request.path.startswith(LEASES):
            if self.hold_leases:
                return _status(503, "ServiceUnavailable")
            refused = self.forbidden or (self.creates_no_lease and request.method == "POST")
            return _status(403, "Forbidden") if refused else await self._lease(request)
        if "/namespaces/nowhere/" in request.path:
            return _missing("namespaces", "nowhere")
        if request.method == "GET" and request.path == CLAIMS:
            return await (self._watch(request) if "watch" in request.query else self._list(request))
        body = self._documents().get(request.path) if request.method == "GET" else None
        return _status(404, "NotFound") if body is None else web.json_response(body)

    async def _lease(self, request: web.Request) -> web.StreamResponse:
        stored = self.leases.get(request.path)
        if request.method == "GET":
            name = request.path.rpartition("/")[2]
            return _missing("leases", name) if stored is None else web.json_response(stored)
        lease = await request.json()
        if request.method == "PUT" and stored is None:
            return _missing("leases", lease["metadata"]["name"])
        path = f"{request.path}/{lease['metadata']['name']}" if request.method == "POST" else request.path
        version = stored["metadata"]["resourceVersion"] if stored else None
        if (request.method == "POST") == (path in self.leases) or lease["metadata"].get("resourceVersion") != version:
            return _status(409, "Conflict")
        self._version += 1
        lease["metadata"]["resourceVersion"] = str(self._version)
        self.leases[path] = lease
        return web.json_response(lease, status=201 if request.method == "POST" else 200)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if self.forbidden:
            return _status(403, "Forbidden")
        if self.list_failures:
            self.list_failures -= 1
            return _status(503, "ServiceUnavailable")
        self.lists += 1
        version, items = self._version, list(self.claims.values())
        if request.query.get("resourceVersionMatch") == "Exact":
            version = int(request.query["resourceVersion"])
            states = {uid: state for at, uid, state in self._states if at <= version}
            items = [state for state in states.values() if state is not None]
        return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or self._version)
        seconds = request.query.get("timeoutSeconds")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        for at, event in self._changes:
            if at > since:
                queue.put_nowait(event)
        self._watches.add(queue)
        try:
            # nothing is slow here: a tenth of the time is enough
            async with asyncio.timeout(int(seconds) / 10 if seconds else None):
                while (sent := await queue.get()) is not None:
                    await response.write(json.dumps(sent).encode() + b"\n")
        except TimeoutError:
            pass
        finally:
            self._watches.discard(queue)
        return response

    def _documents(self) -> dict[str, Any]:
        served = [{"groupVersion": f"resource.k8s.io/{each}", "version": each} for each in self.versions]
        group = {"name": "resource.k8s.io", "versions": served, "preferredVersion": served[0]}
        kinds = {
            "resources": [
                _kind("resourceclaims", "ResourceClaim", namespaced=True),
                _kind("resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True),
                _kind("deviceclasses", "DeviceClass", namespaced=False),
            ]
        }
        return {
            "/version": {"major": "1", "minor": "37"},
            "/api": {"versions": ["v1"]},
            "/api/v1": {"resources": [_kind("namespaces", "Namespace", namespaced=False)]},  # kopf waits for it
            "/apis": {"groups": [group]},
            "/apis/resource.k8s.io": group,
            **{f"/apis/resource.k8s.io/{version}": kinds for version in self.versions},
        }


def _kind(plural: str, kind: str, *, namespaced: bool) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {"name": plural, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": verbs}


def _missing(kind: str, name: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}
    return web.json_response({**body, "details": {"name": name, "kind": kind}}, status=404)


def _status(code: int, reason: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return web.json_response(body, status=code)
