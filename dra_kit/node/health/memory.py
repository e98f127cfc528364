"""What is wrong with devices, stored in a file: taints outlive the process that set them."""

from __future__ import annotations

import datetime as dt
import json
import logging
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dra_kit.errors import StoreError
from dra_kit.node.health.conditions import Problem
from dra_kit.node.health.ledger import Remembered
from dra_kit.node.state.checksums import checksum
from dra_kit.node.state.sqlite.place import sync
from dra_kit.node.steps import Step, reached

logger: logging.Logger = logging.getLogger(__name__)

FILE: Final = "health.json"
"""Its name, below the state directory."""

_FORM: Final = 1
"""A release that reads another one knows nothing: what it would misread is worse."""


class HealthMemory:
    """The file :data:`FILE` of the state directory.

    Args:
        path: of the file; its directory is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None  # which file was read or written last

    def sweep(self) -> None:
        """Remove what a process left that was killed while it wrote; one that lives tries again."""
        for unfinished in self._path.parent.glob(f".{self._path.name}.*"):
            unfinished.unlink(missing_ok=True)

    def read(self) -> list[Remembered]:
        """Return what was written last; nothing where there is no file, or it is damaged, which is reported."""
        self._seen = self._signature()
        try:
            return [_remembered(item) for item in _stored(self._path)]
        except (OSError, ValueError, KeyError, TypeError) as cause:
            error = _damaged(self._path, cause)
            logger.error("health of devices is lost", extra={"error": str(error), "code": error.code})
            with suppress(OSError):  # then it is written over
                self._path.replace(_aside(self._path))
            return []

    def of_another(self) -> list[Remembered]:
        """Return what another process has written since this one read or wrote last; nothing where none has."""
        return self.read() if self._signature() != self._seen else []

    def _signature(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None

    def write(self, known: Sequence[Remembered]) -> None:
        """Replace what is stored, durably.

        Raises:
            StoreError: the file cannot be written.
        """
        text = json.dumps([_json(item) for item in known])
        document = json.dumps({"form": _FORM, "checksum": checksum([text]), "devices": text})
        # no process ID: in containers both processes of an update have the same
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            temporary.write_text(document)
            temporary.chmod(0o600)
            sync(temporary)
            temporary.replace(self._path)
            sync(self._path.parent)
            self._seen = self._signature()
        except OSError as error:
            raise StoreError(
                f"health of devices cannot be written to {self._path}: {error}; check that the disk is writable and "
                "not full (--state-dir)"
            ) from error
        reached(Step.HEALTH_STORED)


def dump_health(path: Path) -> list[dict[str, Any]]:
    """Return what ``dra-kit node --dump-state`` shows of the file: devices with their problems; change nothing.

    Raises:
        StoreError: the file is damaged, or cannot be read.
    """
    try:
        return [{name: item[name] for name in ("pool", "device", "problems")} for item in _stored(path)]
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise _damaged(path, cause) from cause


def _stored(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    text = document["devices"]
    if document["form"] != _FORM or document["checksum"] != checksum([text]):
        msg = "its checksum is not that of what was stored"
        raise ValueError(msg)
    stored: list[dict[str, Any]] = json.loads(text)
    return stored


def _damaged(path: Path, cause: Exception) -> StoreError:
    return StoreError(
        f"health of devices in {path} cannot be read: {type(cause).__name__}: {cause}; the node sets it aside as "
        f"{_aside(path).name}, and the driver's health source finds out again what is wrong",
        code="damaged-health",
    )


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged")


def _json(item: Remembered) -> dict[str, Any]:
    pool, device = item.key
    problems = [
        {"reason": one.reason, "message": one.message, "value": one.value, "since": one.since.isoformat()}
        for one in item.problems
    ]
    return {"pool": pool, "device": device, "identity": dict(item.identity), "problems": problems}


def _remembered(item: dict[str, Any]) -> Remembered:
    problems = tuple(
        Problem(one["reason"], one["message"], one["value"], dt.datetime.fromisoformat(one["since"]))
        for one in item["problems"]
    )
    return Remembered((item["pool"], item["device"]), item["identity"], problems)
