"""What is different in a cluster after everything that was made in it has been deleted."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from dra_kit.client.resources import NAMESPACES, RESOURCE_CLAIMS
from dra_kit.errors import NotFound
from dra_kit.kubernetes.resource.objects import finalizer_note, object_key
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.stories.published import device_texts

if TYPE_CHECKING:
    from dra_kit.sandbox.stories.expectations.facts import Cluster


@dataclasses.dataclass(slots=True)
class Remains:
    """Compares a cluster with how it was.

    Attributes:
        cluster: to look at.
        namespace: that everything is made in, and which is deleted in the end; None: other namespaces, which stay.
    """

    cluster: Cluster
    namespace: str | None
    _claims: set[str] = dataclasses.field(default_factory=set, init=False)
    _node_state: set[str] = dataclasses.field(default_factory=set, init=False)
    _devices: set[str] = dataclasses.field(default_factory=set, init=False)

    async def note(self) -> None:
        """Note how the cluster is; without a call it is compared with an empty one."""
        self._node_state = set(await self.cluster.node_state())
        if self.namespace is None:
            self._claims = {claim["metadata"]["uid"] for claim in await self._all_claims()}
        else:
            self._devices = await device_texts(self.cluster)

    async def claims(self, own: Collection[tuple[str, str]] = ()) -> list[str]:
        """Return the claims that were not there before, each with what holds it.

        Args:
            own: namespaces and names of those that are left out.
        """
        new = (item for item in await self._all_claims() if item["metadata"].get("uid") not in self._claims)
        return [
            f"{self.title('ResourceClaim', item)}{finalizer_note(item)}" for item in new if object_key(item) not in own
        ]

    async def namespaces(self) -> list[str]:
        """Return the namespace while it is there, with what holds it."""
        if self.namespace is None:
            return []
        try:
            stored = await self.cluster.client.get(NAMESPACES, self.namespace)
        except NotFound:
            return []
        return [f"Namespace/{self.namespace}{finalizer_note(stored)}"]

    async def node(self) -> list[str]:
        """Return what the nodes keep for claims and did not keep before."""
        return sorted(set(await self.cluster.node_state()) - self._node_state)

    async def devices(self) -> list[str]:
        """Return the published devices that differ; in namespaces of others nothing is done that changes devices."""
        if self.namespace is None:
            return []
        before, now = self._devices, await device_texts(self.cluster)
        return sorted([f"{text} is published" for text in now - before] + [f"{text} is gone" for text in before - now])

    def title(self, kind: str, item: ObjectView) -> str:
        """Return how an object is named: ``<kind>/<name>`` as a story does, else with its namespace."""
        if self.namespace is None:
            return f"{kind} {'/'.join(filter(None, object_key(item)))}"
        return f"{kind}/{item['metadata']['name']}"

    async def _all_claims(self) -> Iterable[ObjectView]:
        return (await self.cluster.client.list(RESOURCE_CLAIMS, self.namespace)).items
