"""``Journal``: what is being made on the GPUs, so that half-done work is recognised after a crash."""

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel


class Entry(BaseModel):
    """One thing that is being made, or was.

    Attributes:
        before: ids that were there when it was begun.
        made: its own id, once it is there.
    """

    before: frozenset[int]
    made: int | None = None


class Journal:
    """One file for each thing that is being made; durable before the hardware is touched.

    NVML instances carry no mark of who made them. An entry says which were there before, so that what is there beside
    them is this driver's.

    Args:
        folder: of the driver's state; made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, name: str, before: Iterable[int]) -> None:
        """Record that ``name`` is being made, and the ids that exist already."""
        self._write(name, Entry(before=frozenset(before)))

    def finish(self, name: str, made: int) -> None:
        """Record the id of what was made; nothing to do where it was not begun."""
        entry = self.read(name)
        if entry is not None:
            self._write(name, entry.model_copy(update={"made": made}))

    def read(self, name: str) -> Entry | None:
        """Return the entry; None when it was never begun."""
        try:
            return Entry.model_validate_json(self._file(name).read_bytes())
        except FileNotFoundError:
            return None

    def made_by_others(self, group: str, name: str) -> frozenset[int]:
        """Return the ids in the entries whose names begin with ``group``, but for that of ``name``."""
        names = [file.stem for file in self._folder.glob(f"{group}*.json") if file.stem != name]
        entries = [self.read(other) for other in names]
        return frozenset(entry.made for entry in entries if entry is not None and entry.made is not None)

    def remove(self, name: str) -> None:
        """Remove the entry of what is gone, or was never begun."""
        self._file(name).unlink(missing_ok=True)

    def remove_group(self, group: str) -> None:
        """Remove all entries whose names begin with ``group``."""
        for file in self._folder.glob(f"{group}*.json"):
            file.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _write(self, name: str, entry: Entry) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._file(name).with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            file.write(entry.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._file(name))
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
