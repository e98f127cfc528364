"""The sandbox's API server, with clients of the administrator and of the chart's accounts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import NODES
from dra_kit.kubernetes.release import Release


@dataclass(frozen=True)
class Served:
    """An API server.

    Attributes:
        admin: may do everything.
    """

    server: ApiServer
    admin: Client
    _stack: AsyncExitStack

    async def client(self, token: str) -> Client:
        """A client of the token's account."""
        credentials = Credentials(self.server.connection(token))
        return await self._stack.enter_async_context(Client(credentials, user_agent="tests/1"))


@asynccontextmanager
async def serving(*nodes: str, gates: Release | None = None) -> AsyncIterator[Served]:
    """An API server with some nodes; it and all its clients end together."""
    async with ApiServer(release=gates, runtime_config=ALL_VERSIONS) as server, AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Client(Credentials(server.connection()), user_agent="tests/1"))
        for name in nodes:
            await admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        yield Served(server, admin, stack)
