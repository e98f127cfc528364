"""The cost of attacks: the number of resisted attacks, maximum time and memory of each part."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROPERTY = "hostile"
"""Name of the pytest property that carries a case: part, case, seconds, MiB (0: not measured)."""


@dataclass
class Case:
    """A running attack; ``mebibytes`` is the maximum memory of the attacked process, 0 if it is not measured."""

    mebibytes: float = 0.0

    def took(self, mebibytes: float) -> None:
        """Record the memory of the attacked process; the maximum counts."""
        self.mebibytes = max(self.mebibytes, mebibytes)


class Ledger:
    """Records the attacks of one part.

    Args:
        part: the part in docs/explanation/security.md, such as ``files``.
        record: records name and value of a property of the running test.
    """

    def __init__(self, part: str, record: Callable[[str, object], None]) -> None:
        self._part = part
        self._record = record

    @contextmanager
    def attack(self, case: str, *, pid: int = 0, most: float = math.inf) -> Iterator[Case]:
        """Time an attack, which is resisted if the block ends without an error.

        Args:
            case: the attack.
            pid: the attacked process, if its memory is measured at the end.
            most: MiB that it must not reach.
        """
        found = Case()
        begin = time.monotonic()
        yield found
        if pid:
            found.took(peak_mebibytes(pid))
            assert found.mebibytes < most
        self._record(PROPERTY, (self._part, case, time.monotonic() - begin, found.mebibytes))


def peak_mebibytes(pid: int) -> float:
    """Return the maximum resident memory of a running process (VmHWM of proc(5)), in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has ended")


def summary(cases: Iterable[tuple[str, str, float, float]]) -> list[str]:
    """Return a line for each part: the number of resisted attacks, and the slowest and largest ones."""
    parts: dict[str, list[tuple[str, float, float]]] = {}
    for part, case, seconds, mebibytes in cases:
        parts.setdefault(part, []).append((case, seconds, mebibytes))
    lines = []
    for part, found in sorted(parts.items()):
        slowest = max(found, key=lambda item: item[1])
        largest = max(found, key=lambda item: item[2])
        memory = f"; most memory {largest[2]:.0f} MiB ({largest[0]})" if largest[2] else ""
        lines.append(f"{part}: {len(found)} attacks resisted; slowest {slowest[1]:.2f} s ({slowest[0]}){memory}")
    return lines
