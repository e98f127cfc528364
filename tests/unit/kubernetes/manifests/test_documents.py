"""Objects are equal with and without positions, and from files, folders and values."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import (
    SourceFile,
    check_objects,
    read_documents,
    read_objects,
    read_values,
    source_files,
)

_NAMES = st.text("ab\n: é", min_size=1, max_size=4)
_OBJECTS = st.builds(
    lambda kind, name, spec: {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec},
    _NAMES.map(lambda text: f"K{text}"),
    _NAMES,
    st.dictionaries(_NAMES, st.none() | st.integers(-9, 9) | st.lists(_NAMES, max_size=2), max_size=2),
)
_LISTS = st.lists(_OBJECTS, max_size=3).map(
    lambda items: {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}
)
_DOCUMENTS = st.lists(_OBJECTS | _LISTS, max_size=4)


@given(_DOCUMENTS)
def test_values_are_equal_with_and_without_positions(documents: list[Any]) -> None:
    file = SourceFile("f.yaml", "\n---\n".join(map(json.dumps, documents)) if documents else "")
    found = read_objects(file)
    assert [body for _, body in found] == [one.body for one in read_documents(file).documents]
    assert found == list(check_objects(documents, "f.yaml"))
    assert read_values(file) == documents


@given(_DOCUMENTS)
def test_object_description_matches_its_position(documents: list[Any]) -> None:
    text = "\n---\n".join(map(json.dumps, documents)) if documents else ""
    for one in read_documents(SourceFile("f.yaml", text)).documents:
        field = one.positions.find("metadata.name")
        assert field.exact
        assert field.value.value == one.body["metadata"]["name"]


def test_folder_skips_other_documents(tmp_path: Path) -> None:
    for name, text in {
        "a.yaml": "apiVersion: v1\nkind: A\nmetadata: {name: a}\n",
        "b.json": '{"pods": {}}',
        "c.txt": "nothing",
        "below/d.yaml": "apiVersion: v1\nkind: D\nmetadata: {name: d}\n",
        ".hidden.yaml": "apiVersion: v1\nkind: H\nmetadata: {name: h}\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def kinds(*, tree: bool) -> list[str]:
        return sorted(body["kind"] for file in source_files(tmp_path, tree=tree) for _, body in read_objects(file))

    assert kinds(tree=False) == ["A", "H"]
    assert kinds(tree=True) == ["A", "D"]
    with pytest.raises(ConfigurationError, match=r"b\.json, document 1 lacks apiVersion, which must be a string"):
        [read_objects(file) for file in source_files(tmp_path / "b.json")]


def test_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{kind: A}")))
    (file,) = source_files(Path("-"))
    assert (file.name, file.text, file.explicit) == ("<stdin>", "{kind: A}", True)


def test_invalid_utf8_error_names_file(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"kind: \xe9")
    with pytest.raises(ConfigurationError, match=r"latin\.yaml cannot be read: byte 6 is not valid UTF-8"):
        list(source_files(tmp_path / "latin.yaml"))
