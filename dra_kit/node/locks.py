"""Named locks that are shared by the processes of a rolling update, and the order of calls to the author's code."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, field

from dra_kit.errors import StoreError
from dra_kit.node.state.database_files import open_lock_file

_FIRST_WAIT: Final = 0.002  # seconds until another process's lock is tried again, doubled each time
_LAST_WAIT: Final = 0.05


class _Queue(Struct):
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    ours: bool = False  # other processes are excluded


class NamedLocks:
    """One lock for each name: first come, first served within a process; :class:`ByteLocks` exclude other processes."""

    def __init__(self, file: Path) -> None:
        self._between = ByteLocks(file)
        self._here: dict[str, _Queue] = {}

    def hold(self, name: str) -> HeldLock:
        """Return an ``async with`` context that holds the lock of that name, and waits for it without a timeout."""
        return HeldLock(name, self._here, self._between, wait=True)

    def try_hold(self, name: str) -> HeldLock:
        """Return an ``async with`` context that holds the lock of that name if no other task or process does."""
        return HeldLock(name, self._here, self._between, wait=False)

    @asynccontextmanager
    async def hold_all(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of all these names (``async with``)."""
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):  # the same order everywhere, to avoid deadlocks
                await stack.enter_async_context(self.hold(name))
            yield

    @asynccontextmanager
    async def try_hold_all(self, names: Iterable[str]) -> AsyncIterator[bool]:
        """Hold the locks of all these names, or yield False and hold none of them (``async with``)."""
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
            StoreError: that cannot be determined.
        """
        queue = self._here.get(name)
        return (queue is None or not queue.ours) and self._between.is_taken(name)


class NodeLocks(Struct, frozen=True):
    """The locks of a driver on a node, shared by its processes.

    Attributes:
        claims: by UID.
        devices: by pool and name, while they are being prepared.
        calls: by the calls of the author's code that must not overlap.
        effects: by the keys of effects.
        children: by the names of programs, held by the process that owns them.
    """

    claims: NamedLocks
    devices: NamedLocks
    calls: NamedLocks
    effects: NamedLocks
    children: NamedLocks

    @classmethod
    def below(cls, directory: Path) -> NodeLocks:
        """Return the locks whose files are in a directory."""
        names = ("claims", "devices", "calls", "effects", "children")
        return cls(*(NamedLocks(directory / f"{name}.lock") for name in names))


class HeldLock:
    """One use of a lock: a context manager that yields whether the lock is held, and releases it at the end.

    This is a class, not a generator, for speed: each prepared claim needs several.
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
        """Return whether the lock is held now; False only if the caller did not want to wait.

        Raises:
            StoreError: other processes cannot be excluded.
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
        """Release the lock to the next waiter; a no-op if it is not held."""
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


_LEVELS: Final = 3  # plugins/<driver>/locks in the kubelet's directory
_FLOCK: Final = struct.Struct("hhqqi0q")  # struct flock with 64 bits: type, whence, start, length, process


class ByteLocks:
    """fcntl(2) open file description locks: each name locks its own byte of the file, which need not exist.

    The kernel releases such a lock when its process exits, in whatever way. A separate file for each name would cost a
    claim more than all its reads of the database: changing a directory is slow.

    The file is on a local file system. It is created with its directory if missing, and never removed; the methods
    raise a StoreError if it cannot be created.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._path = str(file)  # opened for each claim

    def take(self, name: str) -> int | None:
        """Take the lock; return a value for :meth:`give_up`, or None if another process or another use here has it."""
        descriptor = self._open()
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, name))
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError | PermissionError):  # EAGAIN or EACCES: POSIX allows both
                return None
            raise lock_error(self._file, error) from error
        return descriptor

    def give_up(self, taken: int) -> None:
        """Release the lock."""
        # closing is not enough: a process that the author's code forked meanwhile has the same descriptor; and that
        # code may have closed it together with the lock, as some daemonizing libraries do
        try:
            try:
                fcntl.fcntl(taken, fcntl.F_OFD_SETLK, _EVERYTHING)
            finally:
                os.close(taken)
        except OSError:
            pass

    def is_taken(self, name: str) -> bool:
        """Return whether the lock is taken now, by any process."""
        # this only queries the lock, so that a concurrent attempt to take it still succeeds
        descriptor = self._open()
        try:
            found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, name))
        except OSError as error:
            raise lock_error(self._file, error) from error
        finally:
            os.close(descriptor)
        kind, *_ = _FLOCK.unpack(found)
        return bool(kind != fcntl.F_UNLCK)

    def _open(self) -> int:
        try:
            return open_lock_file(self._path, _LEVELS)
        except OSError as error:
            raise lock_error(self._file, error) from error


def lock_error(path: Path, error: OSError) -> StoreError:
    """Return the error about a lock file that cannot be opened or locked."""
    return StoreError(
        f"lock {path} cannot be taken: {error.strerror or error}; check that the disk is writable and not full "
        "(--state-dir)"
    )


def _flock(kind: int, name: str) -> bytes:
    """Return ``struct flock`` of the byte of a name; 62 bits distinguish any two names."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return _FLOCK.pack(kind, os.SEEK_SET, int.from_bytes(digest, "little") >> 2, 1, 0)


_EVERYTHING: Final = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)  # a length of 0: to the end


class CallSerializer:
    """Serializes calls of the author's code; calls for the same claim are serialized by the claim's own lock."""

    def __init__(self, concurrency: Literal["claim", "device", "driver"], locks: NamedLocks) -> None:
        self._concurrency = concurrency
        self._locks = locks

    def taken(self, devices: Iterable[tuple[str, str]]) -> AbstractAsyncContextManager[None]:
        """Return a context that waits until a call for these devices, by pool and name, may begin."""
        if self._concurrency == "driver":
            return self._locks.hold_all(["driver"])
        if self._concurrency == "device":
            return self._locks.hold_all("/".join(device) for device in devices)
        return nullcontext()
