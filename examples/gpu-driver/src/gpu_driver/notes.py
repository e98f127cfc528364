"""Notes of what is being made, so that after a crash half-done work is told from what somebody else has made."""

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel


class Note(BaseModel):
    """What is known of one thing that is being made, or was.

    Attributes:
        before: ids that were there when it was begun.
        made: its own id, once it is there.
    """

    before: frozenset[int]
    made: int | None = None


class Notes:
    """One file for each thing that is being made; durable before the hardware is touched.

    NVML instances carry no mark of who made them. A note says which were there before, so that what is there beside
    them is this driver's.

    Args:
        folder: of the driver's state; made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, name: str, before: Iterable[int]) -> None:
        """Note that ``name`` is being made, and the ids that are there already."""
        self._write(name, Note(before=frozenset(before)))

    def finish(self, name: str, made: int) -> None:
        """Note the id of what was made; nothing to do where it was not begun."""
        note = self.read(name)
        if note is not None:
            self._write(name, note.model_copy(update={"made": made}))

    def read(self, name: str) -> Note | None:
        """What was noted; None when it was never begun."""
        try:
            return Note.model_validate_json(self._file(name).read_bytes())
        except FileNotFoundError:
            return None

    def made_by_others(self, group: str, name: str) -> frozenset[int]:
        """The ids that notes beginning with ``group`` have, all but that of ``name``."""
        names = [file.stem for file in self._folder.glob(f"{group}*.json") if file.stem != name]
        notes = [self.read(other) for other in names]
        return frozenset(note.made for note in notes if note is not None and note.made is not None)

    def remove(self, name: str) -> None:
        """It is gone, or was never begun."""
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _write(self, name: str, note: Note) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._file(name).with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            file.write(note.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._file(name))
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
