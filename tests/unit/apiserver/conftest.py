from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.authentication import Authenticator
from dra_kit.apiserver.server import ApiServer, run_in_thread
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import Resource
from dra_kit.errors import NotFound
from tests.unit.apiserver.programs import User

Object = dict[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server with all API versions, also those that are off by default."""
    async with ApiServer(runtime_config=ALL_VERSIONS) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Credentials(Connection(server.url)), user_agent="tests/1") as connected:
        yield connected


class Http:
    """Plain requests, for what the client has no words for."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def __call__(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json", **headers: str
    ) -> tuple[int, Any, list[str]]:
        """Status, JSON or text, and warnings; bytes are sent as they are."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named.setdefault("Content-Type", content_type)
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self._session.request(method, self._url + path, headers=named, **sent) as answer:
            value = await (answer.json() if answer.content_type == "application/json" else answer.text())
            return answer.status, value, answer.headers.getall("Warning", [])

    async def lines(self, path: str) -> list[Any]:
        """The events of a watch, until the server ends it."""
        async with self._session.get(self._url + path) as answer:
            return [json.loads(line) async for line in answer.content]


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        yield Http(session, server.url)


def pod(name: str = "pod-1", *, spec: Object | None = None, container: Object | None = None, **metadata: Any) -> Object:
    """A pod with one container; ``spec`` and ``container`` add fields or replace them."""
    main = {"name": "main", "image": "example.com/app:1", **(container or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"containers": [main], **(spec or {})},
    }


def namespace(name: str, **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}}


def definition(kind: str, *versions: Object, scope: str = "Namespaced") -> Object:
    """A CustomResourceDefinition of kitchen.example.com."""
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.kitchen.example.com"},
        "spec": {"group": "kitchen.example.com", "scope": scope, "versions": list(versions),
                 "names": {"plural": plural, "kind": kind}},
    }  # fmt: skip


def config_map(name: str = "settings", data: dict[str, str] | None = None, **metadata: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "data": data or {},
    }


def claim(name: str = "claim-1") -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
    }


async def gone(client: Client, resource: Resource, name: str, where: str | None = "default") -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await client.get(resource, name, where)
            except NotFound:
                return
            await asyncio.sleep(0.005)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user with its own server, with the access control of a sandbox."""
    with run_in_thread(tls=True, authenticator=Authenticator()) as running:
        yield User(tmp_path, running)
