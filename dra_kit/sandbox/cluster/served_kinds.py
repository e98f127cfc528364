"""The kinds of objects that an API server serves, as its discovery tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.resources import Resource
from dra_kit.errors import ConfigurationError, NotFound

_API_VERSION: Final = re.compile(r"([a-z0-9.-]+/)?[a-z0-9]+")


class ServedKinds:
    """The resources of a server by apiVersion and kind.

    Args:
        client: of the server.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, dict[str, Resource]] = {}

    async def resource(self, where: str, body: Mapping[str, Any]) -> Resource:
        """Return the resource of an object.

        Args:
            where: it stands, for the error.
            body: the object.

        Raises:
            ConfigurationError: the server does not serve its apiVersion and kind.
            KubeError: the server does not answer.
        """
        version, kind = str(body.get("apiVersion") or ""), str(body.get("kind") or "")
        if _API_VERSION.fullmatch(version) and kind not in self._known.get(version, {}):
            self._known[version] = await self._discover(version)  # again: a CustomResourceDefinition may be new
        found = self._known.get(version, {}).get(kind)
        if found is None:
            raise ConfigurationError(
                f"{where}: the API server has no kind {kind or '(none)'} of {version or '(no apiVersion)'}; "
                "correct apiVersion and kind"
            )
        return found

    async def _discover(self, version: str) -> dict[str, Resource]:
        group, _, name = version.rpartition("/")
        path = f"/apis/{version}" if group else f"/api/{version}"
        try:
            document = await self._client.get_path(path)
        except NotFound:
            return {}
        return {
            item["kind"]: Resource(group, name, item["name"], item["kind"], namespaced=item["namespaced"])
            for item in document["resources"]
            if "/" not in item["name"]
        }
