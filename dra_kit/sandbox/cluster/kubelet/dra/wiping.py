"""Deletes a node's ResourceSlices when their driver is gone, as the kubelet does.

Source: ``pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go`` of Kubernetes 1.37.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.errors import KubeError
from dra_kit.sandbox.cluster.kubelet.activity import Observer, PluginConnection, SlicesWiped

log: logging.Logger = logging.getLogger(__name__)

WIPING_DELAY: Final = 30.0
"""Seconds that a driver may be without a connection."""

_FIRST_RETRY: Final = 1.0
_LAST_RETRY: Final = 300.0


class SliceWiper:
    """Watches over the connections to drivers.

    Slices that name no node are nobody's here and stay.

    Args:
        client: to delete with.
        node_name: of the slices.
        connected: tells whether a driver has a connection.
        delay: seconds that a driver may be without one.
        time_scale: all waits are divided by this.
        observer: is notified of connections and deletions.
    """

    def __init__(
        self,
        client: Client,
        node_name: str,
        connected: Callable[[str], bool],
        *,
        delay: float = WIPING_DELAY,
        time_scale: float,
        observer: Observer,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._connected = connected
        self._delay = delay
        self._time_scale = time_scale
        self._observe = observer
        self._known: set[str] = set()
        self._due: dict[str, float] = {}  # drivers without a connection, and when their slices go
        self._news = asyncio.Event()

    def changed(self, driver: str) -> None:
        """Look at a driver's connections: with the last one gone a wait begins, which a new one ends."""
        connected = self._connected(driver)
        if connected == (driver in self._known):
            return
        self._observe(PluginConnection(driver, connected))
        if connected:
            self._known.add(driver)
            self._due.pop(driver, None)
        else:
            self._known.discard(driver)
            self._due[driver] = time.monotonic() + self._delay / self._time_scale
        self._news.set()

    async def run(self) -> None:
        """Delete what is due, until cancelled."""
        while True:
            self._news.clear()
            pause = min(self._due.values()) - time.monotonic() if self._due else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
            for driver, due in [item for item in self._due.items() if item[1] <= time.monotonic()]:
                await self._wipe(driver, due)
                if self._due.get(driver) == due:  # else the driver came and went meanwhile: another wait has begun
                    del self._due[driver]

    async def wipe_all(self) -> None:
        """Delete the node's slices of all drivers: again and again until the API server has done it."""
        await self._wipe("", None)

    async def _wipe(self, driver: str, due: float | None) -> None:
        selector = f"spec.nodeName={self._node_name}" + (f",spec.driver={driver}" if driver else "")
        delay = _FIRST_RETRY
        while self._due.get(driver) == due:
            try:
                await self._client.delete_collection(RESOURCE_SLICES, field_selector=selector)
            except KubeError as error:
                log.warning("ResourceSlices of node %s cannot be deleted now: %s", self._node_name, error)
                await asyncio.sleep(delay * random.uniform(1.0, 1.2) / self._time_scale)  # noqa: S311 - no secret
                delay = min(delay * 2, _LAST_RETRY)
            else:
                self._observe(SlicesWiped(driver))
                return
