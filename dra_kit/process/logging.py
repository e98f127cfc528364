"""Logging of every role: constant messages with fields, as readable text or as JSON lines."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, Literal, TextIO, TypeAlias, get_args

from dra_kit.errors import ConfigurationError
from dra_kit.text import escape_unprintable

logger: logging.Logger = logging.getLogger(__name__)
LogFormat = Literal["text", "json"]
_PACKAGE: Final = "dra_kit."
_STANDARD: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
# What kopf adds to its own records, including all its settings.
_KOPFS: Final = frozenset({"settings", "k8s_ref", "k8s_skip"})
# Chatty below WARNING: kopf reports every handler call, aiohttp every request, asyncio its selector.
_THIRD_PARTY: Final = ("aiohttp", "asyncio", "grpc", "kopf", "kubernetes_asyncio")
_context: ContextVar[Mapping[str, str]] = ContextVar("log_context", default=MappingProxyType({}))


class log_context:  # noqa: N801 - a context manager, and called with each claim
    """Adds fields to every line logged inside; inner contexts add to outer ones.

    Args:
        claim: ``namespace/name`` of the ResourceClaim.
        claim_uid: its UID.
        pod: ``namespace/name`` of the Pod.
        device: name of the device, as it is advertised.
    """

    __slots__ = ("_fields", "_token")

    def __init__(
        self,
        *,
        claim: str | None = None,
        claim_uid: str | None = None,
        pod: str | None = None,
        device: str | None = None,
    ) -> None:
        named = {"claim": claim, "claim_uid": claim_uid, "pod": pod, "device": device}
        self._fields = {key: value for key, value in named.items() if value is not None}

    def __enter__(self) -> None:
        self._token = _context.set({**_context.get(), **self._fields})

    def __exit__(self, *_: object) -> None:
        _context.reset(self._token)


def context_of(context: Context) -> Mapping[str, str]:
    """Return the fields added to log lines in a context: that of a call, inspected from another thread."""
    return context.get(_context, {})


def configure(format: LogFormat = "text", level: str | int = "INFO", stream: TextIO | None = None) -> None:  # noqa: A002
    """Send all log records of this process to one stream; a second call replaces the configuration of the first.

    Third-party libraries are logged from WARNING on.

    Args:
        format: ``text`` for people, ``json`` for machines: one object per line with ``time`` (RFC 3339, UTC),
            ``level``, ``logger``, ``message``, the fields, and ``traceback`` where there is one.
        level: name or number of the lowest level that is logged.
        stream: standard error if omitted.

    Raises:
        ConfigurationError: the format or the level does not exist.
    """
    if format not in get_args(LogFormat):
        raise ConfigurationError(f"log format {format!r} does not exist: use one of {', '.join(get_args(LogFormat))}")
    levels = logging.getLevelNamesMapping()
    if isinstance(level, str) and level.upper() not in levels:
        raise ConfigurationError(f"log level {level!r} does not exist: use DEBUG, INFO, WARNING, ERROR or CRITICAL")
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [present for present in root.handlers if not isinstance(present, _Handler)]
    root.addHandler(handler)
    root.setLevel(level.upper() if isinstance(level, str) else level)
    quiet_libraries()


@contextmanager
def log_as_json() -> Iterator[None]:
    """Log JSON from the first line of a process on, also Python's warnings and exceptions of threads and finalizers.

    :func:`configure` sets another level later.
    """

    def thread_failed(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            name = args.thread.name if args.thread is not None else ""
            logger.error("thread stopped by an exception", extra={"thread_": name}, exc_info=args.exc_value)

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        logger.error("exception ignored", extra={"where": repr(args.object)}, exc_info=args.exc_value)

    configure("json")
    logging.captureWarnings(capture=True)
    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = thread_failed, unraisable
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks
        logging.captureWarnings(capture=False)


def quiet_libraries() -> None:
    """Log third-party libraries from WARNING on."""
    for name in _THIRD_PARTY:
        logging.getLogger(name).setLevel(logging.WARNING)


class _Handler(logging.StreamHandler[TextIO]):
    """A separate type, so that a second :func:`configure` finds and replaces it."""


class TextFormatter(logging.Formatter):
    """``12:00:01 INFO node.claims: claim prepared devices=2``, local time; tracebacks follow behind a bar."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; after an exception also its traceback, in lines that cannot be mistaken for log lines."""
        time = self.formatTime(record, "%H:%M:%S")
        line = f"{time} {record.levelname} {_logger_name(record)}: {escape_unprintable(_message(record))}"
        line += shown_fields(record)
        traceback = _traceback(self, record)
        return line + "".join(f"\n    | {escape_unprintable(row)}" for row in traceback.splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one JSON object; a field named like one of the fixed keys gets ``_`` appended."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname,
            "logger": _logger_name(record),
            "message": _message(record),
        }
        traceback = _traceback(self, record)
        if traceback:
            entry["traceback"] = traceback
        fixed = frozenset(entry)
        entry |= {
            f"{key}_" if key in fixed else key: to_printable_json(value) for key, value in fields_of(record).items()
        }
        return json.dumps(entry)


def _logger_name(record: logging.LogRecord) -> str:
    return escape_unprintable(record.name.removeprefix(_PACKAGE))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not match, or cannot be printed: the line matters more
        return f"{to_printable_json(record.msg)} {to_printable_json(record.args)}"


def shown_fields(record: logging.LogRecord) -> str:
    """Return the fields of a line as text: `` claim=default/lunch devices=2``; empty if there are none."""
    return "".join(
        f" {escape_unprintable(key)}={format_field_value(value)}" for key, value in fields_of(record).items()
    )


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a line: its own, and those of the current log context."""
    given = {str(key): value for key, value in vars(record).items() if key not in _STANDARD | _KOPFS}
    return {**_context.get(), **given}


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = ""
    if record.exc_info and record.exc_info[0] is not None:
        try:
            text = formatter.formatException(record.exc_info)
        except Exception:  # noqa: BLE001 - an exception that cannot be printed
            text = f"{record.exc_info[0].__name__} (its traceback cannot be printed)"
    if record.stack_info:
        text = f"{text}\n{record.stack_info}" if text else record.stack_info
    return text


Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"
_DEEPEST: Final = 4  # deeper values are truncated: a log line is not a dump
_WIDEST_INT: Final = 2**64  # beyond, numbers are written in hex: Python refuses to print huge decimals


def to_printable_json(value: object, _depth: int = 0) -> Plain:
    """Return what JSON can represent: containers as lists and objects, everything else as its ``repr``.

    Never raises: values that cannot be printed are replaced by their type, cycles are cut.
    """
    try:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int(value) if abs(value) < _WIDEST_INT else hex(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else repr(float(value))
        if isinstance(value, BaseException):
            return str(value) or type(value).__name__
        if _depth == _DEEPEST:
            return "..."
        if isinstance(value, Mapping):
            return {_key(key): to_printable_json(item, _depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, AbstractSet)):
            return [to_printable_json(item, _depth + 1) for item in value]
        return repr(value)
    except Exception:  # noqa: BLE001 - a __repr__, __str__ or __iter__ that fails must not lose the line
        return f"<{type(value).__name__} that cannot be printed>"


def format_field_value(value: object) -> str:
    """Return ``value`` for ``key=value``: unquoted if that is unambiguous, else as JSON."""
    shown = to_printable_json(value)
    if isinstance(shown, str) and shown and shown.isprintable() and not any(mark in shown for mark in ' "=\\'):
        return shown
    return escape_unprintable(json.dumps(shown, ensure_ascii=False))


def _key(key: object) -> str:
    shown = to_printable_json(key)
    return shown if isinstance(shown, str) else json.dumps(shown)
