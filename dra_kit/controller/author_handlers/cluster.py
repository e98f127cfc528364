"""What an author's handlers read and write in the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from dra_kit.author.cluster_api import ClusterApi
from dra_kit.errors import NotFound
from dra_kit.kube.client import APPLY, Client
from dra_kit.kube.resources import Resource


class HandlersCluster(ClusterApi):
    """On a client of the loop that the handlers run in.

    Args:
        client: of that loop.
        owner: of applied fields.
    """

    def __init__(self, client: Client, owner: str) -> None:
        self._client = client
        self._owner = owner

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    @override
    async def get(
        self, api_version: str, plural: str, name: str, namespace: str | None = None
    ) -> Mapping[str, Any] | None:
        try:
            return await self._client.get(_resource(api_version, plural, namespace), name, namespace)
        except NotFound:
            return None

    @override
    async def list(
        self, api_version: str, plural: str, namespace: str | None = None, *, label_selector: str = ""
    ) -> Sequence[Mapping[str, Any]]:
        resource = _resource(api_version, plural, namespace)
        return (await self._client.list(resource, namespace, label_selector=label_selector)).items

    @override
    async def apply(self, plural: str, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        metadata = manifest.get("metadata") or {}
        namespace = metadata.get("namespace")
        resource = _resource(str(manifest.get("apiVersion") or ""), plural, namespace, str(manifest.get("kind") or ""))
        return await self._client.patch(
            resource, str(metadata.get("name") or ""), manifest, namespace,
            content_type=APPLY, field_manager=self._owner, force=True,
        )  # fmt: skip

    @override
    async def delete(self, api_version: str, plural: str, name: str, namespace: str | None = None) -> None:
        try:
            await self._client.delete(_resource(api_version, plural, namespace), name, namespace)
        except NotFound:
            return


def _resource(api_version: str, plural: str, namespace: str | None, kind: str = "") -> Resource:
    group, slash, version = api_version.partition("/")
    return Resource(
        group if slash else "", version if slash else group, plural, kind or plural, namespaced=namespace is not None
    )
