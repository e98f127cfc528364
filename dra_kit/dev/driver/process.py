"""A process with the driver's roles, seen from the cluster; see :mod:`dra_kit.dev.driver.roles` for its messages."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, Self

from pydantic import ValidationError

from dra_kit.dev.driver.roles import TAKE_OVER, Orders, StateReport
from dra_kit.errors import SandboxError
from dra_kit.sandbox.driver.roles.role_thread import STOP_SECONDS
from dra_kit.text import escape_unprintable

MODULE: Final = "dra_kit.cli.sandbox.dev_driver"
"""What runs in the process."""
_CHUNK: Final = 1 << 16
_LINE_MAX: Final = 1 << 14
_LAST_LINES: Final = 0.5  # seconds that a process which has ended is read on: what it started may hold the pipe


class DriverProcess:
    """One process; it ends when this one does, whatever ends this one.

    Args:
        process: that was started.
        log: takes each line that the driver logs or prints.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Callable[[str], None]) -> None:
        self._process = process
        self._log = log
        self._last_line = ""
        self._reports: asyncio.Queue[StateReport | None] = asyncio.Queue()
        self._failure = ""
        self._stopping = False
        self._readers = [asyncio.create_task(self._hear()), asyncio.create_task(self._read_log())]

    @classmethod
    async def spawn(cls, log: Callable[[str], None]) -> Self:
        """Return a process that waits for its orders; it has read no file of the author's."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", MODULE,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C is for the cluster, which ends its driver in order
        )  # fmt: skip
        return cls(process, log)

    async def serve(self, orders: Orders, waiting: Callable[[str], None]) -> StateReport:
        """Run the driver, and return its report that it is ready.

        Args:
            orders: what to do.
            waiting: notified why it takes long.

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
        """Tell the process to take over: it is the only one now."""
        self._send(TAKE_OVER)

    async def ended(self) -> str:
        """Wait for its end; why it ended."""
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
        """Whether it has not ended."""
        return self._process.returncode is None

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End it in order: what it does now it finishes; killed when it takes too long."""
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
                with suppress(ValidationError):  # of no process of ours; what it prints goes to the log
                    self._reports.put_nowait(StateReport.model_validate_json(line))
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
