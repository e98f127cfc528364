"""The driver's process of ``dra-kit dev``.

See :mod:`dra_kit.sandbox.dev.driver_roles`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

import dra_kit.admission.agent  # noqa: F401 - load slow imports before orders arrive
from dra_kit.cli.dev import dev
from dra_kit.cli.sandbox import show_log
from dra_kit.cli.sandbox_drivers import sandbox_driver
from dra_kit.client.credentials import load_credentials
from dra_kit.errors import DraKitError, TargetError
from dra_kit.sandbox.dev.driver_roles import TAKE_OVER, DriverRoles, StartOrder, StateReport
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver


def main() -> None:
    """Wait for orders and run the driver until standard input ends; never returns."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the author's own prints must not mix with the answers
    line = sys.stdin.readline()
    if line:
        # do not cache the author's compiled files: the cache compares size and whole seconds, and misses a second edit
        # within the same second
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        orders = StartOrder.model_validate_json(line)
        answer = partial(_answer, answers, threading.Lock())
        report_writes(orders.folders, answer)
        _serve(orders, answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of the driver's code that do not return would keep the process


def _answer(answers: TextIO, lock: threading.Lock, report: StateReport) -> None:
    with lock:
        answers.write(f"{report.model_dump_json()}\n")
        answers.flush()


def report_writes(folders: Sequence[Path], report: Callable[[StateReport], None]) -> None:
    """Report each file in folders before Python code of this process changes it for the first time.

    Native code and other programs are not seen.
    """
    places = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in folders)
    known: set[str] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        for path in _changed_by(event, arguments):
            if not isinstance(path, str | bytes | os.PathLike):
                continue
            place = os.path.realpath(os.fsdecode(path))
            if place.startswith(places) and place not in known:
                known.add(place)
                report(StateReport(state="writes", text=place))

    sys.addaudithook(hook)


def _changed_by(event: str, arguments: tuple[Any, ...]) -> Iterable[Any]:
    """Return the files that an audited operation changes."""
    match event, arguments:
        case "open", (path, _, int(flags)) if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return (path,)
        case (("os.rename" | "os.link"), (source, target, *_)):
            return (source, target)
        case (("os.remove" | "os.truncate" | "os.utime"), (path, *_)):
            return (path,)
        case "os.symlink", (_, target, *_):
            return (target,)
        case "sqlite3.connect", (str(path),):
            return (path, f"{path}-journal", f"{path}-wal", f"{path}-shm")
    return ()


def _serve(orders: StartOrder, report: Callable[[StateReport], None]) -> None:
    show_log(orders.log_level or "info")
    if not orders.log_level:
        logging.getLogger("dra_kit").setLevel(logging.WARNING)
    try:
        ctx = dev.make_context("dev", list(orders.arguments))
        given = ctx.meta.get("driver_settings", {})
        driver = sandbox_driver(ctx.params["target"], ctx.meta["driver"], given, len(orders.nodes))
        asyncio.run(_run(driver, orders, report))
    except DraKitError as error:
        text = error.cause if isinstance(error, TargetError) else str(error)  # its TARGET is known
        report(StateReport(state="failed", text=f"{' '.join(text.split())} [{error.code}]"))
    except click.UsageError as error:
        report(StateReport(state="failed", text=error.format_message()))


async def _run(driver: SandboxDriver, orders: StartOrder, report: Callable[[StateReport], None]) -> None:
    loop = asyncio.get_running_loop()
    roles = DriverRoles(driver, orders, await load_credentials(orders.kubeconfig), report)
    further = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(further), sys.stdin)
    work = asyncio.create_task(roles.run())
    orders_reader = asyncio.create_task(_follow_orders(roles, further))
    loop.add_signal_handler(signal.SIGTERM, orders_reader.cancel)
    await asyncio.wait([work, orders_reader], return_when=asyncio.FIRST_COMPLETED)
    for task in (work, orders_reader):
        task.cancel()
    await roles.stop()
    results = await asyncio.gather(work, orders_reader, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _follow_orders(roles: DriverRoles, orders: asyncio.StreamReader) -> None:
    while line := await orders.readline():
        if line.decode().strip() == TAKE_OVER:
            roles.take_over()


if __name__ == "__main__":
    main()
