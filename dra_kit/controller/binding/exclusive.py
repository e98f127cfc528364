"""Which claim a device is bound for: another one waits until it is released there."""

from __future__ import annotations

import asyncio

from dra_kit.controller.binding.conditions import Attachment, Place


class Holders:
    """Belongs to one event loop. Claims with admin access neither hold nor wait."""

    def __init__(self) -> None:
        self._holders: dict[Place, str] = {}
        self._freed = asyncio.Condition()

    def restore(self, attachment: Attachment) -> None:
        """Note that a claim has the device already."""
        if not attachment.device.admin_access:
            self._holders.setdefault(attachment.place, attachment.claim.uid)

    async def take(self, attachment: Attachment) -> None:
        """Wait until no other claim holds the device, and take it."""
        if attachment.device.admin_access:
            return
        uid = attachment.claim.uid
        async with self._freed:
            await self._freed.wait_for(lambda: self._holders.get(attachment.place, uid) == uid)
            self._holders[attachment.place] = uid

    async def free(self, attachment: Attachment) -> None:
        """Note that it was released."""
        async with self._freed:
            if self._holders.get(attachment.place) == attachment.claim.uid:
                del self._holders[attachment.place]
                self._freed.notify_all()
