"""The processes of one driver on one node: which ones run, which started last, and when one takes over."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dra_kit.client.informer import retry_delay
from dra_kit.errors import DraKitError, StoreError
from dra_kit.node.locks import lock_error

_SUFFIX: Final = ".lock"
_STARTING: Final = b"starting"
"""Content of the file of a process that has nothing to publish yet; older releases leave the file empty instead."""
_STOPPING: Final = b"stopping"
"""Content of the file of a process that accepts no more calls of the kubelet."""


class DriverProcesses:
    """The driver's processes on this node: each has its own file and holds flock(2) on it while it runs.

    The kernel releases that lock however a process exits. A process that exits cleanly removes its file too, so a file
    that is not locked belongs to a killed process. If a process finds another's file when it starts, the other one is
    older; if the file appears later, the other one is younger, whatever its release. No clock is needed for that.

    A file has two lines. The first is the state of its process: ``starting``, empty once it publishes, ``stopping``.
    The second is the number of younger processes that have taken over from it; it is missing before the first takeover.

    All methods raise a StoreError if a file cannot be opened, created or written. The directory of the files is on a
    local file system, and is created if missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: tuple[Path, int] | None = None  # with the descriptor that holds the lock
        self._elders: set[Path] = set()
        self._publishes = False

    @contextmanager
    def present(self) -> Iterator[None]:
        """Mark this process as running, so that no other process treats its work as a leftover."""
        path = self._directory / f"{secrets.token_hex(8)}{_SUFFIX}"
        with self._alone():  # of two that start at the same time, both agree which one is older
            self._own = path, self._create_file(path)
            self._elders = self._others()
        try:
            yield
        finally:
            _remove(*self._own)
            self._own = None

    def publishes(self) -> None:
        """Note that this process knows its devices now: from here on, older processes leave the slices to it."""
        if self._own is not None and not self._publishes:
            self._write_state(b"")
            self._publishes = True

    def stops(self) -> None:
        """Note that this process accepts no more calls: a younger one need not wait for it any longer."""
        self._write_state(_STOPPING)

    def _write_state(self, state: bytes) -> None:
        if self._own is None:
            return
        path, file = self._own
        try:
            os.pwrite(file, state, 0)
            os.ftruncate(file, len(state))
        except OSError as error:
            raise lock_error(path, error) from error

    def is_succeeded(self) -> bool:
        """Return whether a younger process runs and publishes: then this one leaves the slices to it."""
        younger = self._others() - self._elders
        return any(_lives(path) and _read(path)[0] not in {_STARTING, _STOPPING} for path in younger)

    def is_preceded(self) -> bool:
        """Return whether an older process runs and accepts calls, or will."""
        return bool(self._serving_elders())

    def takes_over(self) -> None:
        """Record in the file of each older process that this one takes over from it now."""
        for path in self._serving_elders():
            word, outlived = _read(path)
            try:
                with path.open("r+b", buffering=0) as file:
                    file.write(b"%s\n%d" % (word, outlived + 1))
            except FileNotFoundError:
                continue  # it has just exited
            except OSError as error:
                raise lock_error(path, error) from error

    def outlived(self) -> int:
        """Return how many processes took over from an older one that still runs, and exited before it."""
        return max((_read(path)[1] for path in self._serving_elders()), default=0)

    def _serving_elders(self) -> list[Path]:
        return [path for path in self._elders if _lives(path) and _read(path)[0] != _STOPPING]

    def has_others(self) -> bool:
        """Return whether another process of the driver runs."""
        return any(map(_lives, self._others()))

    def _others(self) -> set[Path]:
        """Return the files of other processes, including dead ones."""
        return set(self._directory.glob(f"*{_SUFFIX}")) - {self._own[0] if self._own is not None else None}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevent other processes from starting at this moment."""
        try:
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            file = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise lock_error(self._directory / _SUFFIX, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _create_file(self, path: Path) -> int:
        """Create and lock this process's file; return its descriptor."""
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            while (file := _locked(path, os.O_CREAT)) is None:
                pass  # another process found it before it was locked, and will remove it as a leftover
        except OSError as error:
            raise lock_error(path, error) from error
        if not self._publishes:
            os.write(file, _STARTING)
        return file

    def sweep(self) -> tuple[int, int]:
        """Remove the files of killed processes; create the file of this process again if it was removed.

        A process that started while an older one runs leaves those files to the older one: the process that removes a
        file also finishes the work of the killed process.

        Returns:
            The number of removed files, and the number of other running processes.
        """
        if self._own is not None:
            own, held = self._own
            if not os.path.lexists(own):  # the directory was removed
                self._own = own, self._create_file(own)
                os.close(held)
        preceded = self.is_preceded()
        dead: list[tuple[Path, int]] = []
        others = 0
        for path in self._others():
            try:
                file = _locked(path, 0)
            except FileNotFoundError:
                continue  # it has exited cleanly
            except OSError as error:
                for _, other in dead:
                    os.close(other)  # they are counted once all files can be read
                raise lock_error(path, error) from error
            if file is None:
                others += 1
            else:
                dead.append((path, file))
        if preceded:
            for _, file in dead:
                os.close(file)
            return 0, others
        for path, file in dead:
            _remove(path, file)
        return len(dead), others


def _locked(path: Path, flags: int) -> int | None:
    """Return the descriptor of the locked file; None if another process has locked it, or has just removed it."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _lives(path: Path) -> bool:
    try:
        file = _locked(path, 0)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise lock_error(path, error) from error
    if file is not None:
        os.close(file)  # swept later
    return file is None


def _read(path: Path) -> tuple[bytes, int]:
    """Return the state of a process, and the number of takeovers from it; a process that has exited is ``stopping``."""
    try:
        word, _, outlived = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return _STOPPING, 0
    except OSError as error:
        raise lock_error(path, error) from error
    return word, int(outlived) if outlived.isdigit() else 0


def _remove(path: Path, file: int) -> None:
    with suppress(OSError):  # the file then looks like that of a killed process, and is swept
        path.unlink(missing_ok=True)
    os.close(file)


logger: logging.Logger = logging.getLogger(__name__)
LOOK_EVERY: Final = 0.1
"""Seconds between two checks whether the older process still serves, and whether this one can."""
LOG_AFTER: Final = 10.0
"""Seconds after which the reason for the wait is logged: an ordinary update takes less."""
_TRY_AGAIN: Final = 10.0
"""Seconds between two attempts to publish while a process has to prove that it is stable."""
_DOUBLED_AT_MOST: Final = 4


class Takeover:
    """Waits until this process may take over.

    Args:
        missing: returns what this process needs before it can serve, one line each; empty if it can serve.
        publishable: returns when the API server would accept the slices.
        settle: seconds that this process must have been able to serve, if another process took over from the same older
            process and has exited; twice as long after the second one, and so on, up to sixteen times as long.

    Attributes:
        done: set once the kubelet calls this process.
        waits_for: what it waits for, as text; empty while it does not wait. Thread-safe.
    """

    def __init__(
        self,
        processes: DriverProcesses,
        *,
        missing: Callable[[], Sequence[str]],
        publishable: Callable[[], Awaitable[None]],
        settle: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes = processes
        self._missing = missing
        self._publishable = publishable
        self._settle = settle
        self._clock = clock
        self._logged = ""
        self.done: asyncio.Event = asyncio.Event()
        self.waits_for: str = ""

    async def turn(self) -> bool:
        """Wait until this process may register; return whether an older one serves at the same time.

        Without an older process, it does not wait.
        """
        if not self._is_preceded():
            return False
        logger.info("registration is deferred until this process can serve; an older one serves meanwhile")
        self._defer("it is starting")
        able = asyncio.create_task(self._until_able())
        logging_ = asyncio.get_running_loop().call_later(LOG_AFTER, self._log)
        try:
            while (preceded := self._is_preceded()) and not able.done():
                await asyncio.wait({able}, timeout=LOOK_EVERY)
            if able.done():
                able.result()
        finally:
            logging_.cancel()
            able.cancel()
            await asyncio.wait({able})
        self.waits_for = ""
        why = "it can serve" if preceded else "the older process has exited"
        logger.info("this process takes over", extra={"reason": why})
        if preceded:
            try:
                self._processes.takes_over()
            except StoreError as error:  # the next process then takes over sooner
                logger.warning("takeover cannot be recorded", extra={"error": str(error), "code": error.code})
        return preceded

    async def confirmed(self, is_registered: Callable[[], bool]) -> None:
        """Wait until the kubelet has registered this process, or no older one runs that it could call instead."""
        self.waits_for = "the kubelet has not registered this process yet; an older one serves meanwhile"
        while not is_registered() and self._is_preceded():  # noqa: ASYNC110 - depends on other processes and a thread
            await asyncio.sleep(LOOK_EVERY)
        self.waits_for = ""

    def ends(self) -> None:
        """Note that this process accepts no more calls."""
        try:
            self._processes.stops()
        except StoreError as error:  # a younger process then waits until this one has exited
            logger.warning(
                "the stop of this process cannot be recorded", extra={"error": str(error), "code": error.code}
            )

    async def _until_able(self) -> None:
        """Wait until this process can serve, and has been able to for the required time."""
        since: float | None = None
        attempt = 0
        while True:
            if missing := self._missing():
                since = None
                self._defer("; ".join(missing))
                await asyncio.sleep(LOOK_EVERY)
                continue
            try:
                await self._publishable()
            except DraKitError as error:
                since = None
                self._defer(f"its devices cannot be published: {error}", error)
                await asyncio.sleep(max(retry_delay(attempt), LOOK_EVERY))
                attempt += 1
                continue
            attempt = 0
            since = self._clock() if since is None else since
            outlived, settle = self._needed()
            seconds = self._clock() - since
            if seconds >= settle:
                return
            others = "1 process" if outlived == 1 else f"{outlived} processes"
            self._defer(
                f"it has been ready for {seconds:.0f} of {settle:.0f} s, because {others} before it exited early"
            )
            await asyncio.sleep(min(settle - seconds, _TRY_AGAIN))

    def _needed(self) -> tuple[int, float]:
        """Return how many processes have exited too early, and the resulting seconds to wait."""
        try:
            outlived = self._processes.outlived()
        except StoreError:  # reported by the check for older processes
            outlived = 0
        return outlived, self._settle * 2 ** min(outlived - 1, _DOUBLED_AT_MOST) if outlived else 0.0

    def _defer(self, reason: str, error: DraKitError | None = None) -> None:
        self.waits_for = (
            f"registration is deferred until this process can serve, and an older one serves meanwhile: {reason}"
        )
        if error is not None and str(error) != self._logged:
            self._logged = str(error)
            logger.error("slices cannot be published yet", extra={"error": str(error), "code": error.code})

    def _log(self) -> None:
        logger.warning("update is waiting", extra={"reason": self.waits_for})

    def _is_preceded(self) -> bool:
        try:
            return self._processes.is_preceded()
        except StoreError as error:  # a failing disk proves nothing about another process
            if str(error) != self._logged:
                self._logged = str(error)
                logger.error(
                    "other processes of the driver cannot be checked", extra={"error": str(error), "code": error.code}
                )
            return bool(self.waits_for)
