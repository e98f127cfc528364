"""The house is as CONTRIBUTING draws it, its contracts are about rooms that exist, and its words are the field's."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "dra_kit"
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
HOUSE = CONTRIBUTING.split("\n## The house\n")[1].split("\n## ")[0]
CONTRACTS: list[dict[str, Any]] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]["contracts"]

ROOM = re.compile(r"dra_kit/([a-z_]+)")

_ERRORS = frozenset({"error", "exc", "exception", "failure", "problem", "refusal"})
_TEXTS = frozenset({"cause", "detail", "message", "problem", "remedy"})
_CUTS = frozenset({
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace", "rpartition",
    "rsplit", "split", "splitlines", "startswith",
})  # fmt: skip
_SEARCHES = frozenset({"findall", "fullmatch", "match", "search", "split", "sub"})
READ_AGAIN = {
    "author/model.py": "the API's names of fields become the author's",
}
"""Modules that look into a message, and why."""

DATACLASSES = {
    "kubernetes/resource/objects.py": "what authors get is made of it",
}
"""Modules with dataclasses that could be structs, and why they are not."""
_LACKS = re.compile(r"cached_property|\bfield\([^)]*\b(?:compare|hash|init|repr)=")

RIDDLES = frozenset({"apart", "chosen", "kept", "meant", "said", "told"})
"""Words that leave open what happens; say reported, distinguished, selected, stored, intended."""
_NAME = re.compile(r"^ *(?:async )?(?:def|class) (\w+)", re.MULTILINE)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DOCSTRING = re.compile(r'(?:\A|:(?: *#.*)?\n) *r?"""(.*)')
_SENTENCE_END = re.compile(r"[.!?:][\"'`)*]*(?: |$)")


def folders(place: Path) -> set[str]:
    return {item.name for item in place.iterdir() if item.is_dir() and any(item.glob("*.py"))}


def drawn() -> dict[str, set[str]]:
    """What CONTRIBUTING draws of each room; names and their description stand apart by two spaces."""
    rooms: dict[str, set[str]] = {}
    room = ""
    for line in filter(str.strip, HOUSE.split("```")[1].splitlines()):
        named = ROOM.search(line)
        if named is not None:
            room = named[1]
        names = {name for name in re.split(r" {2,}", line.strip())[:-1] if re.fullmatch("[a-z_0-9]+", name)}
        rooms.setdefault(room, set()).update(names)
    return rooms


@cache
def sources() -> dict[str, str]:
    files = [file for file in sorted(PACKAGE.rglob("*.py")) if "_pb2" not in file.name]
    return {str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8") for file in files}


def test_every_room_and_every_folder_is_drawn() -> None:
    rooms = drawn()
    assert set(rooms) == folders(PACKAGE)
    assert {
        room: folders(PACKAGE / room) - names for room, names in rooms.items() if folders(PACKAGE / room) - names
    } == {}


def test_nothing_is_drawn_that_does_not_exist() -> None:
    missing = {
        f"{room}/{name}"
        for room, names in drawn().items()
        for name in names
        if not (PACKAGE / room / name).is_dir() and not (PACKAGE / room / f"{name}.py").is_file()
    }
    assert missing == set()


def test_the_order_of_imports_is_that_of_the_contract() -> None:
    sentence = HOUSE.split("make lint` holds it: ")[1].split(". ")[0]
    ours = [set(re.findall(r"[a-z]+", layer)) for layer in sentence.split("→")]
    assert ours == [set(re.findall(r"[a-z]+", layer)) for layer in CONTRACTS[0]["layers"]]


def of_contracts() -> Iterator[str]:
    """Modules that contracts are about."""
    for contract in CONTRACTS:
        containers = contract.get("containers", [])
        names = [name for layer in contract.get("layers", []) for name in re.split(r" *[|:] *", layer)]
        yield from (f"{container}.{name}" for container in containers for name in names)
        yield from containers
        yield from contract.get("ancestors", [])
        yield from contract.get("source_modules", [])
        for ignored in contract.get("ignore_imports", []):
            yield from ignored.split(" -> ")


def test_contracts_are_about_modules_that_exist() -> None:
    ours = {name for name in of_contracts() if name.partition(".")[0] == "dra_kit"}
    assert len(ours) > 50
    places = {name: REPOSITORY.joinpath(*name.split(".")) for name in ours}
    assert {
        name for name, place in places.items() if not place.is_dir() and not place.with_suffix(".py").is_file()
    } == set()


STANDALONE = "dra_kit.kubelet.nri"
"""Imports nothing else of dra-kit and few others, so that it can become a package."""


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{'.' * node.level}{node.module}"


def test_nri_could_be_a_package() -> None:
    folder = STANDALONE.removeprefix("dra_kit.").replace(".", "/")
    names = {
        name
        for file, text in sources().items()
        if file.startswith(f"{folder}/")
        for name in imported(ast.parse(text))
        if not f"{name}.".startswith((f"{STANDALONE}.", "google.protobuf."))
    }
    assert "asyncio" in names
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def is_message(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
            return name in _ERRORS
        case ast.Attribute(attr=attribute):
            return attribute in _TEXTS
    return False


def reads_again(node: ast.AST) -> bool:
    """Whether a message is cut or searched; ``str(error).split()`` only puts it on one line."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=arguments):
            cuts = is_message(owner) and name in _CUTS and not (name == "split" and not arguments)
            return cuts or (name in _SEARCHES and any(map(is_message, arguments)))
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[message]):
            return is_message(message)
    return False


_SHOWN = rf"(?:str\((?:{'|'.join(_ERRORS)})\)|\.(?:{'|'.join(_TEXTS)})\b)"
_MESSAGE = re.compile(rf"{_SHOWN}\.(?:{'|'.join(_CUTS)})\(|\bin [\w.]*{_SHOWN}|\.(?:{'|'.join(_SEARCHES)})\(.*{_SHOWN}")


def may_read_again(text: str) -> bool:
    """Whether a file is worth parsing: to parse all takes seconds."""
    words = ("str(", *(f".{name}" for name in _TEXTS))
    return any(any(word in line for word in words) and _MESSAGE.search(line) for line in text.splitlines())


def test_no_message_is_cut_or_searched() -> None:
    found = [
        f"{file}:{node.lineno}"
        for file, text in sources().items()
        if file not in READ_AGAIN and may_read_again(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.expr) and reads_again(node)
    ]
    assert found == []


READING = ("str(error).split(';')[0]", "'x' in str(error)", "a.detail.startswith('x')", "x.search(error.message)")


@pytest.mark.parametrize("code", READING)
def test_what_counts_as_read_again(code: str) -> None:
    assert any(isinstance(node, ast.expr) and reads_again(node) for node in ast.walk(ast.parse(code)))


def test_no_name_is_a_riddle() -> None:
    found = {
        f"{file}: {name}"
        for file, text in sources().items()
        for name in [*_NAME.findall(text), *file.removesuffix(".py").split("/")]
        if not RIDDLES.isdisjoint(map(str.lower, _WORD.findall(name)))
    }
    assert found == set()


def test_the_first_sentence_of_a_docstring_is_one_line() -> None:
    found = {
        f"{file}: {line}"
        for file, text in sources().items()
        for line in _DOCSTRING.findall(text)
        if not line.endswith('"""') and _SENTENCE_END.search(line) is None
    }
    assert found == set()


def test_docstrings_have_no_riddles() -> None:
    found = {
        f"{file}: {line}"
        for file, text in sources().items()
        for line in _DOCSTRING.findall(text)
        if not RIDDLES.isdisjoint(re.findall(r"(?<!`)\b[a-z]+\b(?!`)", line))
    }
    assert found == set()


def test_plain_values_are_structs() -> None:
    of_authors = ("author/", "testing/")
    found = {
        file
        for file, text in sources().items()
        if not file.startswith(of_authors) and re.search(r"^ *@.*dataclass\b", text, re.MULTILINE)
        if not _LACKS.search(text)  # what a struct has not
    }
    assert found == set(DATACLASSES)


def test_the_table_of_changes_names_modules_that_exist() -> None:
    table = CONTRIBUTING.split("\n## Where to change what\n")[1].split("\n## ")[0]
    found = re.findall(r"`([a-z_]+/[a-z_/]+(?:\.[a-z]+)?)`", table)
    assert "node/state/records.py" in found
    assert [place for place in found if not any((root / place).exists() for root in (PACKAGE, REPOSITORY))] == []


LINES_MAX = 700
LEVELS_MAX = 2  # folders below a room
MODULES_MAX = 450
INDENTED_IMPORTS_MAX = 52


def test_a_module_can_be_read_as_a_whole() -> None:
    assert {file: text.count("\n") for file, text in sources().items() if text.count("\n") > LINES_MAX} == {}


def test_folders_are_not_deep() -> None:
    assert {file for file in sources() if file.count("/") > LEVELS_MAX + 1} == set()


def test_modules_are_few() -> None:
    assert len(sources()) <= MODULES_MAX


def indented_imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports in functions and other blocks, but not those that type checkers alone read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node = ast.Module(node.orelse, [])  # noqa: PLW2901 - the other branch is run
        if isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset:
            yield node
        yield from indented_imports(node)


def test_imports_are_at_the_top() -> None:
    some = [text for text in sources().values() if re.search(r"^ +(?:import|from) ", text, re.MULTILINE)]
    found = [node for text in some for node in indented_imports(ast.parse(text))]
    assert len(found) <= INDENTED_IMPORTS_MAX, "CONTRIBUTING says where imports may be indented (Imports)"


SAME_IN_THE_API = frozenset({"kubernetes/resource/v1.py", "kubernetes/cel/device.py", "kubelet/cdi/spec.py"})
"""Modules whose classes have the names of the specification that they model."""


def test_a_class_has_a_name_that_no_other_class_has() -> None:
    homes: dict[str, list[str]] = {}
    for file, text in sources().items():
        if file not in SAME_IN_THE_API:
            for name in re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE):
                homes.setdefault(name, []).append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
