"""Files with Kubernetes objects: their values as kubectl reads them, and the places of the fields."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dra_kit.manifests.limits import MANIFESTS
from dra_kit.manifests.positions import Place, Positions
from dra_kit.manifests.text import documents, items
from dra_kit.manifests.unreadable import Unreadable


@dataclass(frozen=True)
class SourceFile:
    """A file to be checked.

    Attributes:
        name: its path, as findings are to name it.
        text: what is in it; a byte order mark before it is taken away, as no line or column counts it.
        chosen: whether it was named, and not just found in a folder: what is in it must be Kubernetes objects then.
    """

    name: str
    text: str
    chosen: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.removeprefix("\ufeff"))

    def line(self, index: int) -> tuple[int, int, int]:
        """The line of a character: its number from 1, where it begins, and where it ends without its end of line.

        Args:
            index: of the character in the text.
        """
        number = bisect_right(self._lines, index)
        begin = self._lines[number - 1]
        end = self._lines[number] - 1 if number < len(self._lines) else len(self.text)
        return number, begin, end - (end > begin and self.text[end - 1] == "\r")

    @cached_property
    def _lines(self) -> list[int]:
        """Where each line begins."""
        begins = [0]
        newline = self.text.find("\n")
        while newline >= 0:
            begins.append(newline + 1)
            newline = self.text.find("\n", newline + 1)
        return begins


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file, or an item of a List.

    Attributes:
        file: the file.
        body: its value; whatever the file has.
        positions: the places of its fields.
        duplicates: paths of keys that stand twice in one mapping, with the place of the second one.
        number: of the YAML document in the file, from 0.
    """

    file: SourceFile
    body: Any
    positions: Positions
    duplicates: tuple[tuple[str, Place], ...] = ()
    number: int = 0


@dataclass(slots=True)
class Reading:
    """What became of a file.

    Attributes:
        documents: what could be read.
        problem: why the rest could not; empty if all could.
        place: where the problem is.
    """

    documents: list[Document] = field(default_factory=list)
    problem: str = ""
    place: Place = field(default_factory=lambda: Place(0, 1))


def read(file: SourceFile) -> Reading:
    """The objects of a file of YAML documents, or of one JSON document."""
    reading = Reading()
    try:
        for number, document in enumerate(documents(file.text, MANIFESTS)):
            if document.value is None:
                continue
            repeated = tuple((path, Place(node.start, node.end)) for path, node in document.repeated())
            for index, (path, body) in enumerate(items(document.value)):
                positions = Positions(file.text, document.root, path)
                reading.documents.append(Document(file, body, positions, repeated if index == 0 else (), number))
    except Unreadable as error:
        reading.problem = error.problem
        start = min(error.start, max(len(file.text) - 1, 0))
        reading.place = Place(start, start + 1)
    if reading.problem and not file.chosen and "{{" in file.text:
        return Reading()  # a template of Helm's, which is no manifest yet
    return reading
