"""Files with Kubernetes objects: their values as kubectl reads them, and the places of the fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from dra_kit.lint.positions import Place, Positions
from dra_kit.lint.yaml_values import Builder, Refused, below
from dra_kit.values.json import DuplicateKeysObject, loads

MAX_DEPTH: Final = 200
"""Levels of lists and mappings in a document."""

_NESTING: Final = "[{-?\n"  # one of these stands before each level
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SURROGATE: Final = re.compile(r"(?<=\\)u[dD][89a-fA-F][0-9a-fA-F]{2}")


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file, or an item of a List.

    Attributes:
        file: the file.
        body: its value; whatever the file has.
        positions: the places of its fields.
        duplicates: paths of keys that stand twice in one mapping, with the place of the second one.
    """

    file: SourceFile
    body: Any
    positions: Positions
    duplicates: tuple[tuple[str, Place], ...] = ()


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
    if file.text.lstrip(" \t\r\n").startswith(("{", "[")):
        as_json = _read_json(file)
        if as_json is not None:
            reading.documents += as_json
            return reading
    try:
        for root in _composed(file.text):
            reading.documents += _objects(file, root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        index = mark.index if mark is not None else 0
        reading.problem = " ".join(part for part in (error.context, error.problem) if part)
        index = min(index, max(len(file.text) - 1, 0))
        reading.place = Place(index, index + 1)
    except yaml.YAMLError as error:
        reading.problem = " ".join(str(error).split())
    except RecursionError:
        reading.problem = "it is nested too deeply"
    except Refused as error:
        reading.problem, reading.place = error.text, error.place
    if reading.problem and not file.chosen and "{{" in file.text:
        return Reading()  # a template of Helm's, which is no manifest yet
    return reading


def _composed(text: str) -> Iterator[yaml.Node]:
    _check_depth(text)
    loader = _LOADER(text)
    try:
        while loader.check_node():
            yield loader.get_node()
    finally:
        loader.dispose()


def _check_depth(text: str) -> None:
    """Refuses what would overflow the stack of the composer, which is recursive.

    Raises:
        RecursionError: it is nested more deeply than any manifest.
    """
    if sum(map(text.count, _NESTING)) < MAX_DEPTH:
        return
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_DEPTH:
                raise RecursionError
    except yaml.YAMLError:
        pass  # the composer comes to the same place, and no deeper before


def _read_json(file: SourceFile) -> list[Document] | None:
    """None when it is no JSON: a YAML flow mapping, maybe."""
    try:
        body = loads(file.text)
        # no text of JSON holds a tab, and YAML does not take those between its tokens, nor halves of characters
        root = next(iter(_composed(_SURROGATE.sub("u0020", file.text.replace("\t", " ")))), None)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    if root is None:
        return None
    return [
        Document(file, item, positions, tuple(_repeated_json(item, "", positions)))
        for item, positions in _items(body, file.text, root)
    ]


def _repeated_json(value: Any, path: str, positions: Positions) -> Iterator[tuple[str, Place]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated_json(item, f"{path}[{index}]", positions)
    elif isinstance(value, dict):
        if isinstance(value, DuplicateKeysObject):
            for key in value.duplicates:
                yield below(path, key), positions.key(below(path, key))
        for key, item in value.items():
            # the API server keeps what is a driver's own as it is
            if key != "parameters":
                yield from _repeated_json(item, below(path, key), positions)


def _objects(file: SourceFile, root: yaml.Node) -> Iterator[Document]:
    builder = Builder()
    body = builder.value(root)
    if body is None:
        return
    builder.note_repeated(root)
    for number, (item, positions) in enumerate(_items(body, file.text, root)):
        yield Document(file, item, positions, tuple(builder.repeated) if number == 0 else ())


def _items(body: Any, text: str, root: yaml.Node) -> Iterator[tuple[Any, Positions]]:
    if isinstance(body, dict) and str(body.get("kind")).endswith("List") and isinstance(body.get("items"), list):
        kind = str(body["kind"]).removesuffix("List")
        # a list of one kind leaves it out of its items
        implied = {"apiVersion": body.get("apiVersion"), "kind": kind} if kind else {}
        for index, item in enumerate(body["items"]):
            typed = {**implied, **item} if isinstance(item, dict) else item
            yield typed, Positions(text, root, f"items[{index}]")
    else:
        yield body, Positions(text, root)
