"""The timeline in memory and in a file."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import logging
import os
import secrets
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, get_args

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError

from dra_kit.errors import ConfigurationError
from dra_kit.files import create_private, replace_private
from dra_kit.kubernetes.manifests.files import size_text
from dra_kit.sandbox.records import (
    FORMAT,
    CallEnded,
    CallOverdue,
    CallStarted,
    CdiSpecWritten,
    ClusterCopied,
    ClusterEnding,
    ClusterStarted,
    ContainerEnded,
    ContainerStarted,
    DriverEnded,
    DriverNotServing,
    DriverRefused,
    DriverServing,
    DriverStarting,
    ObjectChanged,
    PluginConnected,
    PluginDisconnected,
    PluginRefused,
    PodDeletionExplained,
    PodExplained,
    PodScheduled,
    PodTerminating,
    PodUnschedulable,
    Record,
    RecordingStarted,
    RecordsLost,
    ResourceNotRecorded,
    RunEnded,
    StoryBegan,
    object_uid,
)
from dra_kit.text import counted

logger: logging.Logger = logging.getLogger(__name__)
LIMIT: Final = 32 << 20
"""Bytes of the file in the directory of a sandbox."""
RECORD_LIMIT: Final = 256 << 20
"""Bytes of a file that the user asks for."""
QUEUE: Final = 8_192
"""Records that wait for the disk; what comes when there are so many is lost."""
_PAUSE_SECONDS: Final = 0.05  # what comes meanwhile is written at once
_CLOSE_SECONDS: Final = 5.0
_LONGEST: Final = 16 << 20
"""Bytes of a line that is read; an object of the API has at most 3 MiB."""
_UNREADABLE: Final = (msgspec.DecodeError, TypeError, ValueError, RecursionError)
_NAMED: Final = 3
_MOST_KINDS: Final = 100
_NAME: Final = 40  # letters of a kind that is not known
_KINDS: Final = frozenset(kind.__name__ for kind in get_args(Record))


class RecordFile:
    """A private file with one record per line, which never becomes larger than its limit.

    An existing file is replaced; a link is not followed. When the file is full, its older half is reduced to the
    newest record of each thing that still exists, so that what follows can be understood; the whole of it, if that
    gains too little.

    Args:
        path: of the file.
        limit: bytes.
        fixed: what still holds may not exceed the limit either; if it does, the file is full. Otherwise, the limit
            is raised.

    Raises:
        OSError: from any method: the file cannot be written; no line is torn.
    """

    def __init__(self, path: Path, limit: int, *, fixed: bool = False) -> None:
        self._path = path
        self._limit = limit
        self._fixed = fixed
        self._size = 0
        replace_private(path, b"")
        self._descriptor = self._opened()

    def append(self, data: bytes) -> None:
        """Write whole lines."""
        if self._size + len(data) > self._limit:
            most = self._limit * 3 // 4  # above it little is gained, and soon it would be done again
            self._reduce(self._limit // 2)
            if self._size > most:
                self._reduce(0)
            if self._size > most:
                if self._fixed:
                    raise OSError(
                        errno.EFBIG, f"the newest state of all objects takes most of {size_text(self._limit)}"
                    )
                self._limit = 2 * self._size
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _opened(self) -> int:
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._size = os.fstat(descriptor).st_size
        return descriptor

    def _reduce(self, newest: int) -> None:
        """Replace all but so many of the newest bytes by the lines that still hold."""
        latest, begin, count, lost, last = LatestRecords(), 0, 0, 0, None
        new = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.new")
        with self._path.open("rb") as file:
            while begin < self._size - newest and (line := file.readline()):
                try:
                    last = _decoder().decode(line)
                except _UNREADABLE:  # another process has written into the file
                    lost += 1
                else:
                    if isinstance(last, RecordsLost):
                        lost += last.lost
                    else:
                        count += 1
                        latest.add(begin, last)
                begin += len(line)
            if last is None:
                return
            kept = latest.positions()
            gap = RecordsLost(number=last.number, at=last.at, seconds=last.seconds, lost=lost + count - len(kept))
            try:
                with os.fdopen(create_private(new), "wb") as written:
                    for position in kept:
                        file.seek(position)
                        written.write(file.readline())
                    written.write(record_line(gap))
                    file.seek(begin)
                    shutil.copyfileobj(file, written)
                new.replace(self._path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
        os.close(self._descriptor)
        self._descriptor = self._opened()


class TimelineFile:
    """Writes records in a separate thread; :meth:`write` is a reader of a timeline, and never blocks.

    See :class:`RecordFile` for the file. If the disk is full or slow, records are lost, which is logged once. When the
    disk can be written again, a :class:`~dra_kit.sandbox.records.RecordsLost` is written in place of the lost records.

    Args:
        path: of the file.
        limit: bytes of the file.
        redact: returns what is written of a record.
    """

    def __init__(
        self, path: Path, limit: int = LIMIT, *, redact: Callable[[Record], Record] = lambda item: item
    ) -> None:
        self.lost: int = 0
        self._path = path
        self._limit = limit
        self._redact = redact
        self._queue: deque[Record] = deque()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._not_queued = 0  # records lost since the last one that was queued
        self._not_written = 0
        self._warned = False
        self._file: RecordFile | None = None
        self._thread = threading.Thread(target=self._work, name=f"timeline {path.name}", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Write a record soon; none after :meth:`close`."""
        try:
            record = self._redact(record)
        except RecursionError as error:  # an object nested too deeply, which cannot be written either
            self._warn(str(error), "the other records are written")
            return
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
        if self._file is not None:
            self._file.close()

    def _store(self, records: Sequence[Record]) -> None:
        lines = []
        for record in [_lost_before(records[0], self._not_written), *records] if self._not_written else records:
            try:
                lines.append(record_line(record))
            except (ValueError, RecursionError) as error:  # invalid Unicode, or an object nested too deeply
                self._warn(str(error), "the other records are written")
        try:
            if self._file is None:
                self._file = RecordFile(self._path, self._limit)
            self._file.append(b"".join(lines))
        except OSError as error:
            self._not_written += len(records)
            self.lost += len(records)
            self._warn(error.strerror or str(error), "free some space, or name another file")
        else:
            self._not_written = 0

    def _warn(self, problem: str, remedy: str) -> None:
        if not self._warned:
            self._warned = True
            logger.error("timeline %s loses records: %s; %s", self._path, problem, remedy)


class Recording:
    """The records of a file; whatever it contains, they are read one by one, in bounded memory.

    A line that is not a record is skipped. :attr:`problems` says so after :meth:`records`.

    Args:
        path: of a regular file.

    Attributes:
        header: the first record, which says what the others were recorded with; None if it is missing.

    Raises:
        ConfigurationError: the file cannot be read, is not a recording, or has a newer format.
    """

    def __init__(self, path: Path) -> None:
        self.header: RecordingStarted | None = None
        self._path = path
        self._invalid = 0
        self._first_invalid = ""
        self._unknown: Counter[str] = Counter()
        self._is_cut_off = False
        self._lost = 0
        if not path.is_file():
            raise ConfigurationError(f"{path} is not a regular file, which a recording must be; name another file")
        for record in self.records():
            if isinstance(record, RecordingStarted):
                self.header = record
            break
        else:
            what = self._first_invalid or ("it has only an incomplete line" if self._is_cut_off else "it is empty")
            raise ConfigurationError(
                f"{path} is not a recording: {what}; use a file that 'dra-kit sandbox --record' or "
                "'dra-kit snapshot --follow' has written"
            )
        if self.header is not None and self.header.format > FORMAT:
            raise ConfigurationError(
                f"{path} has format {self.header.format}, which dra-kit {self.header.release} writes; this release "
                f"reads formats up to {FORMAT}: use that release, or a later one"
            )

    def records(self) -> Iterator[Record]:
        """Yield the records, oldest first.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        self._invalid, self._first_invalid, self._is_cut_off, self._lost = 0, "", False, 0
        self._unknown.clear()
        try:
            with self._path.open("rb") as file:
                yield from self._records(file)
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error.strerror or error}") from None

    def rejected(self, record: Record, problem: str) -> None:
        """Count a record that can be read, but not be used."""
        self._reject(f"record {record.number}", problem)

    @property
    def problems(self) -> list[str]:
        """What :meth:`records` skipped or missed, a sentence each."""
        found = list[str]()
        if self.header is None:
            found.append(
                "the first record does not say what the file was recorded with: the beginning is missing, or an older "
                "release has written it; explanations assume the default feature gates"
            )
        if self._lost:
            found.append(
                f"{counted(self._lost, 'record')} missing where the file was full or the disk slow; the state of "
                "objects is complete"
            )
        if self._unknown:
            names = ", ".join(sorted(self._unknown)[:_NAMED])
            more = f" and {len(self._unknown) - _NAMED} more" if len(self._unknown) > _NAMED else ""
            found.append(
                f"{counted(self._unknown.total(), 'record')} of unknown kinds skipped ({names}{more}): a newer release "
                "of dra-kit has written them"
            )
        if self._invalid:
            found.append(f"{counted(self._invalid, 'corrupt record')} skipped; the first is {self._first_invalid}")
        if self._is_cut_off:
            found.append("the last line is incomplete, because the recording was interrupted there")
        return found

    # --- inside

    def _records(self, file: BinaryIO) -> Iterator[Record]:
        number = 0
        while line := file.readline(_LONGEST):
            number += 1
            if len(line) == _LONGEST and not line.endswith(b"\n"):
                while (rest := file.readline(_LONGEST)) and not rest.endswith(b"\n"):
                    pass
                self._reject(f"line {number}", f"it is longer than {size_text(_LONGEST)}")
            elif not line.endswith(b"\n"):
                self._is_cut_off = True
            elif (record := self._record(line, number)) is not None:
                if isinstance(record, RecordsLost):
                    self._lost += record.lost
                yield record

    def _record(self, line: bytes, number: int) -> Record | None:
        try:
            record = _decoder().decode(line)
            if isinstance(record, ObjectChanged):
                _check_object(record)
        except _UNREADABLE as error:
            kind = _kind_of(line)
            if kind and kind not in _KINDS:
                kind = kind[:_NAME]
                self._unknown[kind if kind in self._unknown or len(self._unknown) < _MOST_KINDS else "…"] += 1
            else:
                self._reject(f"line {number}", str(error))
            return None
        return record

    def _reject(self, where: str, problem: str) -> None:
        self._invalid += 1
        self._first_invalid = self._first_invalid or f"{where}: {problem}"


class _AnyRecord(msgspec.Struct):
    kind: str


def _kind_of(line: bytes) -> str:
    """Return the kind of a line; empty if it has none."""
    try:
        return msgspec.json.decode(line, type=_AnyRecord).kind
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _check_object(record: ObjectChanged) -> None:
    """Check what identifies an object.

    Raises:
        TypeError: it is missing, or has another type.
    """
    metadata = record.object.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise TypeError("the object has no name")
    if not all(isinstance(metadata.get(name, ""), str) for name in ("namespace", "uid")):
        raise TypeError("namespace and UID of the object must be strings")


class LatestRecords:
    """Finds the records that still hold, in a part of a timeline: the newest of each thing that exists at its end."""

    def __init__(self) -> None:
        self._newest: dict[Hashable, tuple[int, Sequence[str]]] = {}  # position of the record, and what it is about
        self._gone: set[str] = set()  # by UID, or by name for objects without one, which may come again

    def add(self, position: int, record: Record) -> None:
        """Add a record; ``position`` says where it is."""
        thing = _thing(record)
        if thing is None:
            return
        self._newest[thing] = position, _subjects(record)
        if isinstance(record, ObjectChanged):
            change = self._gone.add if record.change == "DELETED" else self._gone.discard
            change(object_uid(record.object))

    def positions(self) -> list[int]:
        """Return the positions of the records that still hold, in order."""
        return sorted(
            position for position, about in self._newest.values() if not about or not self._gone.issuperset(about)
        )


def _thing(record: Record) -> Hashable:
    """Return what a record is the newest state of; None for what has happened once."""
    match record:
        case ObjectChanged():
            return record.resource, object_uid(record.object)
        case ResourceNotRecorded():
            return type(record), record.resource, record.group
        case PluginConnected() | PluginDisconnected():
            return "plugin", record.node, record.driver
        case PluginRefused():
            return "registration", record.node, record.socket
        case DriverStarting() | DriverServing() | DriverNotServing() | DriverRefused() | DriverEnded():
            return "driver", record.driver, getattr(record, "node", "")
        case ContainerStarted() | ContainerEnded():
            return type(record), record.container.id
        case CallStarted() | CallEnded():
            return "call", record.method, record.node, record.driver, record.claims
        case CallOverdue():
            return "overdue", record.method, record.node, record.driver, record.claims
        case CdiSpecWritten():
            return "CDI", record.node, record.driver, record.file
        case PodScheduled() | PodUnschedulable() | PodExplained() | PodTerminating() | PodDeletionExplained():
            return type(record), record.pod.uid
        case RecordingStarted() | ClusterStarted() | ClusterCopied() | ClusterEnding() | StoryBegan() | RunEnded():
            return type(record)
        case _:
            return None


def _subjects(record: Record) -> Sequence[str]:
    """Return the UIDs of what a record is about; it is of no use when all of them are deleted."""
    match record:
        case ObjectChanged():
            return (object_uid(record.object),)
        case ContainerStarted() | ContainerEnded():
            return (record.container.pod.uid,)
        case CallStarted() | CallOverdue() | CallEnded():
            return [claim.uid for claim in record.claims]
        case PodScheduled() | PodUnschedulable() | PodExplained() | PodTerminating() | PodDeletionExplained():
            return (record.pod.uid,)
        case _:
            return ()


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

    def append(self, record: Record, seconds: float | None = None) -> None:
        """Add a record after all others; it happens now, or happened at this time since the timeline began."""
        self._number += 1
        now = self._clock() - self._begin if seconds is None else seconds
        stamped = replace(record, number=self._number, at=self._wall(), seconds=now)
        for reader in self._readers:
            reader(stamped)
