"""The output of a container, as its readers find it."""

from __future__ import annotations

import asyncio
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.sandbox.containers.log import EXCERPT, LINE_MAX, ContainerLog, LogChunk, LogPosition

CHUNKS = st.lists(st.binary(max_size=20).map(lambda data: re.sub(rb"[x-\xff]", b"\n", data)), max_size=30)
SPLIT = b"x" * LINE_MAX


def entries(data: bytes) -> list[bytes]:
    """The entries of a runtime's log file, of a container that has ended."""
    found = []
    for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
        while len(line.removesuffix(b"\n")) > LINE_MAX:
            found.append(line[:LINE_MAX])
            line = line[LINE_MAX:]  # noqa: PLW2901 - what is left of it
        found.append(line)
    return found


def filled(*chunks: bytes, limit: int = 1 << 20, ended: bool = True) -> ContainerLog:
    """A log whose chunks came at 0, 1, 2 …"""
    log = ContainerLog(limit)
    for at, chunk in enumerate(chunks):
        log.append(chunk, at)
    if ended:
        log.finish(len(chunks))
    return log


def behind(log: ContainerLog, cursor: LogPosition) -> list[LogChunk]:
    """All that is behind a cursor."""
    found: list[LogChunk] = []
    while excerpt := log.read(cursor).arrivals:
        found += excerpt
        cursor = log.read(cursor).end
    return found


def data(log: ContainerLog, cursor: LogPosition) -> bytes:
    return b"".join(arrival.data for arrival in behind(log, cursor))


@given(CHUNKS, st.integers(0, 40))
def test_the_tail_is_the_last_lines(chunks: list[bytes], count: int) -> None:
    log = filled(*chunks)

    found = entries(b"".join(chunks))
    assert data(log, log.tail(count)) == b"".join(found[-count:] if count else [])
    assert log.end == LogPosition(len(b"".join(chunks)), len(found))


@given(CHUNKS, st.integers(0, 400))
def test_dropped_output_is_whole_lines_and_counted(chunks: list[bytes], limit: int) -> None:
    log = filled(*chunks, limit=limit)

    whole = b"".join(chunks)
    gone = log.begin.offset
    assert data(log, log.begin) == whole[gone:]
    assert log.text == whole[gone:].decode(errors="replace")
    assert log.begin.line == len(entries(whole[:gone]))
    assert not gone or whole[gone - 1 : gone] == b"\n"
    assert log.read(LogPosition()).missed == log.begin


@given(CHUNKS, st.integers(-1, 31))
def test_line_has_the_time_of_its_end(chunks: list[bytes], at: int) -> None:
    log = filled(*chunks)

    whole = b"".join(chunks)
    arrived, times = 0, []
    for entry in entries(whole):
        arrived += len(entry)
        sizes = [len(b"".join(chunks[: number + 1])) for number in range(len(chunks))]
        times.append(
            next(number for number, size in enumerate(sizes) if size >= arrived) if entry[-1:] == b"\n" else len(chunks)
        )
    assert data(log, log.since(at)) == b"".join(
        entry for entry, time in zip(entries(whole), times, strict=True) if time >= at
    )


@settings(max_examples=20)
@given(st.lists(st.sampled_from([b"a\n" * 20_000, SPLIT, SPLIT + b"x", SPLIT + b"\n", b"\n", b"end"]), max_size=8))
def test_overlong_lines_are_split(chunks: list[bytes]) -> None:
    log = filled(*chunks)

    found = behind(log, log.begin)
    assert [entry for arrival in found for entry in entries(arrival.data)] == entries(b"".join(chunks))
    assert all(b"\n" not in arrival.data or arrival.data.endswith(b"\n") for arrival in found)
    assert sum(len(arrival.data) for arrival in log.read(log.begin).arrivals) <= EXCERPT


def test_unterminated_text_is_not_a_line_yet() -> None:
    log = filled(b"one\ntw", ended=False)
    assert data(log, log.begin) == b"one\n"

    log.append(b"o\nthree", 7)
    log.finish(9)

    assert [(item.at, item.data) for item in behind(log, LogPosition(4, 1))] == [(7, b"two\n"), (9, b"three")]


def test_late_reader_sees_how_much_it_missed() -> None:
    log = filled(b"one\n", ended=False, limit=1000)
    reader = log.read(LogPosition()).end
    for number in range(100):
        log.append(b"%02d\n" % number, number)

    excerpt = log.read(reader)

    assert excerpt.missed.line > 0
    assert excerpt.missed.offset == 3 * excerpt.missed.line
    assert excerpt.arrivals[0].data == b"%02d\n" % excerpt.missed.line
    assert log.read(excerpt.end).missed == LogPosition()


def test_retained_output_is_bounded_for_small_writes() -> None:
    log = ContainerLog(10_000)
    for number in range(10_000):
        log.append(b"\n", number)

    assert 300 < log.end.line - log.begin.line <= 400


def test_the_text_is_decoded_once() -> None:
    log = filled(b"one\xff\n", ended=False)
    text = log.text
    assert text == "one\ufffd\n"
    assert log.text is text

    log.append(b"two\n", 1)

    assert log.text == "one\ufffd\ntwo\n"


def test_timestamps_never_decrease() -> None:
    log = ContainerLog()
    log.append(b"one\n", 5)
    log.append(b"two\n", 3)

    assert data(log, log.since(5)) == b"one\ntwo\n"


def test_discarded_log_is_empty_and_reports_its_size() -> None:
    log = filled(b"one\ntwo\n")

    log.discard()

    assert (log.text, log.begin, log.read(LogPosition()).missed) == ("", LogPosition(8, 2), LogPosition(8, 2))


async def test_follower_reads_until_the_end() -> None:
    log = ContainerLog()
    log.append(b"one\n", 0)
    got: list[bytes] = []

    async def follow() -> None:
        async for excerpt in log.follow(LogPosition()):
            got.extend(arrival.data for arrival in excerpt.arrivals)

    readers = [asyncio.create_task(follow()) for _ in range(2)]
    await asyncio.sleep(0.01)
    log.append(b"two\n", 1)
    await asyncio.sleep(0.01)
    log.append(b"three", 2)
    log.finish(3)
    await asyncio.gather(*readers)

    assert sorted(got) == [b"one\n", b"one\n", b"three", b"three", b"two\n", b"two\n"]


async def test_cancelled_reader_is_cleaned_up() -> None:
    log = ContainerLog()
    waiting = asyncio.create_task(log.more(LogPosition()))
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.wait([waiting])
    log.append(b"one\n", 0)

    assert await log.more(LogPosition())
