"""The work of a check is linear in the size of the file, whatever its lines and mistakes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from dra_kit.diagnosis.lint.check import check
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import format_text
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.release import UNMODIFIED


def file(mistakes: int, separator: str) -> SourceFile:
    pairs = f",{separator}".join(f'"-bad{number}-": "x y"' for number in range(mistakes))
    labels = f'"metadata": {{"name": "a", "labels": {{{pairs}}}}}'
    return SourceFile("order.json", f'{{"apiVersion": "v1", "kind": "Pod", {labels}, "spec": {{{pairs}}}}}')


def effort(mistakes: int, separator: str) -> int:
    """How often a function is called, Python's own among them."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    given = file(mistakes, separator)
    sys.setprofile(count)
    try:
        found = check([given], LintContext(UNMODIFIED)).findings
    finally:
        sys.setprofile(None)
    assert len(found) >= 2 * mistakes
    return calls


@pytest.mark.parametrize("separator", ["", "\n"])
def test_time_grows_linearly_with_the_number_of_mistakes(separator: str) -> None:
    effort(10, separator)  # what is computed once
    assert effort(200, separator) < 4.5 * effort(50, separator)


def test_a_finding_in_a_long_line_keeps_only_the_part_around_it() -> None:
    given = file(500, "")
    findings = check([given], LintContext(UNMODIFIED)).findings
    assert max(len(finding.source) for finding in findings) <= 1_100 < len(given.text)
    for finding in findings:
        whole = given.text[finding.source_column - 1 : finding.source_column - 1 + len(finding.source)]
        assert finding.source == whole
    lines = format_text(findings[-1:], files=1, objects=1).splitlines()
    assert lines[1][lines[2].index("^") :].startswith('"-bad')
