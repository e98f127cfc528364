"""Reading files like kubectl, with every problem reported at its position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.diagnosis.lint.check import LintResult, check
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.kubernetes.manifests.documents import SourceFile, read_documents
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.values.json import too_deep
from tests.unit.diagnosis.lint.texts import found, rules, underlined


def value(text: str) -> object:
    (document,) = read_documents(SourceFile("f.yaml", f"key: {text}\n")).documents
    return document.body["key"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5", 5), ("0o17", 15), ("017", 15), ("0x1F", 31), ("1_000", 1000), ("-3", -3), ("1e3", 1000), ("08", 8),
        ("1.", 1), ("+5", 5),
        ("1.5", 1.5),
        ("yes", True), ("off", False), ("true", True), ("~", None), ("", None), ('"5"', "5"), ("'yes'", "yes"),
        ("5Gi", "5Gi"), ("2024-01-01", "2024-01-01"), ("1:30", "1:30"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ("[a, 1]", ["a", 1]), ("{1: x, false: z, y: n}", {"1": "x", "false": "z", "true": False}), ("!!str 5", "5"),
    ],
)  # fmt: skip
def test_scalars_are_read_like_kubectl_does(written: str, expected: object) -> None:
    assert value(written) == expected
    assert type(value(written)) is type(expected)


def test_anchors_and_merges_are_followed() -> None:
    (document,) = read_documents(SourceFile("f.yaml", "a: &a {x: 1, z: 2}\nb: {<<: *a, z: 3}\nc: *a\n")).documents
    assert document.body == {"a": {"x": 1, "z": 2}, "b": {"x": 1, "z": 3}, "c": {"x": 1, "z": 2}}


def test_several_documents_and_lists_are_objects_one_by_one() -> None:
    text = "kind: A\n---\n# nothing\n---\nkind: DeviceClassList\napiVersion: g/v1\nitems: [{x: 1}, {x: 2}]\n"
    bodies = [document.body for document in read_documents(SourceFile("f.yaml", text)).documents]
    item = {"apiVersion": "g/v1", "kind": "DeviceClass"}
    assert bodies == [{"kind": "A"}, {**item, "x": 1}, {**item, "x": 2}]


def test_json_may_be_indented_with_tabs_and_start_with_a_mark() -> None:
    (document,) = read_documents(SourceFile("f.json", '\ufeff{\n\t"kind": "\\ud83c\\udf55"}')).documents
    assert document.body == {"kind": "🍕"}


def test_a_file_of_yaml_may_start_with_a_mark() -> None:
    text = "\ufeffapiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: x}]}\n"
    assert rules(text) == []
    (finding,) = found(text.replace("apiVersion: v1", "apiversion: v1"))
    assert (finding.line, finding.column) == (1, 1)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: [1, 2\nb: 3\n", 2, "expected ',' or ']'"),
        ("a: &x [*x]\n", 1, "an alias is inside the value of its anchor"),
        ("a: b: c\n", 1, "mapping values are not allowed"),
        ("a: \x07\n", 1, "control characters are not allowed"),
        ('{"a": 1,}}', 1, "expected"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported_with_the_place(text: str, line: int, problem: str) -> None:
    (finding,) = [finding for finding in found(text) if finding.rule == "syntax"]
    assert finding.line == line
    assert problem in finding.message


def test_documents_before_a_syntax_error_are_checked() -> None:
    assert rules("apiVersion: resource.k8s.io/v1\nkind: DeviceClas\n---\na: [\n") == ["unknown-kind", "syntax"]


def test_aliases_that_repeat_each_other_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (finding,) = found("\n".join(lines))
    assert "with its aliases expanded" in finding.message


@pytest.mark.parametrize("depth", [199, 201, 1_000, 100_000])
@pytest.mark.parametrize("form", ['{{"a": {}1{}}}', "a: {}1{}\n", "# {}{}\n"])
def test_a_document_that_is_nested_too_deeply_is_reported(form: str, depth: int) -> None:
    findings = found(form.format("[" * depth, "]" * depth))
    reported = [finding.message for finding in findings if finding.rule == "syntax"]
    assert reported == ([f"the file cannot be read: {too_deep(200)}"] if depth > 200 and "#" not in form else [])


@pytest.mark.parametrize("text", ["a: 1\nb: {c: 1, c: 2}\n", '{"a": 1, "b": {"c": 1,\n"c": 2}}'])
def test_a_duplicate_key_is_reported_at_its_second_position(text: str) -> None:
    (finding,) = [finding for finding in found(text) if finding.rule == "duplicate-key"]
    assert finding.path == "b.c"
    assert underlined(finding).strip('"') == "c"


def test_opaque_parameters_of_json_may_repeat_keys() -> None:
    text = '{"kind": "A", "apiVersion": "g/v1", "opaque": {"parameters": {"a": 1, "a": 2}}}'
    assert rules(text) == []


def test_a_helm_template_in_a_folder_is_ignored() -> None:
    text = "name: {{ .Values.name }}-x\n"
    assert check([SourceFile("f.yaml", text, explicit=False)], LintContext(UNMODIFIED)) == LintResult(
        [], files=1, objects=0
    )
    assert rules(text) == ["syntax"]


def test_only_a_file_that_was_named_must_hold_objects() -> None:
    assert rules("pods: {guest: {phase: Running}}\n") == ["not-an-object"]
    for text in ("pods: {}\n", "apiVersion: v2\nname: a-chart\n"):
        assert check([SourceFile("expect.yaml", text, explicit=False)], LintContext(UNMODIFIED)) == LintResult(
            [], files=1, objects=0
        )


@given(st.text())
def test_any_text_is_handled(text: str) -> None:
    reading = read_documents(SourceFile("f.yaml", text))
    assert 0 <= reading.place.start < reading.place.end
