"""Objects in files, folders and standard input."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.files import (
    MANIFESTS,
    STDIN,
    Limits,
    UnreadableText,
    files_in,
    read_file,
    read_folder,
    read_stream,
)
from dra_kit.kubernetes.manifests.positions import Positions, TextSpan
from dra_kit.kubernetes.manifests.text import TextDocument, decode_utf8, list_items, parse_documents


@dataclass(frozen=True)
class SourceFile:
    """A file as read.

    Attributes:
        name: its path, for errors and findings.
        text: its content without the byte order mark.
        explicit: the user named the file, and all its documents must be Kubernetes objects; otherwise it was found in a
            folder.
    """

    name: str
    text: str
    explicit: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.removeprefix("\ufeff"))

    @classmethod
    def of(cls, content: bytes, name: str, *, explicit: bool = True) -> SourceFile:
        """Return the file with these bytes; raises ConfigurationError if they are not UTF-8."""
        try:
            return cls(name, decode_utf8(content), explicit)
        except UnreadableText as error:
            raise ConfigurationError(f"{name} cannot be read: {error.problem}") from None

    def line(self, index: int) -> tuple[int, int, int]:
        """Return the line of the character at ``index``: number from 1, start, and end without the line break."""
        number = bisect_right(self._lines, index)
        begin = self._lines[number - 1]
        end = self._lines[number] - 1 if number < len(self._lines) else len(self.text)
        return number, begin, end - (end > begin and self.text[end - 1] == "\r")

    @cached_property
    def _lines(self) -> list[int]:
        """The index of the first character of each line."""
        return [0, *(newline.end() for newline in re.finditer("\n", self.text))]


@dataclass(frozen=True)
class ManifestDocument:
    """One object of a file, or an item of a List.

    Attributes:
        file: the file.
        body: its value, of any type.
        source: the YAML or JSON document that contains it.
        number: the index of that document in the file, from 0.
        path: the path of an item of a List in that document: ``items[3]``.
    """

    file: SourceFile
    body: Any
    source: TextDocument
    number: int = 0
    path: str = ""

    @cached_property
    def positions(self) -> Positions:
        """The positions of its fields."""
        return Positions(self.file.text, self.source.root, self.path)

    @property
    def duplicates(self) -> list[tuple[str, TextSpan]]:
        """Paths of duplicate keys in mappings of the document, with the position of the second one."""
        return [(path, TextSpan(node.start, node.end)) for path, node in self.source.repeated()]


class ReadResult(Struct):
    """The documents of a file, up to the first ``error``."""

    file: SourceFile
    documents: list[ManifestDocument] = field(default_factory=list)
    error: UnreadableText | None = None

    @property
    def problem(self) -> str:
        """The message of the error; empty without one."""
        return "" if self.error is None else self.error.problem

    @property
    def place(self) -> TextSpan:
        """The position of the error."""
        start = 0 if self.error is None else min(self.error.start, max(len(self.file.text) - 1, 0))
        return TextSpan(start, start + 1)


def read_documents(file: SourceFile, limits: Limits = MANIFESTS, *, places: bool = True) -> ReadResult:
    """Read the objects of a file of YAML documents, or of one JSON document; skip empty documents.

    Without ``places``, only values are needed and no positions.
    """
    reading = ReadResult(file)
    try:
        for number, source in enumerate(parse_documents(file.text, limits, places=places)):
            if source.value is not None:
                reading.documents += [
                    ManifestDocument(file, body, source, number, path) for path, body in list_items(source.value)
                ]
    except UnreadableText as error:
        reading.error = error
    return reading


def read_objects(file: SourceFile, limits: Limits = MANIFESTS, *, name: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Return the Kubernetes objects of a file, each with a description of its position; other content is an error.

    If the user did not name the file, documents that do not look like Kubernetes objects are skipped.

    Args:
        file: the file.
        limits: of all documents together.
        name: name of the file in the descriptions; by default its own.

    Raises:
        ConfigurationError: the file is neither YAML nor JSON, or a document is not an object.
    """
    reading = read_documents(file, limits, places=False)
    if reading.error is not None:
        raise _unreadable(file, reading.error)
    found: list[tuple[str, dict[str, Any]]] = []
    for one in reading.documents:
        if file.explicit or looks_like_object(one.source.value):
            where = _where(name or file.name, one.number, one.path)
            found.append((where, _object(one.body, where)))
    return found


def check_objects(bodies: Iterable[Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects in the documents of a file, given by their values, with a description of their position.

    Raises:
        ConfigurationError: a document is not an object.
    """
    for number, value in enumerate(bodies):
        for path, body in list_items(value):
            where = _where(name, number, path)
            yield where, _object(body, where)


def read_values(file: SourceFile, limits: Limits = MANIFESTS) -> list[Any]:
    """Return the values of all documents of a file, such as settings; also empty ones.

    Raises:
        ConfigurationError: the file is neither YAML nor JSON.
    """
    try:
        return [document.value for document in parse_documents(file.text, limits, places=False)]
    except UnreadableText as error:
        raise _unreadable(file, error) from None


def looks_like_object(body: Any) -> bool:
    """Return whether a document found in a folder looks like a Kubernetes object, valid or not."""
    if not isinstance(body, Mapping):
        return False
    # Chart.yaml and similar files also have an apiVersion
    return {"apiVersion", "kind"} <= body.keys() or ("metadata" in body and bool({"apiVersion", "kind"} & body.keys()))


def _where(name: str, number: int, path: str) -> str:
    return f"{name}, document {number + 1}{', ' if path else ''}{path}"


def _object(body: Any, where: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ConfigurationError(f"{where} is not an object; it must have apiVersion, kind and metadata")
    for name in ("apiVersion", "kind"):
        if not isinstance(body.get(name), str) or not body[name]:
            raise ConfigurationError(f"{where} lacks {name}, which must be a string")
    if not isinstance(body.get("metadata"), dict):
        raise ConfigurationError(f"{where} ({body['kind']}) lacks metadata.name")
    return body


def _unreadable(file: SourceFile, error: UnreadableText) -> ConfigurationError:
    return ConfigurationError(f"{file.name} cannot be read: {error.within(file.text)}")


def source_file(path: Path, limits: Limits = MANIFESTS) -> SourceFile:
    """Return one file.

    Raises:
        ConfigurationError: it cannot be read, is too large, or is not text in UTF-8.
    """
    return SourceFile.of(read_file(path, limits), str(path))


def source_files(path: Path, *, tree: bool = False) -> Iterator[SourceFile]:
    """Yield the manifests of a path; those of a folder are sorted and not ``explicit``.

    Args:
        path: a file, a folder with YAML and JSON files, or ``-`` for standard input.
        tree: also read the subfolders of a folder, except hidden ones.

    Raises:
        ConfigurationError: a file cannot be read, is too large, or is not text in UTF-8.
    """
    if path.is_dir():
        for file, content in read_folder(files_in(path, recursive=tree, hidden=not tree), path, MANIFESTS):
            yield SourceFile.of(content, str(file), explicit=False)
    elif str(path) == "-":
        yield SourceFile.of(read_stream(sys.stdin.buffer, "standard input", MANIFESTS), STDIN)
    else:
        yield source_file(path)
