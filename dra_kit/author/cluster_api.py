"""``ClusterApi``: the API server, for an author's kopf handlers in the controller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any


class ClusterApi(ABC):
    """Given to handlers as ``memo.cluster``, with the rights of the controller: ``controller.extraRules`` adds some.

    An object is identified by its ``apiVersion``, the plural of its kind as in RBAC rules, and its name; ``namespace``
    is for namespaced kinds. Every method raises a :class:`~dra_kit.DraKitError` where the API server refuses or does
    not answer.
    """

    @abstractmethod
    async def get(
        self, api_version: str, plural: str, name: str, namespace: str | None = None
    ) -> Mapping[str, Any] | None:
        """Return one object; None when there is none."""

    @abstractmethod
    async def list(
        self, api_version: str, plural: str, namespace: str | None = None, *, label_selector: str = ""
    ) -> Sequence[Mapping[str, Any]]:
        """Return all objects of a kind, of one namespace or of all."""

    @abstractmethod
    async def apply(self, plural: str, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make an object as the manifest says, by server-side apply as owner ``<driver>/controller``; as it is stored.

        Fields that somebody else has set and the manifest names are taken over.
        """

    @abstractmethod
    async def delete(self, api_version: str, plural: str, name: str, namespace: str | None = None) -> None:
        """Delete an object; one that is gone already is no error."""
