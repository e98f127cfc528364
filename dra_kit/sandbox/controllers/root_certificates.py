"""Each namespace gets a ConfigMap with the authority of the API server's certificate.

Source: Kubernetes 1.37 ``pkg/controller/certificates/rootcacertpublisher``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import CONFIG_MAPS, NAMESPACES
from dra_kit.errors import Conflict, Forbidden, NotFound
from dra_kit.kubernetes.resource.objects import ObjectKey
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

NAME: Final = "kube-root-ca.crt"
_DESCRIPTION: Final = "kubernetes.io/description"
_TEXT: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)


class RootCertificatePublisher:
    """Creates the ConfigMap, and restores it when it is changed or deleted.

    Args:
        authority: certificates as PEM.
    """

    def __init__(self, client: Client, informers: SharedInformers, authority: str) -> None:
        self._client = client
        self._data = {"ca.crt": authority}
        self._namespaces: Mapping[ObjectKey, Any] = informers.objects(NAMESPACES)
        self._known: Mapping[ObjectKey, Any] = informers.objects(CONFIG_MAPS)
        self._queue: WorkQueue[str] = WorkQueue("root certificates", self._sync)
        informers.listen(NAMESPACES, self._namespace_changed)
        informers.listen(CONFIG_MAPS, self._config_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run()

    def _namespace_changed(self, change: ObjectChange) -> None:
        if change.type != "DELETED":
            self._queue.add(change.object["metadata"]["name"])

    def _config_changed(self, change: ObjectChange) -> None:
        if change.object["metadata"]["name"] == NAME:
            self._queue.add(change.object["metadata"]["namespace"])

    async def _sync(self, namespace: str) -> None:
        home = self._namespaces.get(("", namespace))
        if home is None or "deletionTimestamp" in home["metadata"]:
            return
        found = self._known.get((namespace, NAME))
        if found is None:
            metadata = {"name": NAME, "annotations": {_DESCRIPTION: _TEXT}}
            # the namespace is just being deleted, or the informer does not know of the ConfigMap yet
            with suppress(NotFound, Forbidden, Conflict):
                await self._client.create(CONFIG_MAPS, {"metadata": metadata, "data": self._data}, namespace)
            return
        annotations = found["metadata"].get("annotations") or {}
        if found.get("data") == self._data and annotations.get(_DESCRIPTION):
            return
        metadata = {**found["metadata"], "annotations": {**annotations, _DESCRIPTION: _TEXT}}
        await self._client.update(CONFIG_MAPS, {**found, "metadata": metadata, "data": self._data})
