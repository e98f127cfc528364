"""All kinds that are served, built-in ones and those of CustomResourceDefinitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dra_kit.apiserver.kinds import events, pods, rbac, workloads
from dra_kit.apiserver.kinds.admission_registration import POLICY_KINDS, WEBHOOK_KINDS
from dra_kit.apiserver.kinds.core import CORE_KINDS, NODE_KINDS, STORED_KINDS
from dra_kit.apiserver.kinds.custom_resources import DEFINITION_KINDS
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.kinds.resource import RESOURCE_API_KINDS


class KindRegistry:
    """Finds kinds by group, version and plural."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds: dict[str, Kind] = {kind.full_name: kind for kind in kinds}
        self._custom: dict[str, Kind] = {}

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind that is served under group, version and plural."""
        kind = self.by_name(f"{plural}.{group}" if group else plural)
        return kind if kind is not None and version in kind.types else None

    def by_name(self, full_name: str) -> Kind | None:
        """Return the kind of ``<plural>.<group>``."""
        return self._kinds.get(full_name) or self._custom.get(full_name)

    def by_kind(self, api_version: str, name: str) -> Kind | None:
        """Return the kind of an object's ``apiVersion`` and ``kind``, in any version of the group."""
        group = api_version.rpartition("/")[0]
        return next((kind for kind in self if (kind.group, kind.kind) == (group, name)), None)

    def __iter__(self) -> Iterator[Kind]:
        yield from self._kinds.values()
        yield from self._custom.values()

    def serves(self, group: str, version: str) -> bool:
        """Return whether a group has a kind in a version."""
        return any(kind.group == group and version in kind.types for kind in self)

    def add(self, kind: Kind) -> None:
        """Serve a custom kind, in place of an earlier one of its name."""
        self._custom[kind.full_name] = kind

    def remove(self, full_name: str) -> None:
        """Stop serving a custom kind."""
        self._custom.pop(full_name, None)

    def clear(self) -> None:
        """Stop serving all custom kinds."""
        self._custom.clear()

    def is_custom(self, kind: Kind) -> bool:
        """Return whether a CustomResourceDefinition defines it."""
        return kind.full_name in self._custom


KINDS: Final[tuple[Kind, ...]] = (
    *CORE_KINDS,
    *rbac.RBAC_KINDS,
    *workloads.WORKLOAD_KINDS,
    *STORED_KINDS,
    *WEBHOOK_KINDS,
    *POLICY_KINDS,
    *pods.POD_KINDS,
    *NODE_KINDS,
    *events.EVENT_KINDS,
    *RESOURCE_API_KINDS,
    *DEFINITION_KINDS,
)
