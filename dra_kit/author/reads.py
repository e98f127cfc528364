"""``Reads``, ``ReadApi`` and ``ClusterApi``: objects of the cluster, for the code on a node and in the controller."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from dra_kit.author.calls import PendingResult
from dra_kit.author.model import short_repr
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.names import label_errors

_API_VERSION: Final = re.compile(r"(?:[a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?v[0-9]+(?:(?:alpha|beta)[0-9]+)?").fullmatch
_PLURAL: Final = re.compile(r"[a-z][a-z0-9-]*").fullmatch
CLUSTER_SCOPED: Final = frozenset({"nodes", "namespaces", "persistentvolumes", "componentstatuses"})
"""Core kinds without a namespace (Kubernetes 1.37)."""
ReadVerb: TypeAlias = Literal["get", "list"]


@dataclass(frozen=True, slots=True)
class Reads:
    """Objects of one kind that the code on a node reads, in ``Driver(reads=[…])``.

    ``self.context.api`` reads these objects and no others. The values that ``dra-kit chart TARGET --values FILE``
    writes give the node's account ``get`` and ``list`` for them: in the whole cluster, or with ``namespace`` in that
    namespace only. Every user of a node's token can read them too, so declare as little as possible.

    Args:
        api_version: such as ``k8s.cni.cncf.io/v1``, or ``v1`` for core kinds.
        plural: of the kind, as in paths and RBAC rules, such as ``network-attachment-definitions``.
        namespace: the only namespace; None for all namespaces, or for a kind without. A function gets the driver's
            settings and returns it, for a namespace that is known only where the driver is deployed.
        names: the only objects, which then cannot be listed; empty for all.

    Raises:
        ConfigurationError: one of them cannot be part of an API path, or Secrets of all namespaces would be readable.
    """

    api_version: str
    plural: str
    namespace: str | Callable[[Any], str] | None = None
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.api_version, str) or not _API_VERSION(self.api_version):
            raise ConfigurationError(
                f"Reads: api_version {short_repr(self.api_version)} is not valid; write 'v1' for core kinds, and "
                "GROUP/VERSION for others, such as 'k8s.cni.cncf.io/v1'"
            )
        if not isinstance(self.plural, str) or not _PLURAL(self.plural):
            raise ConfigurationError(
                f"Reads: plural {short_repr(self.plural)} is not valid; write the plural of the kind in lower case, "
                "such as 'configmaps'"
            )
        if isinstance(self.namespace, str) and label_errors(self.namespace, "namespace"):
            raise ConfigurationError(
                f"Reads: namespace {short_repr(self.namespace)} is not the name of a namespace; correct it, or leave "
                "it out for all namespaces"
            )
        if isinstance(self.names, str) or not all(isinstance(name, str) and name for name in self.names):
            raise ConfigurationError(
                f"Reads: names {short_repr(self.names)} is not a list of names; write names=['menu']"
            )
        if (self.api_version, self.plural) == ("v1", "secrets") and self.namespace is None:
            raise ConfigurationError(
                "Reads: secrets of all namespaces would be readable with the token of any node; write namespace=… and, "
                "if possible, names=[…]"
            )

    @property
    def group(self) -> str:
        """The API group; empty for core kinds."""
        return self.api_version.rpartition("/")[0]

    def namespace_for(self, settings: Any) -> str | None:
        """Return the only namespace, for a driver with these settings; None for all.

        Raises:
            ConfigurationError: the function of the settings fails, or does not return the name of a namespace.
        """
        return declared_namespace("Reads", self.namespace, settings)

    def rule(self) -> dict[str, list[str]]:
        """Return what the node's ServiceAccount needs, as a PolicyRule of rbac.authorization.k8s.io/v1."""
        rule = {"apiGroups": [self.group], "resources": [self.plural]}
        if self.names:
            return {**rule, "resourceNames": [*self.names], "verbs": ["get"]}
        return {**rule, "verbs": ["get", "list"]}

    def covers(self, settings: Any, verb: ReadVerb, name: str, namespace: str | None) -> bool:
        """Return whether an object of the kind, or a list of them, may be read with that rule."""
        inside = self.namespace_for(settings)
        return (inside is None or inside == namespace) and (not self.names or (verb == "get" and name in self.names))


def declared_namespace(title: str, namespace: str | Callable[[Any], str] | None, settings: Any) -> str | None:
    """Return the namespace of a declaration for a driver with these settings; None if it names none.

    Raises:
        ConfigurationError: its function of the settings fails, or does not return the name of a namespace: the rights
            would then be those for all namespaces.
    """
    if not callable(namespace):
        return namespace
    try:
        found: object = namespace(settings)
    except Exception as error:  # the author's function may fail in any way
        raise ConfigurationError(
            f"{title}: the function of namespace failed with the driver's settings: {type(error).__name__}: {error}; "
            "correct it, or the settings"
        ) from error
    # in the settings of deploy/values.yaml, {{ … }} is replaced by helm
    if isinstance(found, str) and ("{{" in found or not label_errors(found, "namespace")):
        return found
    raise ConfigurationError(
        f"{title}: the function of namespace returned {short_repr(found)}, which is not the name of a namespace; "
        "correct it, or the driver's settings"
    )


class ReadApi(ABC):
    """Reads the objects that ``Driver(reads=[…])`` declares, on a node: ``self.context.api``.

    ``await self.context.api.get(…)`` in ``async def``, ``self.context.api.get(…).result()`` in ``def``. Each call is
    one request, with the node's account: usually some milliseconds, at most 30 seconds if the API server does not
    respond. Nothing is stored, watched or retried. A ``prepare`` that reads waits for the API server, and fails while
    that cannot be reached; the kubelet retries it.

    An object is identified by its ``apiVersion``, the plural of its kind as in RBAC rules, and its name; ``namespace``
    is for namespaced kinds. Objects are as the API server sent them.
    """

    @abstractmethod
    def get(
        self, api_version: str, plural: str, name: str, namespace: str | None = None
    ) -> PendingResult[Mapping[str, Any] | None]:
        """Return one object; None if it does not exist.

        Raises:
            ConfigurationError: it is not declared; the message says what to add (code ``undeclared-read``).
            DraKitError: from the result: the API server rejects the request, does not serve the kind, or does not
                respond.
        """

    @abstractmethod
    def list(
        self, api_version: str, plural: str, namespace: str | None = None, *, label_selector: str = ""
    ) -> PendingResult[Sequence[Mapping[str, Any]]]:
        """Return all objects of a kind, in one namespace or in all; ``label_selector`` such as ``app=oven``.

        Raises:
            ConfigurationError: they are not declared; the message says what to add (code ``undeclared-read``).
            DraKitError: from the result, as for :meth:`get`.
        """


class ClusterApi(ReadApi):
    """Objects of the cluster, with the controller's rights: ``self.context.cluster``, and ``memo.cluster`` of handlers.

    ``controller.extraRules`` in the chart's values adds rights; nothing has to be declared in the code. ``await`` each
    result in ``async def``, or call ``result()`` on it in ``def``. It raises a DraKitError if the API server rejects
    the request or does not respond within 30 seconds.
    """

    @abstractmethod
    def apply(
        self, plural: str, manifest: Mapping[str, Any], *, subresource: str = ""
    ) -> PendingResult[Mapping[str, Any]]:
        """Apply the manifest (server-side apply, field manager ``<driver>/controller``); return the stored object.

        Fields of the manifest that another field manager owns are taken over. With ``subresource="status"``, only the
        ``status`` of an existing object is changed; RBAC names this right ``<plural>/status``.
        """

    @abstractmethod
    def delete(self, api_version: str, plural: str, name: str, namespace: str | None = None) -> PendingResult[None]:
        """Delete an object; an object that is already gone is not an error."""
