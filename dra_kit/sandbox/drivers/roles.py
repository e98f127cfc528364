"""Roles that run in threads of the sandbox."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from dra_kit.client.credentials import Credentials
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.node.agent import NodeAgent
from dra_kit.node.settings import NodeSettings
from dra_kit.process.probes import hanging_calls, unready_parts
from dra_kit.sandbox.drivers.log import log_as_driver
from dra_kit.sandbox.drivers.sandbox_driver import DriverRelease

logger: logging.Logger = logging.getLogger(__name__)
STOP_SECONDS: Final = 25.0
"""A role drains for at most 20 seconds; a role that is blocked for longer is abandoned."""
HANGING_SECONDS: Final = 3.0
"""Seconds after which a stopping role does not wait any longer for a call of the driver's code."""
_POLL: Final = 0.02


class RoleThread:
    """Calls ``run`` in a thread: it runs one role until it is cancelled by :meth:`stop`.

    Args:
        name: the name of the role, and of the thread.
        run: runs the role.
        driver: the driver whose role it is.
    """

    def __init__(self, name: str, run: Callable[[], Coroutine[Any, Any, int]], *, driver: str = "") -> None:
        self.name = name
        self._driver = driver
        self._run = run
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[int] | None = None
        self._stopping = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._then: list[Callable[[], object]] = []
        self.failure: str = ""
        """Why the role exited unexpectedly; empty if it did not."""
        self.exit_code: int | None = None
        """The exit code with which it exited unexpectedly; None if it raised."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def when_ended(self, then: Callable[[], None]) -> None:
        """Call ``then`` in the running event loop once the role has stopped, for any reason."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if not self._ended.is_set():
                self._then.append(partial(loop.call_soon_threadsafe, then))
                return
        loop.call_soon(then)

    async def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Stop the role and wait for it; return whether it stopped in time."""
        with self._lock:
            self._stopping = True
            loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # it has ended by itself, and its loop with it
                loop.call_soon_threadsafe(task.cancel)
        begin = time.monotonic()
        calls: Sequence[str] = ()
        while not self._ended.is_set() and self._thread.is_alive():
            waited = time.monotonic() - begin
            calls = self.calls() if waited > HANGING_SECONDS else ()
            if waited > seconds or calls:
                break
            await asyncio.sleep(_POLL)
        ended = self._ended.is_set()
        if not ended and self._thread.ident is not None:
            blocked = "; ".join(calls) or "the driver's code is blocked"
            logger.warning("%s does not end and is left behind: %s", self.name, blocked)
        return ended

    def calls(self) -> Sequence[str]:
        """Return the calls of the driver's code that have not returned, oldest first, with their claims and ages."""
        with self._lock:
            loop = self._loop
        return hanging_calls(loop, 0.0) if loop is not None else ()

    def _work(self) -> None:
        log_as_driver(self._driver)
        try:
            code = self._run_loop()
            if code or not self._stopping:
                self.failure, self.exit_code = f"exit code {code}", code
        except asyncio.CancelledError:
            pass
        except DraKitError as error:
            self.failure = f"{error} [{error.code}]"
        except BaseException as error:  # SystemExit, too: a task that the driver's code started may raise anything
            logger.exception("%s failed", self.name)
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            with self._lock:
                self._ended.set()
            for then in self._then:
                with suppress(RuntimeError):  # the loop that waited has ended
                    then()

    def _run_loop(self) -> int:
        with asyncio.Runner() as runner:
            try:
                return runner.run(self._main())
            except (SystemExit, KeyboardInterrupt):
                # of a task that the driver's code started; a gRPC server that is not stopped in order may crash Python
                runner.run(self._drain())
                raise

    async def _drain(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _main(self) -> int:
        with self._lock:
            if self._stopping:
                return 0
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._run())
        try:
            return await self._task
        except asyncio.CancelledError:
            return 0


class NodeRoleThread(RoleThread):
    """The node role of a driver in this process: nothing has to be started, and debuggers and coverage see the driver.

    It runs as soon as it is created.

    Attributes:
        begun: whether the driver is loaded; the deadline for its start counts from then on.
    """

    def __init__(self, release: DriverRelease, settings: NodeSettings, credentials: Credentials) -> None:
        self.begun = True
        self._agent: NodeAgent | None = None
        whole = replace(settings, author=release.author)

        async def run() -> int:
            self._agent = NodeAgent(release.driver, whole, credentials)
            return await self._agent.run()

        super().__init__(f"node role on {settings.node_name}", run, driver=release.driver.name)
        self.start()

    @property
    def ready(self) -> bool:
        """Whether all of its parts are: the kubelet can find it, and its devices are published."""
        return self._agent is not None and not unready_parts(self._agent.supervisor)

    @property
    def discover_problem(self) -> str:
        """Why the last ``discover`` failed; empty if it did not."""
        return self._agent.discover_problem if self._agent else ""

    def hanging(self, patience: float) -> Sequence[str]:
        """Return the calls older than so many seconds, and ``discover`` when it has not yielded for as long."""
        return self._agent.hanging(patience) if self._agent else ()

    async def inject_health(self, device: str, reason: str, message: str | None, pool: str | None) -> None:
        """See :meth:`dra_kit.node.agent.NodeAgent.inject_health`.

        Raises:
            ConfigurationError: the driver has no health source, or no such device or reason here.
        """
        if self._agent is None:
            raise ConfigurationError("the driver has not come up yet; wait for its devices first")
        await asyncio.wrap_future(self._agent.inject_health(device, reason, message, pool=pool))


SLOW_CALL_SECONDS: Final = 3.0
"""Seconds after which a call is slow."""
