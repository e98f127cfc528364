"""Whether this process is the active one; what only one process may do asks here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping


class Leadership:
    """Set by the elector, read by everybody else; belongs to one event loop.

    Args:
        alone: it is the active one from the beginning to the end: there is no election.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self._gained = asyncio.Event()
        self._lost = asyncio.Event()
        self._renewals: list[Callable[[Mapping[str, str]], None]] = []
        (self._gained if alone else self._lost).set()

    @property
    def leading(self) -> bool:
        """Whether it is the active one now."""
        return self._gained.is_set()

    async def gained(self) -> None:
        """Wait until it is the active one."""
        await self._gained.wait()

    async def lost(self) -> None:
        """Wait until it is not the active one."""
        await self._lost.wait()

    def set(self, *, leading: bool) -> None:
        """Note that this process has become the active one, or has ceased to be; for the elector."""
        now, before = (self._gained, self._lost) if leading else (self._lost, self._gained)
        before.clear()
        now.set()

    def on_renewal(self, listener: Callable[[Mapping[str, str]], None]) -> None:
        """Call ``listener`` whenever the active one, this process or another, is seen to have renewed its lease.

        Args:
            listener: gets the annotations of the lease.
        """
        self._renewals.append(listener)

    def renewed(self, annotations: Mapping[str, str]) -> None:
        """Call the listeners: the lease was renewed, by this process or another; for the elector."""
        for listener in self._renewals:
            listener(annotations)
