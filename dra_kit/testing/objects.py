"""Objects of effects, in memory: an API server, and the controllers of it, that the test plays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dra_kit.author.cluster_object import ObjectAddress


class MemoryObjects:
    """The :class:`dra_kit.author.cluster_object.ClusterObjectClient` of a bench.

    Args:
        node: name of the Node that owns them.
    """

    def __init__(self, node: str) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self._node = node
        self._made = 0

    async def apply(self, address: ObjectAddress, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`dra_kit.author.cluster_object.ClusterObjectClient`."""
        fields = json.loads(json.dumps(body))  # what the driver goes on changing is not the object
        known = self.objects.get(_key(address))
        if known is None:
            self._made += 1
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": f"uid-{self._node}"}
        metadata = {
            **(fields.get("metadata") or {}),
            "name": address.name,
            "uid": known["metadata"]["uid"] if known else f"uid-{self._made}-{address.name}",
            "ownerReferences": [owner],
        }
        if address.namespace:
            metadata["namespace"] = address.namespace
        whole = {**(known or {}), **fields, "apiVersion": address.api_version, "kind": address.kind}
        self.objects[_key(address)] = whole | {"metadata": metadata}
        return self.objects[_key(address)]

    async def get(self, address: ObjectAddress) -> Mapping[str, Any] | None:
        """See :class:`dra_kit.author.cluster_object.ClusterObjectClient`."""
        return self.objects.get(_key(address))

    async def delete(self, address: ObjectAddress) -> None:
        """See :class:`dra_kit.author.cluster_object.ClusterObjectClient`."""
        self.objects.pop(_key(address), None)


def _key(address: ObjectAddress) -> str:
    return f"{address.kind}/{address.name}"
