"""The process of a driver, and its replacement by a new process."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from pydantic import ValidationError

from dra_kit.client.resources import VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.errors import Conflict, NotFound, SandboxError
from dra_kit.sandbox.cluster import Sandbox
from dra_kit.sandbox.dev.driver_roles import TAKE_OVER, StartOrder, StateReport
from dra_kit.sandbox.directory import mark_of
from dra_kit.sandbox.drivers.roles import STOP_SECONDS
from dra_kit.text import escape_unprintable

_ABANDONED_SECONDS: Final = 5.0  # that a process gets to end whose code could not be used


class RollingUpdater:
    """The driver's processes."""

    def __init__(
        self,
        sandbox: Sandbox,
        arguments: Sequence[str],
        *,
        time_scale: float,
        webhook: bool,
        log_level: str,
        log: Callable[[str], None],
        waiting: Callable[[str], None],
        folders: Sequence[Path] = (),
        writes: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self._folders = list(folders)
        self._writes = writes
        self._sandbox = sandbox
        self._arguments = list(arguments)
        self._time_scale = time_scale
        self._webhook = webhook
        self._log_level = log_level
        self._log = log
        self._waiting = waiting
        self._number = 0
        self._has_served = False
        self._spare: DriverProcess | None = None
        self._starting: asyncio.Task[StateReport] | None = None
        self._configuration = ""  # name of the one that calls the webhook
        self.serving: DriverProcess | None = None
        """What the kubelets and the API server call; None when nothing does."""

    async def replace(self) -> float:
        """Start the driver again from its current files, then stop the old process; return the seconds until it served.

        The old process continues to serve if the new one cannot.

        Raises:
            SandboxError: the new code cannot be used; the message says why.
        """
        begin = time.monotonic()
        spare, self._spare = self._spare, None
        fresh = spare if spare and spare.runs else await DriverProcess.spawn(self._log, self._writes)
        try:
            report = await self._served(fresh)
            self._require_name(report.driver)
        except BaseException:
            await fresh.stop(_ABANDONED_SECONDS)
            await self.prepare()
            raise
        former, self.serving, self._has_served = self.serving, fresh, True
        await self._call_webhook(report.webhook)
        seconds = time.monotonic() - begin
        if former is not None:
            await former.stop()
        fresh.take_over()
        await self.prepare()
        return seconds

    def abandon(self) -> None:
        """Wait no longer for new code that does not serve yet."""
        if self._starting is not None:
            self._starting.cancel()

    async def ended(self) -> str:
        """Wait until the serving process exits unexpectedly; return the reason."""
        if self.serving is None:
            await asyncio.get_running_loop().create_future()
        why = await self.serving.ended()  # type: ignore[union-attr]  # the wait is bounded
        self.serving = None
        return why

    async def stop(self) -> None:
        """Stop all of them."""
        processes = [process for process in (self.serving, self._spare) if process is not None]
        self.serving = self._spare = None
        await asyncio.gather(*(process.stop() for process in processes))

    async def prepare(self) -> None:
        """Have a process load all but the author's code, which is most of a start, before it is needed."""
        if self._spare is None:
            self._spare = await DriverProcess.spawn(self._log, self._writes)

    async def _served(self, fresh: DriverProcess) -> StateReport:
        self._starting = asyncio.create_task(fresh.serve(self._orders(), self._waiting))
        try:
            await asyncio.wait([self._starting])
        finally:
            starting, self._starting = self._starting, None
            starting.cancel()
        if starting.cancelled():
            raise SandboxError("it did not serve yet when a file changed again")
        return starting.result()

    def _require_name(self, name: str) -> None:
        [former] = self._sandbox.drivers
        if name != former:
            raise SandboxError(f"the driver's name was {former} and is {name} now; restart dra-kit dev")

    def _orders(self) -> StartOrder:
        self._number += 1
        sandbox = self._sandbox
        directory = sandbox.directory / f"driver-{self._number}"
        directory.mkdir()
        return StartOrder(
            arguments=self._arguments,
            number=self._number,
            nodes={node.name: node.directory for node in sandbox.nodes},
            kubeconfig=sandbox.kubeconfig,
            directory=directory,
            mark=mark_of(sandbox.directory),
            time_scale=self._time_scale,
            webhook=self._webhook,
            since=None if self._has_served else sandbox.beginning,
            log_level=self._log_level,
            folders=self._folders,
        )

    async def _call_webhook(self, configuration: dict[str, Any] | None) -> None:
        """Have the API server call the webhook of the new process, or none."""
        client = self._sandbox.client
        if configuration is None:
            if self._configuration:
                with suppress(NotFound):
                    await client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, self._configuration)
            self._configuration = ""
            return
        self._configuration = configuration["metadata"]["name"]
        try:
            await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration)
        except Conflict:
            await client.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, self._configuration, configuration)


MODULE: Final = "dra_kit.cli.dev_driver"
"""What runs in the process."""
_CHUNK: Final = 1 << 16
_LINE_MAX: Final = 1 << 14
_LAST_LINES: Final = 0.5  # seconds to read the output of a process after its exit: its children may hold the pipe open


class DriverProcess:
    """A process of the driver; it exits when this process does, even if this one is killed."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: Callable[[str], None], writes: Callable[[Path], None]
    ) -> None:
        self._process = process
        self._writes = writes
        self._log = log
        self._last_line = ""
        self._reports: asyncio.Queue[StateReport | None] = asyncio.Queue()
        self._failure = ""
        self._stopping = False
        self._readers = [asyncio.create_task(self._hear()), asyncio.create_task(self._read_log())]

    @classmethod
    async def spawn(cls, log: Callable[[str], None], writes: Callable[[Path], None]) -> Self:
        """Return a process that waits for its orders; it has read no file of the author's.

        ``log`` gets the lines of its log, ``writes`` each file that it changes in the folders of its orders.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", MODULE,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C is for the cluster, which ends its driver in order
        )  # fmt: skip
        return cls(process, log, writes)

    async def serve(self, orders: StartOrder, waiting: Callable[[str], None]) -> StateReport:
        """Run the driver, and return its report that it is ready.

        Raises:
            SandboxError: it cannot be used; the text says why.
        """
        self._send(orders.model_dump_json())
        while (report := await self._reports.get()) is not None:
            if report.state == "ready":
                return report
            if report.state == "waiting":
                waiting(report.text)
            else:
                self._failure = report.text
        raise SandboxError(await self.ended())

    def take_over(self) -> None:
        """Ask the process to take over: it is the only one now."""
        self._send(TAKE_OVER)

    async def ended(self) -> str:
        """Wait until the process exits; return why it did."""
        code = await self._process.wait()
        await asyncio.wait(self._readers, timeout=_LAST_LINES)
        while not self._reports.empty():
            report = self._reports.get_nowait()
            if report is not None and report.state == "failed":
                self._failure = report.text
        if self._failure or self._stopping:
            return self._failure
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"its process {how}{f': {self._last_line}' if code > 0 and self._last_line else ''}"

    @property
    def runs(self) -> bool:
        """Whether it is running."""
        return self._process.returncode is None

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Shut the process down: it finishes its current work, and is killed if that takes too long."""
        self._stopping = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            for reader in self._readers:
                reader.cancel()
            await asyncio.wait(self._readers)

    def _send(self, line: str) -> None:
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(f"{line}\n".encode())

    async def _hear(self) -> None:
        try:
            async for line in _lines(self._process.stdout):
                with suppress(ValidationError):  # not a report of our process; the line goes to the log
                    report = StateReport.model_validate_json(line)
                    if report.state == "writes":
                        self._writes(Path(report.text))
                    else:
                        self._reports.put_nowait(report)
        finally:
            self._reports.put_nowait(None)

    async def _read_log(self) -> None:
        async for line in _lines(self._process.stderr):
            text = escape_unprintable(line[:_LINE_MAX], keep="\t")
            self._last_line = text.strip() or self._last_line
            self._log(text)


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[str]:
    """Yield the lines of a stream, however long, to its end."""
    if stream is None:
        return
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while data := await stream.read(_CHUNK):
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        for line in lines:
            yield line
    if rest:
        yield rest
