"""Every error code of the code base is explained in docs/reference/troubleshooting.md, and no other."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from dra_kit import errors

ROOT = Path(__file__).parents[2]
TROUBLESHOOTING = ROOT / "docs" / "reference" / "troubleshooting.md"
READERS = ["Driver developers", "Cluster administrators", "Application developers"]


def codes_of(text: str) -> Iterator[str]:
    """``code="..."`` in calls and ``default_code`` of classes; a code that is passed on has its literal elsewhere."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.keyword(arg="code", value=ast.Constant(value=str(code))):  # numbers are HTTP's
                yield code
            case ast.Assign(targets=[ast.Name(id="default_code")]) | ast.AnnAssign(target=ast.Name(id="default_code")):
                assert isinstance(node.value, ast.Constant)
                yield str(node.value.value)


@cache
def codes_in_code() -> set[str]:
    texts = (file.read_text(encoding="utf-8") for file in sorted((ROOT / "dra_kit").rglob("*.py")))
    return {code for text in texts if re.search(r"\b(default_)?code\b", text) for code in codes_of(text)}


def sections() -> list[tuple[str, str, str]]:
    """(reader, code, text) in the order of the page."""
    reader, found = "", []
    for part in re.split(r"^(?=##+ )", TROUBLESHOOTING.read_text(encoding="utf-8"), flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        if heading.startswith("## "):
            reader = heading.removeprefix("## ")
        elif match := re.fullmatch(r"### `(.+)`", heading):
            found.append((reader, match[1], text.strip()))
        else:
            assert heading.startswith("# "), heading
    return found


def test_each_code_is_explained_and_nothing_else() -> None:
    assert {code for _, code, _ in sections()} == codes_in_code()


def test_no_code_is_explained_twice() -> None:
    assert [code for code, count in Counter(code for _, code, _ in sections()).items() if count > 1] == []


def test_the_page_is_ordered_by_reader_and_code() -> None:
    found = [(READERS.index(reader), code) for reader, code, _ in sections()]
    assert found == sorted(found)


def test_each_explanation_is_short() -> None:
    assert {code: len(text.splitlines()) for _, code, text in sections() if not 2 <= len(text.splitlines()) <= 4} == {}


def test_a_code_is_lower_case_words_with_hyphens() -> None:
    assert [code for code in codes_in_code() if not re.fullmatch(r"[a-z]+(-[a-z]+)*", code)] == []


def test_every_class_of_errors_has_a_code_of_its_own() -> None:
    classes = [
        item
        for item in vars(errors).values()
        if inspect.isclass(item) and issubclass(item, errors.DraKitError) and item.__module__ == errors.__name__
    ]
    codes = [item.default_code for item in classes]
    assert len(codes) == len(set(codes)) == len(classes) > 10
