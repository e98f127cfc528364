"""What the node must know of the API server and of its own Node object, asked when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dra_kit.author.context import NodeInfo
from dra_kit.errors import NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import NODES
from dra_kit.kube.versions import ServerFeatures, discover
from dra_kit.kubernetes.resource.api_model import OwnerReference


class ServerFacts:
    """Asks once, remembers what was answered until asked to forget it; an error is not remembered.

    Args:
        client: to ask with.
        node_name: the Node object's name.
        node_known: notified of the Node each time it was read.
    """

    def __init__(self, client: Client, node_name: str, node_known: Callable[[NodeInfo], None]) -> None:
        self._client = client
        self._node_name = node_name
        self._node_known = node_known
        self._lock = asyncio.Lock()
        self._facts: tuple[ServerFeatures, OwnerReference] | None = None

    async def features(self) -> ServerFeatures:
        """Return the release of the API server."""
        return (await self._all())[0]

    async def owner(self) -> OwnerReference:
        """Return the Node as the owner of its slices, so that they go when it goes."""
        return (await self._all())[1]

    def forget(self) -> None:
        """Forget the answers: a Node that is created again has another UID, and other labels too."""
        self._facts = None

    async def _all(self) -> tuple[ServerFeatures, OwnerReference]:
        async with self._lock:
            if self._facts is None:
                features = await discover(self._client)
                try:
                    node = await self._client.get(NODES, self._node_name)
                except NotFound as error:
                    raise NotFound(
                        f"node {self._node_name} does not exist in this cluster; correct --node-name (DRA_NODE_NAME)",
                        status=404,
                        code="unknown-node",
                    ) from error
                metadata = node["metadata"]
                owner = OwnerReference(
                    api_version="v1", kind="Node", name=self._node_name, uid=metadata["uid"], controller=True
                )
                self._facts = (features, owner)
                self._node_known(NodeInfo(self._node_name, metadata.get("labels") or {}))
            return self._facts
