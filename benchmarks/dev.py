"""``python -m benchmarks.dev``: the time until ``dra-kit dev`` serves saved code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.sandbox import cpu_seconds, driver
from benchmarks.table import Row, part

SAVES = 5
PAUSE_SECONDS = 5.0  # between changes; by then the next process has loaded everything except the author's code
_SERVES = re.compile(r": the driver serves after (\d+) ms")


class Dev:
    """``dra-kit dev`` in a folder, as lines.

    Args:
        directory: with the driver.
    """

    def __init__(self, directory: Path) -> None:
        self._file = driver(directory)
        self._text = self._file.read_text()
        self._saves = 0
        command = [str(Path(sys.executable).with_name("dra-kit")), "dev", self._file.name, "--no-view"]
        self._process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)

    def serves(self) -> float:
        """Wait until a process of the driver serves; return the seconds that it reports."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := _SERVES.search(line):
                return int(found[1]) / 1000
        raise RuntimeError("dra-kit dev has ended")

    def save(self) -> tuple[float, float]:
        """Save the file; return the seconds until the new code serves, measured and as reported."""
        self._saves += 1
        begin = time.monotonic()
        self._file.write_text(f"{self._text}# {self._saves}\n")
        told = self.serves()
        return time.monotonic() - begin, told

    def idle(self, seconds: float) -> float:
        """Return the CPU usage of the idle command in thousandths."""
        before = cpu_seconds(self._process.pid)
        time.sleep(seconds)
        return (cpu_seconds(self._process.pid) - before) / seconds * 1000

    def end(self) -> None:
        """Stop the command."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate()


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as text:
        dev = Dev(Path(text))
        try:
            first = dev.serves()
            saves = []
            for _ in range(SAVES):
                time.sleep(PAUSE_SECONDS)
                saves.append(dev.save())
            at_once = [dev.save()[0] for _ in range(SAVES)]
            time.sleep(PAUSE_SECONDS)
            idle = dev.idle(10.0)
        finally:
            dev.end()
    return [
        Row("dev: the driver serves for the first time, as it says", first, "s", None),
        Row("dev: a save serves, as it says", median(told for _, told in saves), "s", None),
        Row("dev: from a save until it serves", median(seen for seen, _ in saves), "s", None),
        Row("dev: from a save right after another", median(at_once), "s", None),
        Row("dev: CPU while nothing is done", idle, "mCPU", None),
        Row("dev: other processes that wait for a CPU", os.getloadavg()[0], "", None),
    ]


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.dev", __doc__, measure))
