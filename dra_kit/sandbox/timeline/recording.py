"""The timeline in memory and in a file."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError

from dra_kit.errors import ConfigurationError
from dra_kit.files import replace_private
from dra_kit.sandbox.records import Record, RecordsLost

logger: logging.Logger = logging.getLogger(__name__)
LIMIT: Final = 32 << 20
"""Bytes of a file: when there are more, the older half goes."""
QUEUE: Final = 8_192
"""Records that wait for the disk; what comes when there are so many is lost."""
_PAUSE_SECONDS: Final = 0.05  # what comes meanwhile is written at once
_CLOSE_SECONDS: Final = 5.0


class TimelineFile:
    """Writes records in a separate thread; :meth:`write` is a reader of a timeline, and never blocks.

    An existing file is replaced; a link is not followed.

    If the disk is full or slow, records are lost, which is logged once. When the disk can be written again, a
    :class:`~dra_kit.sandbox.records.RecordsLost` is written in place of the lost records.
    """

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.lost: int = 0
        self._path = path
        self._limit = limit
        self._queue: deque[Record] = deque()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._not_queued = 0  # records lost since the last one that was queued
        self._not_written = 0
        self._warned = False
        self._descriptor: int | None = None
        self._size = 0
        self._thread = threading.Thread(target=self._work, name=f"timeline {path.name}", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Write a record soon; none after :meth:`close`."""
        with self._changed:
            if self._closed.is_set():
                return
            late = len(self._queue) >= QUEUE
            if late:
                self._not_queued += 1
                self.lost += 1
            else:
                if self._not_queued:
                    self._queue.append(_lost_before(record, self._not_queued))
                    self._not_queued = 0
                self._queue.append(record)
                self._changed.notify()
        if late:
            self._warn("the disk is too slow for it", "name a file on a faster one")

    async def room(self) -> None:
        """Wait until half of the queue is free, at most as long as for the end: a disk may not answer."""
        end = time.monotonic() + _CLOSE_SECONDS
        while len(self._queue) > QUEUE // 2 and time.monotonic() < end:  # noqa: ASYNC110 - another thread empties it
            await asyncio.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Write the remaining records, unless the disk takes too long; no records may follow."""
        self._closed.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)

    # --- in the thread

    def _work(self) -> None:
        over = False
        while not over:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed.is_set())
                over = self._closed.is_set()
                records = list(self._queue)
                self._queue.clear()
            if records:
                self._store(records)
            if not over:
                self._closed.wait(_PAUSE_SECONDS)
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _store(self, records: Sequence[Record]) -> None:
        lines = []
        for record in [_lost_before(records[0], self._not_written), *records] if self._not_written else records:
            try:
                lines.append(record_line(record))
            except (ValueError, RecursionError) as error:  # invalid Unicode, or an object nested too deeply
                self._warn(str(error), "the other records are written")
        data = b"".join(lines)
        try:
            if self._descriptor is None:
                replace_private(self._path, b"")
                self._open()
            if self._size + len(data) > self._limit:
                self._drop_older_half()
            self._append(data)
        except OSError as error:
            self._not_written += len(records)
            self.lost += len(records)
            self._warn(error.strerror or str(error), "free some space, or name another file")
        else:
            self._not_written = 0

    def _open(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._size = os.fstat(self._descriptor).st_size

    def _append(self, data: bytes) -> None:
        descriptor, rest = self._file, memoryview(data)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            os.ftruncate(descriptor, self._size)  # no line stays torn
            raise
        self._size += len(data)

    def _drop_older_half(self) -> None:
        begin = max(self._size - self._limit // 2, 0)
        newest = os.pread(self._file, self._size - begin, begin).partition(b"\n")[2]
        first, end, rest = newest.partition(b"\n")
        if not end:
            replace_private(self._path, b"")
        else:
            record = _decoder().decode(first)
            lost = record_line(_lost_before(record, record.number - 1))
            replace_private(self._path, lost + first + end + rest)
        self._open()

    @property
    def _file(self) -> int:
        if self._descriptor is None:
            raise FileNotFoundError(f"{self._path} is not open")
        return self._descriptor

    def _warn(self, problem: str, remedy: str) -> None:
        if not self._warned:
            self._warned = True
            logger.error("timeline %s loses records: %s; %s", self._path, problem, remedy)


def read_timeline(path: Path) -> Iterator[Record]:
    """Yield the records of a file, oldest first; skip an incomplete last line, as left by a crash.

    Raises:
        ConfigurationError: a line is not a record.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _decoder().decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ConfigurationError(
                    f"{path}: line {number} is not a record of a timeline: {error}; give a file that 'dra-kit sandbox "
                    "--timeline' of this version has written"
                ) from None


def timeline_schema() -> dict[str, Any]:
    """Return the JSON schema of one line."""
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Record of a timeline of dra-kit"}
    of_models: dict[str, Any] = {}

    def schema_of_model(kind: type[Any]) -> dict[str, Any]:
        schema: dict[str, Any] = kind.model_json_schema()
        of_models.update(schema.pop("$defs", {}))  # references begin at the root
        return schema

    schema = msgspec.json.schema(Record, schema_hook=schema_of_model)
    return {**title, **schema, "$defs": {**of_models, **schema["$defs"]}}


@cache
def _decoder() -> msgspec.json.Decoder[Record]:
    return msgspec.json.Decoder(Record, dec_hook=_model)


def _model(kind: type[Any], value: object) -> object:
    """Return a value that is not a struct: CDI edits."""
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValidationError as error:
        raise ValueError(error.errors(include_url=False)[0]["msg"]) from None


def _plain(value: object) -> object:
    """Return a value that is not a struct as a JSON value."""
    if isinstance(value, BaseModel):  # edits of CDI
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping):  # a view of an object
        return dict(value)
    raise TypeError(f"a record holds {type(value).__name__}, which cannot be written as JSON")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain)


def record_line(record: Record) -> bytes:
    """Return a record as a line of JSON.

    Raises:
        ValueError: it has invalid Unicode.
        RecursionError: an object in it is nested too deeply.
    """
    return _ENCODER.encode(record) + b"\n"


def _lost_before(record: Record, lost: int) -> RecordsLost:
    return RecordsLost(number=record.number - 1, at=record.at, seconds=record.seconds, lost=lost)


Reader: TypeAlias = Callable[[Record], None]
"""Called with each record, in order; returns at once, raises nothing and appends no record."""


class Timeline:
    """Numbers records and passes each of them to its readers, without storing them. For one event loop.

    Args:
        wall: returns the time of day, in UTC.
        clock: a monotonic clock, in seconds.
        begin: the time by the clock from which the seconds of records are counted; None for now.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        clock: Callable[[], float] = time.monotonic,
        begin: float | None = None,
    ) -> None:
        self._wall = wall
        self._clock = clock
        self._begin = clock() if begin is None else begin
        self._number = 0
        self._readers: list[Reader] = []

    def subscribe(self, reader: Reader) -> None:
        """Call a reader with each record from now on, after the readers before it."""
        self._readers.append(reader)

    def append(self, record: Record) -> None:
        """Add a record: it happens now, after all others."""
        self._number += 1
        stamped = replace(record, number=self._number, at=self._wall(), seconds=self._clock() - self._begin)
        for reader in self._readers:
            reader(stamped)
