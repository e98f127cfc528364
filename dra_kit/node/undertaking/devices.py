"""The devices of a driver that is being removed: known for what is prepared, and not advertised any more."""

from __future__ import annotations

import asyncio

from dra_kit.publishing.discovery import Discovery


class KnownDevices:
    """A part of the process: finds the devices, so that a claim whose effects do not hold can be prepared again.

    Args:
        discovery: of the driver's provider.
    """

    name = "discovery"

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once: what is to be undone needs no device."""
        ready.set()
        await self._discovery.run(asyncio.Event())
