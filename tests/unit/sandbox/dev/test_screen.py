"""``dra-kit dev`` on a terminal: what it shows, and the keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator

import pytest

from tests.unit.sandbox.dev.desk import Desk

pytestmark = pytest.mark.processes

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_SECONDS = 180.0


class Terminal:
    """A terminal with the command in it."""

    def __init__(self, desk: Desk, *arguments: str, rows: int = 24, columns: int = 80) -> None:
        command = desk.command(*arguments)
        environment = {**desk.environment, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        ready, go = os.pipe()
        self.process, self._terminal = pty.fork()
        if self.process == 0:
            os.read(ready, 1)  # until the terminal has its size
            os.chdir(desk.project)
            os.execve(command[0], command, environment)  # noqa: S606
        self.resize(rows, columns)
        os.write(go, b"x")
        os.close(ready)
        os.close(go)
        self.text = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    @property
    def frame(self) -> str:
        """What is on the screen."""
        return _CONTROLS.sub("", self.text.rpartition("\x1b[H")[2]).replace("\r", "")

    def until(self, pattern: str) -> str:
        """Wait until something is on the screen; what is there then."""
        end = time.monotonic() + _SECONDS
        whole = ""  # nothing more has come for a moment
        while time.monotonic() < end:
            if self.frame == whole and re.search(pattern, whole):
                return whole
            whole = self.frame
            assert self._read(), self.text
        raise AssertionError(f"the screen does not show {pattern!r}:\n{self.frame}")

    def end(self) -> int:
        """Wait for the end; the exit code."""
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def mode(self) -> int:
        """Whether what is typed is echoed and kept until a line is whole."""
        return int(termios.tcgetattr(self._terminal)[3]) & (termios.ECHO | termios.ICANON)

    def close(self) -> None:
        os.close(self._terminal)
        try:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        except (ProcessLookupError, ChildProcessError):
            pass

    def _read(self) -> bool:
        """Read for a moment; False at the end."""
        readable, _, _ = select.select([self._terminal], [], [], 0.05)
        if not readable:
            return True
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:
            return False
        self.text += data.decode(errors="replace")
        return bool(data)


@pytest.fixture
def terminal(desk: Desk) -> Iterator[Terminal]:
    desk.order("guest")
    made = Terminal(desk, "pizzeria.py", "-f", "order.yaml", "--ui")
    yield made
    made.close()


def test_devices_claims_pods_and_calls_are_shown_and_follow_the_code(desk: Desk, terminal: Terminal) -> None:
    frame = terminal.until(r"guest +Running +node-1 +CHEESE=gouda")
    lines = frame.split("\n")
    assert len(lines) == 24
    assert "dra.pizza   KUBECONFIG=/" in lines[0]
    assert any(re.search(r"start: the driver serves after \d+ ms", line) for line in lines[1:3])
    assert re.search(r"pizza-0 +guest-pizza-\w+ +dough=pan", frame)
    assert re.search(r"pizza-1 +free +dough=pan", frame)
    assert re.search(r"guest-pizza-\w+ +prepared +pizza-0 for guest", frame)
    assert re.search(r"NodePrepareResources +[\d.]+ ms +guest-pizza-\w+: pizza-0", frame)
    assert "preparing pizza-0 for guest-pizza" in frame

    desk.edit("return dra.Prepared", "return (dra.Prepared")
    terminal.until(r"pizzeria.py: SyntaxError: '\(' was never closed")
    assert "guest  Running" in terminal.frame
    desk.edit("return (dra.Prepared", "return dra.Prepared")
    desk.edit('"dough": "pan"', '"dough": "tin"')
    terminal.until(r"pizza-0 +guest-pizza-\w+ +dough=tin")

    terminal.press("q")
    assert terminal.end() == 0


def test_keys(desk: Desk, terminal: Terminal) -> None:
    first = terminal.until(r"guest-pizza-\w+ +prepared")
    [claim] = set(re.findall(r"guest-pizza-\w+", first.partition("Pods")[0]))

    terminal.press("4")
    assert "Devices" not in terminal.until(r"0 all parts")
    terminal.press("0")
    # the address of the page stays on the screen
    assert re.search(r"page: http://127\.0\.0\.1:\d+/#token=[\w-]{43}", terminal.until(r"1 Devices"))
    terminal.press("r")
    terminal.until(r"reload: the driver serves")
    terminal.press("a")
    terminal.until(rf"guest-pizza-(?!{claim[-5:]})\w+ +prepared")
    terminal.resize(10, 40)
    assert all(len(line) <= 40 for line in terminal.until(r"r reload .*…").split("\n"))

    echoing = terminal.mode()
    terminal.press("\x03")  # Ctrl-C
    assert terminal.end() == 0
    assert not echoing
    assert "\x1b[?1049l" in terminal.text  # the screen before is back
    assert terminal.text.rstrip().endswith("everything is stopped")
