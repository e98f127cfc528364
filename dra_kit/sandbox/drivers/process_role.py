"""The node role in a process that can be killed as by ``kill -9``, from outside or after a step."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

import uvloop
from msgspec import Struct
from msgspec.structs import replace

from dra_kit.author.target import load_driver
from dra_kit.client.credentials import load_credentials
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.node.agent import NodeAgent
from dra_kit.node.failpoints import Failpoint, set_listener
from dra_kit.node.settings import NodeSettings
from dra_kit.process.logging import fields_of, quiet_libraries, to_printable_json
from dra_kit.process.probes import unready_parts
from dra_kit.sandbox.drivers.log import log_as_driver
from dra_kit.sandbox.drivers.roles import STOP_SECONDS
from dra_kit.sandbox.drivers.sandbox_driver import DriverRelease

_POLL: Final = 0.02
_STANDARD: Final = (
    "name", "levelno", "levelname", "created", "msecs", "pathname", "filename", "module", "lineno", "funcName",
)  # fmt: skip
"""Fields of a log record that are sent unchanged."""
_LAST_STREAM: Final = 2  # the last of the standard streams


class NodeRoleProcess:
    """The node role of a driver in a separate process, with the methods of a ``NodeRoleThread``.

    Its log records are logged in this process too; its output goes to the output of this process. It exits with this
    process.

    Raises:
        ConfigurationError: the release has no TARGET.
    """

    def __init__(
        self, release: DriverRelease, settings: NodeSettings, directory: Path, crash: CrashPoint | None
    ) -> None:
        if not release.target:
            raise ConfigurationError(
                f"driver {release.driver.name} is an object of this process and cannot run in a separate process; "
                "name it as a TARGET: ./file.py, module:attr or a project folder"
            )
        author = None if release.author is None else release.author.model_dump()
        self._wire, other = multiprocessing.Pipe()
        self._sending = threading.Lock()
        level = logging.getLogger().level
        work = partial(_work, other, release.folder, release.target, settings, author, level=level)
        self._process = KillableProcess(directory, work)
        self._driver = release.driver.name
        self._ready = False
        self._discover_problem = ""
        self.begun: bool = False
        self._stopping = False
        self._failure = ""
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._asked = 0
        self._then: list[Callable[[], None]] = []
        self._telling: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._process.start(crash)
        other.close()
        self._reader = threading.Thread(target=self._read, name=f"node role on {settings.node_name}", daemon=True)
        self._reader.start()

    @property
    def failure(self) -> str:
        """See :class:`dra_kit.sandbox.drivers.roles.NodeRoleThread`."""
        if self._stopping or self._process.alive or self.crashed_at:
            return ""
        return self._failure or f"its process ended with {self._process.exit_code}"

    @property
    def ready(self) -> bool:
        """See :class:`dra_kit.sandbox.drivers.roles.NodeRoleThread`."""
        return self._ready and self._process.alive

    @property
    def discover_problem(self) -> str:
        """See :class:`dra_kit.sandbox.drivers.roles.NodeRoleThread`; empty once the role was ready."""
        return "" if self._ready else self._discover_problem

    @property
    def crashed_at(self) -> str:
        """The step after which it has killed itself; empty when it has not."""
        return "" if self._process.alive else self._process.crashed_at

    @property
    def killed(self) -> bool:
        """Whether it was killed, from outside or after a step."""
        return not self._process.alive and (self._stopping or bool(self.crashed_at))

    def arm(self, crash: CrashPoint | None) -> None:
        """See :meth:`dra_kit.sandbox.drivers.process_role.KillableProcess.arm`."""
        self._process.arm(crash)

    def when_ended(self, then: Callable[[], None]) -> None:
        """See :class:`dra_kit.sandbox.drivers.roles.NodeRoleThread`."""
        self._then.append(then)

    async def stop(self) -> None:
        """See :class:`dra_kit.sandbox.drivers.roles.NodeRoleThread`."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill it with ``kill -9``; it is gone when this returns."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> None:
        self._stopping = True
        self._process.send(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while self._process.alive:  # noqa: ASYNC110 - another process ends
                    await asyncio.sleep(_POLL)
        self._process.send(signal.SIGKILL)
        await asyncio.to_thread(self._reader.join)
        await asyncio.to_thread(self._process.join)

    def calls(self) -> Sequence[str]:
        """See :class:`dra_kit.sandbox.drivers.roles.NodeRoleThread`."""
        return ()

    def hanging(self, patience: float) -> Sequence[str]:
        """See :class:`dra_kit.sandbox.drivers.roles.NodeRoleThread`."""
        del patience
        return ()

    async def inject_health(self, device: str, reason: str, message: str | None, pool: str | None) -> None:
        """See :class:`dra_kit.sandbox.drivers.roles.NodeRoleThread`."""
        self._asked += 1
        answer = self._answers[self._asked] = self._loop.create_future()
        try:
            with self._sending:
                self._wire.send((self._asked, device, reason, message, pool))
        except OSError:
            raise ConfigurationError(
                "the driver does not run; start it before you make one of its devices unhealthy"
            ) from None
        if text := await answer:
            raise ConfigurationError(text)

    def _read(self) -> None:
        log_as_driver(self._driver)
        with suppress(EOFError, OSError):
            while True:
                match self._wire.recv():
                    case ("log", fields):
                        record = logging.makeLogRecord(fields)
                        logging.getLogger(record.name).handle(record)
                    case ("failed", text):
                        self._failure = text
                    case ("answer", number, text):
                        self._loop.call_soon_threadsafe(self._answers.pop(number).set_result, text)
                    case ("begun",):
                        self.begun = True
                    case ("discover", text):
                        self._discover_problem = text
                    case _:
                        self._ready = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._gone)

    def _gone(self) -> None:
        for answer in self._answers.values():
            answer.set_result("the driver's process has ended")
        self._answers.clear()
        self._telling = self._loop.create_task(self._report_end())

    async def _report_end(self) -> None:
        while self._process.alive:  # its side of the wire is closed  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(_POLL)
        for then in self._then:
            then()


# --- in the process


class _Sender(logging.Handler):
    """Sends what is logged, and other news, to the process of the sandbox."""

    def __init__(self, wire: Connection) -> None:
        super().__init__()
        self._wire = wire
        self._one = threading.Lock()

    def send(self, *news: Any) -> None:
        with self._one, suppress(OSError):
            self._wire.send(news)

    def emit(self, record: logging.LogRecord) -> None:
        fields = {key: to_printable_json(value) for key, value in fields_of(record).items()}
        raised = record.exc_info[1] if record.exc_info else None
        if raised is not None:
            # objects of the author's need not survive the way
            fields.setdefault("error", f"{type(raised).__name__}: {raised}")
            fields["stack_info"] = "".join(traceback.format_exception(raised)).rstrip()
        standard = {name: vars(record)[name] for name in _STANDARD}
        self.send("log", {**fields, **standard, "msg": record.getMessage()})


def _work(
    wire: Connection,
    folder: Path,
    target: str,
    settings: NodeSettings,
    author: Mapping[str, Any] | None,
    *,
    level: int,
) -> None:
    # descriptors sent to the fork server are inherited by programs that outlive this process and would hide its exit
    for descriptor in (int(file.name) for file in Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            os.set_inheritable(descriptor, descriptor <= _LAST_STREAM)
    sender = _Sender(wire)
    root = logging.getLogger()
    root.handlers[:] = [sender]
    root.setLevel(level)
    quiet_libraries()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed before a SIGKILL is seen
    os.chdir(folder)
    try:
        code = _role(wire, sender, target, settings, author)
    except DraKitError as error:
        sender.send("failed", f"{error} [{error.code}]")
        code = 2
    sys.exit(code)


def _role(
    wire: Connection, sender: _Sender, target: str, settings: NodeSettings, author: Mapping[str, Any] | None
) -> int:
    driver = load_driver(target)
    sender.send("begun")
    if driver.settings is not None and author is not None:
        settings = replace(settings, author=driver.settings.model_validate(dict(author), by_name=True, by_alias=False))

    async def run() -> int:
        agent = NodeAgent(driver, settings, await load_credentials(settings.kubeconfig))
        threading.Thread(target=_obey, args=(wire, sender, agent), name="sandbox", daemon=True).start()
        sending = asyncio.create_task(send_ready(agent))
        try:
            return await agent.run()
        finally:
            sending.cancel()

    async def send_ready(agent: NodeAgent) -> None:
        problem = ""
        while unready_parts(agent.supervisor):
            if agent.discover_problem != problem:
                problem = agent.discover_problem
                sender.send("discover", problem)
            await asyncio.sleep(_POLL)
        sender.send("ready")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _obey(wire: Connection, sender: _Sender, agent: Any) -> None:
    """Serve the requests of the sandbox; exit with it."""
    try:
        while True:
            number, device, reason, message, pool = wire.recv()
            try:
                agent.inject_health(device, reason, message, pool=pool).result()
            except ConfigurationError as error:
                sender.send("answer", number, str(error))
            else:
                sender.send("answer", number, "")
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGKILL)


_SAFE_PATH: Final = "PYTHONSAFEPATH"
FILE_CHANGE: Final = "change of a file"
_CHANGES: Final = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "open"}
# what every process loads is loaded once, in the server that the processes are forked from
_LOADED: Final = [
    "dra_kit.cli.roles",
    "dra_kit.client.operator",
    "dra_kit.node.agent",
    __name__,
]


class CrashPoint(Struct, frozen=True):
    """The point at which a process is killed: the ``count``-th time, after the command, that something happens.

    Attributes:
        at: a step, or ``FILE_CHANGE``: just before a file is created, renamed or removed.
        count: 1 for the first time.
    """

    at: str
    count: int = 1


class KillableProcess:
    """One process of the node role.

    Args:
        directory: the directory for its plan and its last messages; it is created.
        work: the function that it runs; pickled.
        watched: the directory in which changes of files count; None for none.
    """

    def __init__(self, directory: Path, work: Callable[[], object], *, watched: Path | None = None) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._plans = 0
        multiprocessing.set_forkserver_preload(_LOADED)
        kept = _SAFE_PATH in os.environ
        self._process = ForkServerProcess(target=_run, args=(directory, work, watched, kept), daemon=True)

    def start(self, crash: CrashPoint | None = None) -> None:
        """Start it; it may be planned to crash."""
        self.arm(crash)
        with _safe_path():
            self._process.start()

    def arm(self, crash: CrashPoint | None) -> None:
        """Crash there from now on, or nowhere; what was planned before is forgotten."""
        plan = self._directory / "plan"
        self._plans += 1  # distinguishes it from an equal one, or one with its inode
        text = json.dumps({"plan": self._plans, **({"at": crash.at, "count": crash.count} if crash else {})})
        fresh = plan.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(plan)

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """0, or the signal's number below zero; None while it lives."""
        return self._process.exitcode

    @property
    def crashed_at(self) -> str:
        """Where it killed itself; empty if it did not."""
        path = self._directory / "crashed"
        return path.read_text() if path.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal if it is running."""
        if self._process.pid is not None and self.alive:
            os.kill(self._process.pid, number)

    def join(self) -> None:
        """Wait until it has exited."""
        self._process.join()

    def close(self) -> None:
        """Stop the process, and drop its state."""
        self.send(signal.SIGKILL)
        self._process.join()
        self._process.close()


class _Killer:
    """Counts events in any thread, and kills the process at the planned one."""

    def __init__(self, directory: Path, watched: Path | None) -> None:
        self._directory = directory
        self._watched = f"{watched}/"
        self._lock = threading.RLock()
        self._known = 0
        self._at = ""
        self._left = 0

    def step(self, step: Failpoint) -> None:
        self._happened(step.value)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES or not str(arguments[0]).startswith(self._watched):
            return
        if event == "open" and not arguments[2] & os.O_CREAT:
            return
        self._happened(FILE_CHANGE)

    def _happened(self, what: str) -> None:
        with self._lock:
            self._look()
            if what == self._at:
                self._left -= 1
                if not self._left:
                    (self._directory / "crashed").write_text(what)
                    os.kill(os.getpid(), signal.SIGKILL)

    def _look(self) -> None:
        given = json.loads((self._directory / "plan").read_text())
        if given["plan"] != self._known:
            self._known = given["plan"]
            self._at, self._left = given.get("at", ""), given.get("count", 0)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Start Python without the working directory as a place of imports: the server of forks is started by ``-c``."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _run(directory: Path, work: Callable[[], object], watched: Path | None, safe_path: bool) -> None:
    if not safe_path:
        os.environ.pop(_SAFE_PATH, None)  # what the driver starts is the driver's
    killer = _Killer(directory, watched)
    set_listener(killer.step)
    if watched is not None:
        sys.addaudithook(killer.audit)
    work()
