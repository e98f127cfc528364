"""Objects of effects in the API: applied for the Node, read, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from dra_kit.author.effects.cluster_object import ObjectAddress
from dra_kit.errors import NotFound, TransientError
from dra_kit.kube.client import APPLY, Client
from dra_kit.kube.resources import Resource
from dra_kit.node.server_facts import ServerFacts

_LOOKS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between looks, the last one again and again


class ClusterObjects:
    """The :class:`dra_kit.author.effects.cluster_object.ObjectKeeper` of a node.

    Args:
        client: needs the verbs of ``ClusterObject.rules``.
        driver: the driver's name, the field manager of what it applies.
        facts: know the Node that owns the objects.
        patience: seconds that a release waits for a deleted object to go; the kubelet asks again.
    """

    def __init__(self, client: Client, driver: str, facts: ServerFacts, *, patience: float = 20.0) -> None:
        self._client = client
        self._driver = driver
        self._facts = facts
        self._patience = patience

    async def apply(self, address: ObjectAddress, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`dra_kit.author.effects.cluster_object.ObjectKeeper`."""
        owner = await self._facts.owner()
        reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        # of a pod as of a static one: a drain refuses pods that have no controller, and a ReplicaSet may adopt them.
        # Other objects may have one of their own; the Node does not manage them, they only must not outlive it.
        controller = {"controller": True} if address.kind == "Pod" else {}
        metadata = {**(body.get("metadata") or {}), "name": address.name, "ownerReferences": [reference | controller]}
        if address.namespace:
            metadata["namespace"] = address.namespace
        whole = {**body, "apiVersion": address.api_version, "kind": address.kind, "metadata": metadata}
        return await self._client.patch(
            _resource(address),
            address.name,
            whole,
            address.namespace or None,
            content_type=APPLY,
            field_manager=self._driver,
            force=True,
            strict=True,
        )

    async def get(self, address: ObjectAddress) -> Mapping[str, Any] | None:
        """See :class:`dra_kit.author.effects.cluster_object.ObjectKeeper`."""
        try:
            return await self._client.get(_resource(address), address.name, address.namespace or None)
        except NotFound:
            return None

    async def delete(self, address: ObjectAddress) -> None:
        """See :class:`dra_kit.author.effects.cluster_object.ObjectKeeper`."""
        try:
            await self._client.delete(_resource(address), address.name, address.namespace or None)
        except NotFound:
            return
        deadline = asyncio.get_running_loop().time() + self._patience
        looks = iter(_LOOKS)
        while (left := await self.get(address)) is not None:
            if asyncio.get_running_loop().time() > deadline:
                finalizers = ", ".join(left["metadata"].get("finalizers") or ()) or "none"
                raise TransientError(
                    f"{address} is deleted and not gone, its finalizers: {finalizers}; see who has to remove them; "
                    "it is tried again",
                    code="object-not-gone",
                )
            await asyncio.sleep(next(looks, _LOOKS[-1]))


def _resource(address: ObjectAddress) -> Resource:
    group, _, version = address.api_version.rpartition("/")
    return Resource(group, version, address.plural, address.kind, bool(address.namespace))
