"""Objects of effects in the API: applied for the Node, read, deleted, and found again if their record is lost."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dra_kit.author.cluster_object import ClusterObject, ObjectAddress
from dra_kit.client.api import APPLY, Client
from dra_kit.client.resources import Resource
from dra_kit.errors import NotFound, TransientError
from dra_kit.node.context import ClusterFacts
from dra_kit.node.effects.classes import stored_object
from dra_kit.node.effects.unrecorded import EffectMark
from dra_kit.node.state.records import EffectRecord

DRIVER_LABEL: Final = "dra-kit/driver"
NODE_LABEL: Final = "dra-kit/node"
"""With the driver's label, selects a node's objects; a node name too long for a label is cut and hashed."""
MARK: Final = "dra-kit/effect"
"""The annotation with the object's :class:`dra_kit.node.effects.unrecorded.EffectMark`."""
_LONGEST_LABEL: Final = 63
_LOOKS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between two checks; the last one repeats


class ClusterObjects:
    """The :class:`dra_kit.author.cluster_object.ClusterObjectClient` of a node.

    ``client`` needs the verbs of ``ClusterObject.rules``. The driver is the field manager of its objects, and the Node
    owns them. A release waits ``patience`` seconds until a deleted object is gone; the kubelet asks again.
    """

    def __init__(
        self,
        client: Client,
        driver: str,
        facts: ClusterFacts,
        *,
        records: Callable[[], Sequence[EffectRecord]] = tuple,
        patience: float = 20.0,
    ) -> None:
        self._client = client
        self._driver = driver
        self._facts = facts
        self._records = records
        self._patience = patience

    async def apply(self, address: ObjectAddress, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`dra_kit.author.cluster_object.ClusterObjectClient`."""
        owner = await self._facts.owner()
        reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        # the Node controls a pod, like a static one: a drain refuses pods without a controller, and a ReplicaSet may
        # adopt them. Other objects may have their own controller; the Node only owns them, so that they do not outlive
        # it.
        controller = {"controller": True} if address.kind == "Pod" else {}
        metadata = {**(body.get("metadata") or {}), "name": address.name, "ownerReferences": [reference | controller]}
        metadata["labels"] = {**(metadata.get("labels") or {}), **self._labels(owner.name)}
        record = next((item for item in self._records() if stored_object(item) == address), None)
        if record is not None:
            metadata["annotations"] = {
                **(metadata.get("annotations") or {}),
                MARK: EffectMark.of(record).model_dump_json(),
            }
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
        """See :class:`dra_kit.author.cluster_object.ClusterObjectClient`."""
        try:
            return await self._client.get(_resource(address), address.name, address.namespace or None)
        except NotFound:
            return None

    async def delete(self, address: ObjectAddress) -> None:
        """See :class:`dra_kit.author.cluster_object.ClusterObjectClient`."""
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
                    f"{address} is being deleted but still exists, its finalizers: {finalizers}; check the controllers "
                    "that must remove them; the deletion is retried",
                    code="object-not-gone",
                )
            await asyncio.sleep(next(looks, _LOOKS[-1]))

    async def found(self, effect: type[ClusterObject], namespace: str) -> list[EffectMark]:
        """Return the marks of this node's objects of an effect, in a namespace that only this driver uses.

        Raises:
            DraKitError: the API server rejects the request or cannot be reached.
        """
        owner = await self._facts.owner()
        example = ObjectAddress(effect.object_api_version, effect.object_kind, effect.object_plural, namespace, name="")
        selector = ",".join(f"{name}={value}" for name, value in self._labels(owner.name).items())
        listed = await self._client.list(_resource(example), namespace, label_selector=selector)
        marks = []
        for item in listed.items:
            metadata = item["metadata"]
            mark = EffectMark.read((metadata.get("annotations") or {}).get(MARK, ""))
            owners = {reference["uid"] for reference in metadata.get("ownerReferences") or ()}
            is_this = mark is not None and stored_object(mark.record()) == replace(example, name=metadata["name"])
            if mark is not None and is_this and mark.effect == effect.effect_id and owner.uid in owners:
                marks.append(mark)
        return marks

    def _labels(self, node: str) -> dict[str, str]:
        digest = hashlib.blake2b(node.encode(), digest_size=8).hexdigest()
        short = node if len(node) <= _LONGEST_LABEL else f"{node[: _LONGEST_LABEL - len(digest) - 1]}-{digest}"
        return {DRIVER_LABEL: self._driver, NODE_LABEL: short}


class ClusterObjectFinder:
    """Finds objects of a driver's effects on this node, in the namespaces that the effects declare.

    If an effect declares no namespaces, its objects are not searched for: other users could create similar objects.
    """

    def __init__(self, keeper: ClusterObjects, effects: Iterable[type[Any]], settings: Any) -> None:
        self._keeper = keeper
        self._where = [
            (effect, namespace)
            for effect in effects
            if issubclass(effect, ClusterObject)
            for namespace in effect.namespaces(settings) or ()
        ]

    async def found(self) -> list[EffectMark]:
        """See :class:`dra_kit.node.effects.unrecorded.EffectFinder`."""
        return [mark for effect, namespace in self._where for mark in await self._keeper.found(effect, namespace)]


def _resource(address: ObjectAddress) -> Resource:
    group, _, version = address.api_version.rpartition("/")
    return Resource(group, version, address.plural, address.kind, bool(address.namespace))
