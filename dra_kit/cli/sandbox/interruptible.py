"""Runs that Ctrl-C ends in order, and at once when it is pressed again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Final, Protocol

import click

from dra_kit.cli.app import INTERRUPTED

_INSIST_SECONDS: Final = 2.0
_CUT_OFF: Final = 128 + signal.SIGPIPE
"""Exit code when nobody reads the output any more, as shells give it."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Run(Protocol):
    """What Ctrl-C ends in order."""

    @property
    def lasting(self) -> bool:
        """Whether only an interruption is waited for."""
        ...

    @property
    def exit_code(self) -> int:
        """Of the process, where it is interrupted while it is lasting."""
        ...

    async def run(self) -> int:
        """Run; the exit code. Whatever happens, also a cancellation, nothing remains."""
        ...


async def run_interruptibly(session: Run, reader_gone: asyncio.Event) -> int:
    """Run until it is done or interrupted, or nobody reads on; the second signal ends the process at once.

    Args:
        session: to run.
        reader_gone: set when nobody reads the output any more.
    """
    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future(session.run())
    cut_off = asyncio.ensure_future(reader_gone.wait())
    cut_off.add_done_callback(lambda _: work.cancel())
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            return  # the same signal, sent to the process and to its group
        interrupted = True
        click.echo("\ntaking everything down; once more ends at once", err=True)
        work.cancel()
        loop.call_later(_INSIST_SECONDS, insist)

    def insist() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await work
    except asyncio.CancelledError:
        if reader_gone.is_set():
            # what is still buffered would fail again at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _CUT_OFF
        click.echo("everything is down", err=True)
        return session.exit_code if session.lasting else INTERRUPTED
