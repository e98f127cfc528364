"""The one object of the cluster that a node's policy looks at."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dra_kit.author.devices.policy import WatchedObject
from dra_kit.errors import KubeError, NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.informer import Informer
from dra_kit.kube.resources import Resource

logger: logging.Logger = logging.getLogger(__name__)

AGAIN: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds until a kind that does not exist, or may not be read, is asked for again; the last one repeats."""


class Watched:
    """Follows the object.

    Args:
        client: of the node.
        what: its kind.
        node_name: its name.
        changed: called when it is known, and whenever it changes.
        again: seconds until what was refused is asked for again.

    Attributes:
        known: whether it is known what it is, or that there is none.
        object: as it is; None when there is none.
    """

    def __init__(
        self,
        client: Client,
        what: WatchedObject,
        node_name: str,
        changed: Callable[[], None],
        *,
        again: Sequence[float] = AGAIN,
    ) -> None:
        self._client = client
        # of a custom kind the API server sends the kind with every object
        self._resource = Resource(what.group, what.version, what.plural, what.plural, namespaced=False)
        self._node_name = node_name
        self._changed = changed
        self._again = again
        self._reported = ""
        self.known: bool = False
        self.object: Mapping[str, Any] | None = None

    async def follow(self) -> None:
        """Follow it until cancelled."""
        for attempt in itertools.count():
            informer = Informer(self._client, self._resource, field_selector=f"metadata.name={self._node_name}")
            synced = asyncio.ensure_future(self._when_synced(informer))
            try:
                async for change in informer.changes():
                    self._reported = ""
                    self._set(None if change.type == "DELETED" else change.object)
            except NotFound:
                self._trouble("the kind does not exist in the cluster", "create its CustomResourceDefinition")
                self._set(None)
            except KubeError as error:
                self._trouble(
                    str(error), "install the chart with the values that dra-kit chart TARGET --values FILE makes"
                )
            finally:
                synced.cancel()
            await asyncio.sleep(self._again[min(attempt, len(self._again) - 1)])

    async def _when_synced(self, informer: Informer) -> None:
        await informer.synced.wait()
        if not informer.objects:
            self._set(None)

    def _set(self, found: Mapping[str, Any] | None) -> None:
        if self.known and found == self.object:
            return
        self.known, self.object = True, found
        self._changed()

    def _trouble(self, error: str, remedy: str) -> None:
        if error != self._reported:
            logger.warning(
                "what the policy watches is not there",
                extra={"object": f"{self._resource.full_name} {self._node_name}", "error": error, "remedy": remedy},
            )
        self._reported = error
