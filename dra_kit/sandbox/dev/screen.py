"""The screen of ``dra-kit dev``: refreshed, and moved through by keys."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dra_kit.client.resources import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.kubernetes.resource.objects import ObjectKey, object_key, pod_claims
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.process.logging import configure
from dra_kit.sandbox.cluster import USER_AGENT, Sandbox
from dra_kit.sandbox.dev.panes import (
    CallHistory,
    ClaimEdits,
    Focus,
    Headline,
    Pane,
    calls_pane,
    claims_pane,
    devices_pane,
    lay_out,
    log_pane,
    pods_pane,
)
from dra_kit.sandbox.dev.session import DevOptions, DevRequest, DevSession, Event
from dra_kit.sandbox.pod_causes import PendingCause
from dra_kit.sandbox.records import (
    DriverEnded,
    DriverLogged,
    DriverNotServing,
    DriverRefused,
    DriverServing,
    DriverStarting,
    ManifestsApplied,
    ManifestsRefused,
    PodDeletionExplained,
    Record,
)
from dra_kit.sandbox.timeline.report import PodProblems
from dra_kit.sandbox.views.live import consequence, shortened

_REFRESH_SECONDS: Final = 0.1
_SHARE: Final = 10  # thousands of devices are looked at more rarely: one part in so many of the time
_EXPLAIN_SECONDS: Final = 1.0
_LOG_LINES: Final = 1_000
_KEYS: Final[Mapping[str, Event]] = {"r": DevRequest.RELOAD, "a": DevRequest.REAPPLY, "q": DevRequest.QUIT}
_FOOTER: Final = "r reload   a recreate pods   1-5 one part   q quit"
_FOCUSED: Final = "↑ ↓ scroll   0 all parts   r reload   a recreate pods   q quit"
_NO_KEYS: Final = "Ctrl-C ends"


class Screen:
    """Shows slices, claims, pods, calls and the log, and what became of the last change."""

    def __init__(self, console: Console, driver: str) -> None:
        self.submit: Callable[[Event], None] = lambda _: None
        """Takes what keys ask for."""
        self._console = console
        self._driver = driver
        self._calls = CallHistory()
        self._problems = PodProblems()
        self._got = ClaimEdits()
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._message = ("the driver starts", "yellow")
        self._refusal = ""
        self._announced: list[str] = []
        self._focus = Focus()
        self._has_keys = False
        self._busy = ""
        self._causes: Mapping[str, Sequence[PendingCause]] = {}
        self._sandbox: Sandbox | None = None

    # --- dra_kit.sandbox.dev.session.Display

    def read(self, record: Record) -> None:
        """See :class:`dra_kit.sandbox.dev.session.Display`."""
        for reader in (self._calls.read, self._problems.read, self._got.read):
            reader(record)
        match record:
            case DriverLogged(text=text):
                self.log(text)
            case DriverStarting(why=why):
                self._busy = f"{why}: the driver starts"
            case DriverServing(why=why, duration=duration):
                self._set_message(f"{why}: the driver serves after {duration * 1000:.0f} ms", "green")
            case DriverRefused(why=why, message=message, serving=serving):
                self._set_message(
                    f"{why}: {shortened(message, Path.cwd())}; {consequence(serving=serving)}", "bold red"
                )
            case DriverEnded(message=message):
                self._set_message(f"the driver ended: {shortened(message, Path.cwd())}", "bold red")
            case DriverNotServing(message=message):
                self._set_message(f"the driver does not serve yet: {shortened(message, Path.cwd())}", "yellow")
            case ManifestsApplied(message=message):
                self._refusal = ""
                if message:
                    self.log(f"{time.strftime('%H:%M:%S')} manifests: {message}")
            case PodDeletionExplained(pod=pod, by=by) if by not in {"", USER_AGENT}:
                name = f"{pod.namespace}/{pod.name}".removeprefix("default/")
                self.log(f"{time.strftime('%H:%M:%S')} Pod {name} is {record}")
            case ManifestsRefused(message=message):
                self._refusal = f"{time.strftime('%H:%M:%S')} {shortened(message, Path.cwd())}; not applied"
            case _:
                pass

    def log(self, line: str) -> None:
        """Show a line in the log."""
        self._lines.append(line)

    async def show(self, sandbox: Sandbox) -> None:
        """See :class:`dra_kit.sandbox.dev.session.Display`."""
        self._sandbox = sandbox
        explaining = asyncio.create_task(self._explain(sandbox))
        try:
            with (
                read_keys(sys.stdin, self.pressed) as self._has_keys,
                Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False,
                     redirect_stderr=False) as live,
            ):  # fmt: skip
                await self._refresh(live)
        finally:
            explaining.cancel()
            await asyncio.wait([explaining])
            self._console.print("shutting down", style="dim")

    def announce(self, text: str) -> None:
        """See :class:`dra_kit.sandbox.dev.session.Display`."""
        self._announced.append(text)

    # --- what is shown

    def pressed(self, key: str) -> None:
        """Handle a key."""
        focus = self._focus
        if key in _KEYS:
            self.submit(_KEYS[key])
        elif key in {"0", ESCAPE} or (key.isdecimal() and focus.pane == int(key) - 1):
            focus.pane, focus.offset = None, 0
        elif key.isdecimal() and int(key) <= len(self._panes()):
            focus.pane, focus.offset = int(key) - 1, 0
        elif key in {UP, DOWN} and focus.pane is not None:
            newest_last = self._panes()[focus.pane].newest_last
            focus.offset += 1 if (key == DOWN) is not newest_last else -1

    def lines(self, width: int, height: int) -> list[Text]:
        """Return all of it, in a size."""
        kubeconfig = self._sandbox.kubeconfig if self._sandbox else ""
        title = f" dra-kit dev  {self._driver}   KUBECONFIG={kubeconfig}"
        footer = (_FOOTER if self._focus.pane is None else _FOCUSED) if self._has_keys else _NO_KEYS
        news = [(self._busy, "yellow") if self._busy else self._message]
        if self._refusal:
            news.append((self._refusal, "bold red"))
        news += [(text, "") for text in self._announced]
        return lay_out(Headline(title, news), self._panes(), footer, width=width, height=height, focus=self._focus)

    def _panes(self) -> list[Pane]:
        sandbox = self._sandbox
        if sandbox is None:
            return [log_pane(self._lines)]
        objects = sandbox.informers.objects
        claims, pods = list(objects(RESOURCE_CLAIMS).values()), list(objects(PODS).values())
        reasons = {uid: "; ".join(map(str, causes)) for uid, causes in self._causes.items() if causes}
        return [
            devices_pane(
                self._driver, objects(RESOURCE_SLICES).values(), claims, list(objects(DEVICE_TAINT_RULES).values())
            ),
            claims_pane(claims, self._reasons(pods), self._calls.prepared),
            pods_pane(pods, self._got.by_uid, {**self._problems.by_uid, **reasons}),
            calls_pane(self._calls.newest_first),
            log_pane(self._lines),
        ]

    def _reasons(self, pods: Sequence[ObjectView]) -> Mapping[ObjectKey, str]:
        """Return why claims of waiting pods have nothing."""
        found: dict[ObjectKey, str] = {}  # a claim that a pod asks for is in it, also before anything is known
        for pod in pods:
            causes = self._causes.get(pod["metadata"]["uid"], ())
            for item in pod_claims(pod):
                own = [cause.text for cause in causes if cause.claim == item.name]
                if item.claim:
                    found[object_key(pod)[0], item.claim] = "; ".join(own)
        return found

    def _set_message(self, text: str, style: str) -> None:
        self._busy = ""
        self._message = (f"{time.strftime('%H:%M:%S')} {text}", style)

    async def _refresh(self, live: Live) -> None:
        """Draw only when something has changed, to send little over a remote terminal."""
        before: object = None
        while True:
            begin = time.monotonic()
            size = self._console.size
            lines = self.lines(size.width, size.height)
            now = (size, [(line.plain, line.style) for line in lines])
            if now != before:
                before = now
                live.update(Group(*lines), refresh=True)
            await asyncio.sleep(max(_REFRESH_SECONDS, (time.monotonic() - begin) * _SHARE))

    async def _explain(self, sandbox: Sandbox) -> None:
        """Find out what pods wait for, now and then."""
        while True:
            pods = sandbox.informers.objects(PODS).values()
            waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
            self._causes = await sandbox.causes(waiting)
            await asyncio.sleep(_EXPLAIN_SECONDS)


def screen_session(development: DevOptions) -> DevSession:
    """Return a run on the screen of this process's terminal, where what the cluster logs is shown, too."""
    screen = Screen(Console(), development.driver.name)
    session = DevSession(development, screen)
    screen.submit = session.submit
    configure("text", logging.getLevelName(logging.WARNING), _Log(screen))
    return session


class _Log(io.StringIO):
    """Lines that are logged in this process."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def write(self, text: str) -> int:
        for line in text.splitlines():
            self._screen.log(line)
        return len(text)


UP: Final = "up"
DOWN: Final = "down"
ESCAPE: Final = "escape"
_SEQUENCES: Final = {
    b"\x1b[A": UP, b"\x1bOA": UP, b"\x1b[5~": UP, b"\x1b[B": DOWN, b"\x1bOB": DOWN, b"\x1b[6~": DOWN, b"\x1b": ESCAPE,
}  # fmt: skip


@contextmanager
def read_keys(stream: TextIO, pressed: Callable[[str], None]) -> Iterator[bool]:
    """Report pressed keys inside the context; yield False if the stream is not a terminal and no key can arrive.

    ``pressed`` gets each key in the event loop: its letter, or :data:`UP`, :data:`DOWN` or :data:`ESCAPE`.
    """
    if not stream.isatty():
        yield False
        return
    descriptor = stream.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()
    try:
        tty.setcbreak(descriptor)
        _without_suspension(descriptor)
        loop.add_reader(descriptor, lambda: _read_key(descriptor, pressed, loop))
        yield True
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _without_suspension(descriptor: int) -> None:
    """Switch off Ctrl-Z, which would leave the shell on the screen of this process."""
    modes = termios.tcgetattr(descriptor)
    modes[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)


def _read_key(descriptor: int, pressed: Callable[[str], None], loop: asyncio.AbstractEventLoop) -> None:
    data = b""
    with suppress(OSError):
        data = os.read(descriptor, 64)
    if not data:  # the terminal is gone; SIGHUP reports it, too
        loop.remove_reader(descriptor)
    elif data in _SEQUENCES:
        pressed(_SEQUENCES[data])
    elif not data.startswith(b"\x1b"):
        for letter in data.decode(errors="ignore"):
            pressed(letter)
