"""A log file that is kept from growing."""

from __future__ import annotations

import threading
from pathlib import Path

from dra_kit.sandbox.run.detached import bounded_file, trim
from tests.unit.sandbox.cluster.workload.test_runtime import wait_for

MIB = 1 << 20


def lines(begin: int, end: int) -> bytes:
    return b"".join(b"%099d\n" % number for number in range(begin, end))


def test_oldest_lines_are_dropped_and_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as writer:
        writer.write(lines(0, 20_000))
        trim(log, MIB)
        writer.write(lines(20_000, 20_001))

    notice, *kept = log.read_bytes().splitlines(keepends=True)
    first = int(kept[0])
    assert notice == b"(%s bytes of older lines went: at most 1 MiB are kept)\n" % f"{first * 100:,}".encode()
    assert b"".join(kept) == lines(first, 20_001)
    assert MIB // 2 - 200 < len(b"".join(kept)) <= MIB // 2 + 100


def test_a_file_that_is_short_enough_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(lines(0, 10))

    trim(log, MIB)

    assert log.read_bytes() == lines(0, 10)


def test_overlong_line_is_dropped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 3 * MIB)

    trim(log, MIB)

    assert log.stat().st_size < MIB


def test_file_is_bounded_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as writer, bounded_file(log, MIB):
        for number in range(2):
            writer.write(lines(number * 20_000, (number + 1) * 20_000))
            wait_for(lambda: log.stat().st_size < MIB)

    assert not any(thread.name == "log of the sandbox" for thread in threading.enumerate())
    assert log.read_bytes().endswith(lines(39_999, 40_000))


def test_missing_file_is_neither_watched_nor_created(tmp_path: Path) -> None:
    with bounded_file(tmp_path / "none"):
        wait_for(lambda: not any(thread.name == "log of the sandbox" for thread in threading.enumerate()))
    assert list(tmp_path.iterdir()) == []
