"""Positions of fields and of characters of values, in any notation."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.manifests.documents import SourceFile, read_documents
from dra_kit.kubernetes.manifests.positions import Positions, TextSpan

# characters in manifests
WORDS = st.text(st.sampled_from("abz019 \"'\\&|=.[]()#:-\n\té🍕"), min_size=1, max_size=60)


def positions(text: str) -> Positions:
    reading = read_documents(SourceFile("f.yaml", text))
    assert reading.problem == ""
    return reading.documents[0].positions


def cut(text: str, place: TextSpan) -> str:
    return text[place.start : place.end]


NESTED = """\
metadata:
  labels: {example.com/a.b: one, plain: two}
spec:
  devices:
  - name: a
    attributes:
      gpu.example.com/model: {string: H200}
  - {name: b}
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.labels[example.com/a.b]", "one"),
        ('metadata.labels["example.com/a.b"]', "one"),
        ("metadata.labels.plain", "two"),
        ("spec.devices[1].name", "b"),
        ("spec.devices[0].attributes[gpu.example.com/model].string", "H200"),
        ("spec.devices[0].attributes", "attributes"),
        ("spec.devices[1]", "{name: b}"),
        ("spec.devices[0].attributes[gpu.example.com/none].string", "attributes"),
        ("spec.devices[7].name", "devices"),
        ("spec.nothing.there", "spec"),
    ],
)
def test_find_returns_field_or_parent(path: str, expected: str) -> None:
    assert cut(NESTED, positions(NESTED).place(path)) == expected


def test_key_returns_field_name() -> None:
    assert cut(NESTED, positions(NESTED).key("spec.devices[0].name")) == "name"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("requests: [{name: a, count: 7}]", "requests[0].exactly.count"),
        ("devices: [{name: a, basic: {count: 7}}]", "devices[0].count"),
        ("a: &shared {count: 7}\nb: *shared", "b.count"),
        ("a: &shared {count: 7}\nb: {<<: *shared, c: 1}", "b.count"),
    ],
)
def test_find_follows_other_versions_and_aliases(text: str, path: str) -> None:
    assert cut(text, positions(text).place(path)) == "7"


def test_list_items_have_own_positions() -> None:
    text = "kind: List\nitems:\n- kind: A\n- kind: B\n"
    documents = read_documents(SourceFile("f.yaml", text)).documents
    assert [cut(text, document.positions.place("kind")) for document in documents] == ["A", "B"]


@given(value=WORDS, style=st.sampled_from(["'", '"', "|", ">", None]), width=st.integers(10, 80))
def test_inside_finds_each_yaml_character(value: str, style: str | None, width: int) -> None:
    node = yaml.ScalarNode("tag:yaml.org,2002:str", value, style=style)
    mapping = yaml.MappingNode("tag:yaml.org,2002:map", [(yaml.ScalarNode("tag:yaml.org,2002:str", "key"), node)])
    text = yaml.serialize(mapping, allow_unicode=True, width=width)
    found = positions(text)
    for index, character in enumerate(value):
        if not character.isspace():
            written = cut(text, found.inside("key", index, index + 1))
            assert written in {character, character * 2} or yaml.safe_load(f'"{written}"') == character


@given(value=WORDS, before=st.text("abc\t ", max_size=5))
def test_inside_finds_each_json_character(value: str, before: str) -> None:
    text = json.dumps({before: 1, "key": value}, indent="\t", ensure_ascii=False)
    found = positions(text)
    for index, character in enumerate(value):
        if not character.isspace():
            assert cut(text, found.inside("key", index, index + 1)) in {character, json.dumps(character)[1:-1]}


def test_range_ends_with_first_line() -> None:
    text = "key: |-\n  one &&\n    two\n"
    assert cut(text, positions(text).inside("key", 0, 12)) == "one &&"
    assert cut(text, positions(text).inside("key", 9, 12)) == "two"
