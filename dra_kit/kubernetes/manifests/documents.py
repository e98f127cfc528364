"""Objects in files, folders and standard input; documents in a text of YAML or JSON, by kubectl's rules."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

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
from dra_kit.kubernetes.manifests.yaml_reader import InvalidScalar, Node, ScalarNode, SequenceNode, compose, json_value
from dra_kit.kubernetes.values.json import DuplicateKeysObject, check_json, make_decoder


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


_SPACE: Final = " \t\r\n"
_SURROGATE: Final = re.compile(r"(?<=\\)u[dD][89a-fA-F][0-9a-fA-F]{2}")
_RECORD: Final = re.compile(r'\{"kind":"[A-Za-z]+","number":[0-9]+[,}]')
_RAW: Final = "parameters"
"""The field of opaque configuration, which the API server stores unchanged, including duplicate keys."""


class TextDocument:
    """One document of a text; ``root`` is None for JSON, whose nodes are created on demand."""

    def __init__(self, value: Any, root: Node | None, text: str, limits: Limits) -> None:
        self.value = value
        self._root = root
        self._is_json = root is None
        self._text = text
        self._limits = limits

    @property
    def root(self) -> Node:
        """Its node; for JSON that is not YAML, a node with only a position."""
        if self._root is None:
            # JSON strings contain no tabs; YAML rejects tabs between tokens, and lone surrogates
            text = _SURROGATE.sub("u0020", self._text.replace("\t", " "))
            try:
                self._root = next(compose(text, self._limits))
            except (UnreadableText, StopIteration):
                self._root = ScalarNode(0, min(1, len(text)), "", "", None)
        return self._root

    def repeated(self, *, everywhere: bool = False) -> Iterator[tuple[str, ScalarNode]]:
        """Yield the paths and nodes of duplicate keys; with ``everywhere`` also in the opaque parameters of JSON."""
        passed_over = _RAW if self._is_json and not everywhere else None
        if self._is_json and not _repeats(self.value, passed_over):
            return
        waiting = [("", self.root)]
        seen: set[int] = set()
        while waiting:
            path, node = waiting.pop()
            if id(node) in seen or isinstance(node, ScalarNode):
                continue
            seen.add(id(node))
            if isinstance(node, SequenceNode):
                waiting += [(f"{path}[{index}]", item) for index, item in enumerate(node.items)]
                continue
            keys: set[str] = set()
            for key, key_node, value in node.entries:
                if key is None:
                    waiting.append((path, value))
                    continue
                where = f"{path}.{key}" if path else key
                if key in keys:
                    yield where, key_node
                keys.add(key)
                if key != passed_over:
                    waiting.append((where, value))


def parse_documents(text: str, limits: Limits = MANIFESTS, *, places: bool = True) -> Iterator[TextDocument]:
    """Yield the documents of a text, including those before a problem: one of JSON, or any number of YAML.

    Args:
        text: without a byte order mark.
        limits: of all of them together.
        places: whether positions are needed in addition to values.

    Raises:
        UnreadableText: the rest is neither YAML nor JSON, or exceeds the limits; or the text is a recording.
    """
    if is_recording(text):
        raise UnreadableText("this is a recording, not YAML or JSON; show it with 'dra-kit replay'")
    if text.lstrip(_SPACE).startswith(("{", "[")):
        try:
            check_json(text.encode(errors="replace"), depth=limits.depth, values=limits.values)
        except ValueError as error:
            raise UnreadableText(str(error)) from None
        try:
            yield TextDocument(_json_document(text), None, text, limits)
        except UnreadableText:
            raise
        except ValueError:
            pass  # it may be a YAML mapping or list; kubectl also tries both
        else:
            return
    for root in compose(text, limits, inner=places):
        yield TextDocument(root.value, root, text, limits)


def is_recording(text: str) -> bool:
    """Return whether a text begins with a record of ``dra-kit sandbox --record`` or ``dra-kit snapshot --follow``."""
    return _RECORD.match(text) is not None


def decode_utf8(content: bytes) -> str:
    """Decode a text and remove its byte order mark; raises UnreadableText if it is not UTF-8."""
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UnreadableText(f"byte {error.start} is not valid UTF-8 ({error.reason}); save it as UTF-8") from None


def list_items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a List with their paths; yield any other value itself, with an empty path."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(value.get("items"), list)):
        yield "", value
        return
    kind = kind.removesuffix("List")
    # items of a list of one kind may omit it
    implied = {"apiVersion": value.get("apiVersion"), "kind": kind} if kind else {}
    for index, item in enumerate(value["items"]):
        for path, found in list_items({**implied, **item} if isinstance(item, dict) else item):
            yield f"items[{index}]{'.' if path else ''}{path}", found


def _repeats(value: Any, passed_over: str | None) -> bool:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, DuplicateKeysObject):
            return True
        if isinstance(found, dict):
            waiting += [item for key, item in found.items() if key != passed_over]
        elif isinstance(found, list):
            waiting += found
    return False


_DIGITS: Final = 400


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) < 19 else _float(digits)


def _float(digits: str) -> Any:
    try:
        return json_value(int(digits) if len(digits) <= _DIGITS and digits.lstrip("-").isdigit() else float(digits))
    except InvalidScalar:
        raise UnreadableText("a number is too large for a 64-bit float; quote it") from None


_json_document = make_decoder(parse_int=_integer, parse_float=_float)
"""Decodes JSON as kubectl does: integers beyond 64 bits become floats, and whole floats become integers."""
