"""Locks by name that hold across the processes of a rolling update."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from dra_kit.node.locks.byte_locks import ByteLocks

_FIRST_WAIT: Final = 0.002  # seconds until another process's lock is tried again, doubled up to the last
_LAST_WAIT: Final = 0.05


class _Queue(Struct):
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    ours: bool = False  # other processes are kept out


class Locks:
    """One lock for each name: first come first served within a process, one process at a time among several.

    Args:
        file: keeps other processes out; see :class:`ByteLocks`.
    """

    def __init__(self, file: Path) -> None:
        self._between = ByteLocks(file)
        self._here: dict[str, _Queue] = {}

    def hold(self, name: str) -> Holding:
        """Hold the lock of that name, waiting for it as long as it takes (``async with``)."""
        return Holding(name, self._here, self._between, wait=True)

    def try_hold(self, name: str) -> Holding:
        """Hold the lock of that name if nobody else does, here or in another process (``async with``)."""
        return Holding(name, self._here, self._between, wait=False)

    @asynccontextmanager
    async def hold_all(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of all these names (``async with``)."""
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):  # one order for everybody, so that nobody waits in a circle
                await stack.enter_async_context(self.hold(name))
            yield

    @asynccontextmanager
    async def try_hold_all(self, names: Iterable[str]) -> AsyncIterator[bool]:
        """Hold the locks of all these names, or give False and hold none of them (``async with``)."""
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):
                if not await stack.enter_async_context(self.try_hold(name)):
                    await stack.aclose()
                    yield False
                    return
            yield True

    def held_elsewhere(self, name: str) -> bool:
        """Return whether another process holds that lock now.

        Raises:
            StoreError: when that cannot be found out.
        """
        queue = self._here.get(name)
        return (queue is None or not queue.ours) and self._between.is_taken(name)


class NodeLocks(Struct, frozen=True):
    """The locks of a driver on a node, which its processes share.

    Attributes:
        claims: by UID.
        devices: by pool and name, while they are being prepared.
        calls: by what of the author's code does not overlap.
        effects: by the keys of effects.
        children: by the names of programs, held by the process that owns them.
    """

    claims: Locks
    devices: Locks
    calls: Locks
    effects: Locks
    children: Locks

    @classmethod
    def below(cls, directory: Path) -> NodeLocks:
        """Return the locks whose files are in a directory."""
        names = ("claims", "devices", "calls", "effects", "children")
        return cls(*(Locks(directory / f"{name}.lock") for name in names))


class Holding:
    """One use of a lock: a context manager that gives whether the lock is held, and gives it up at the end.

    It is a class, not a generator, because each claim that is prepared needs several.
    """

    __slots__ = ("_between", "_descriptor", "_here", "_name", "_queue", "_wait")

    def __init__(self, name: str, here: dict[str, _Queue], between: ByteLocks, *, wait: bool) -> None:
        self._name = name
        self._here = here
        self._between = between
        self._wait = wait
        self._queue: _Queue | None = None
        self._descriptor: int | None = None

    async def __aenter__(self) -> bool:
        return await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give_up()

    async def take(self) -> bool:
        """Return whether the lock is held now; False only where it was not to be waited for.

        Raises:
            StoreError: when other processes cannot be excluded.
        """
        queue = self._here.get(self._name)
        if queue is None:
            queue = self._here[self._name] = _Queue()
        elif not self._wait:
            return False
        queue.users += 1
        try:
            await queue.lock.acquire()
        except BaseException:
            self._leave(queue)
            raise
        self._queue = queue
        try:
            queue.ours = await self._keep_others_out()
        finally:
            if not queue.ours:
                self.give_up()
        return self._queue is not None

    async def _keep_others_out(self) -> bool:
        pause = _FIRST_WAIT
        while (descriptor := self._between.take(self._name)) is None:
            if not self._wait:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_WAIT)
        self._descriptor = descriptor
        return True

    def give_up(self) -> None:
        """Let the next one have the lock; does nothing where it is not held."""
        queue, self._queue = self._queue, None
        if queue is None:
            return
        queue.ours = False
        if self._descriptor is not None:
            self._between.give_up(self._descriptor)
        queue.lock.release()
        self._leave(queue)

    def _leave(self, queue: _Queue) -> None:
        queue.users -= 1
        if not queue.users:
            self._here.pop(self._name, None)
