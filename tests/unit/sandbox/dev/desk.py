"""A folder with a driver, and ``dra-kit dev`` that runs in it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from tests.support.processes import children_of
from tests.unit.cli.kitchen import CLASS, TEMPLATE, pod

DRIVER = """
import dra_kit as dra


class Oven(dra.DeviceProvider):
    def discover(self):
        yield [dra.Device(name=f"pizza-{i}", attributes={"dough": "pan"}) for i in range(2)]


class Waiter(dra.Preparer):
    def prepare(self, claim, device):
        print(f"preparing {device.name} for {claim.name}")
        return dra.Prepared(env={"CHEESE": "gouda"})


driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""
_SECONDS = 180.0


class Desk:
    """An edit of the driver's file is seen by the command, and what it prints by a test.

    Args:
        directory: with a short path, for sockets.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory / "run"), "TMPDIR": str(directory / "t")}
        for name in ("run", "t", "project"):
            (directory / name).mkdir()
        self.project = directory / "project"
        self.file = self.project / "pizzeria.py"
        self.text = ""
        self._since = 0
        self.file.write_text(DRIVER)
        self._process: subprocess.Popen[str] | None = None

    def order(self, *pods: str) -> None:
        """Write the manifests: pods that sleep, each with a claim."""
        made = [pod(name, "sleep", "4321") for name in pods]
        self.save(self.project / "order.yaml", yaml.safe_dump_all([CLASS, TEMPLATE, *made]))

    def edit(self, before: str, after: str) -> None:
        """Change the driver's file as editors do: a new file under the old name."""
        text = self.file.read_text()
        assert before in text
        self.save(self.file, text.replace(before, after))

    def save(self, file: Path, text: str) -> None:
        self._since = len(self.text)
        new = file.with_name(f".{file.name}.swp")
        new.write_text(text)
        new.replace(file)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "dra_kit", "dev", *arguments]

    def start(self, *arguments: str) -> Self:
        self._process = subprocess.Popen(
            self.command(*arguments),
            cwd=self.project,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.text += line

    def until(self, *told: str) -> None:
        """Wait until it has told one thing after the other, since the last change of a file."""
        end = time.monotonic() + _SECONDS
        pattern = re.compile(".*".join(map(re.escape, told)), re.DOTALL)
        while time.monotonic() < end:
            if pattern.search(self.text, self._since):
                return
            assert self._process is not None
            assert self._process.poll() is None, self.text
            time.sleep(0.05)
        raise AssertionError(f"it does not tell {told}:\n{self.text}")

    def processes(self) -> list[int]:
        """The driver's processes: the serving one, and the one that waits to be needed."""
        assert self._process is not None
        children = children_of(self._process.pid).values()
        return [child.pid for child in children if "dev_driver" in child.command_line]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """End it; the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(_SECONDS)
        self._reader.join()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            orphans = self.processes()
            self._process.kill()
            self._process.wait()
            ended(orphans)
        if self._process is not None and self._process.stdout is not None:
            self._reader.join()
            self._process.stdout.close()


def ended(processes: Iterable[int]) -> None:
    """Wait until processes are gone; they would write into a folder that is removed."""
    end = time.monotonic() + _SECONDS
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < end
        time.sleep(0.05)


def times(text: str, pattern: str) -> int:
    """Return how often a pattern occurs."""
    return len(re.findall(pattern, text))
