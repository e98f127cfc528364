"""Reports of a verdict, and the catalogue that they are about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dra_kit.conformance import report
from dra_kit.conformance.catalogue import CATALOGUE, GROUPS, Behaviour, CheckLevel, selected
from dra_kit.conformance.real_cluster import CHECKS
from dra_kit.conformance.runner import FUNCTIONS, CheckOutcome, CheckStatus, ConformanceReport


def outcome(check: str, status: CheckStatus, *evidence: str) -> CheckOutcome:
    return CheckOutcome(CATALOGUE[check], status, evidence, 0.5)


REPORT = ConformanceReport(
    "gpu.example.com",
    "my-driver --node {node}",
    [
        outcome("R1", CheckStatus.PASSED),
        outcome("R2", CheckStatus.FAILED, "supported_versions: v1beta1.DRAPlugin, v1.DRAPlugin"),
        outcome("R10", CheckStatus.NOT_APPLICABLE, "the driver has a service socket of its own"),
        outcome("P2", CheckStatus.FAILED, "sent: <a> & \x1b[31m<b>"),
        outcome("U2", CheckStatus.BLOCKED, "the driver does not register: see R1"),
    ],
)


def test_only_failed_musts_decide() -> None:
    assert not REPORT.conforms
    decisive = {item.check.id for item in REPORT.outcomes if item.counts}
    assert decisive == {"P2", "U2"}
    without = ConformanceReport("x", "y", [item for item in REPORT.outcomes if not item.counts])
    assert without.conforms


def test_terminal_shows_evidence_and_the_page_of_the_check() -> None:
    lines = list(report.render_outcome(REPORT.outcomes[1]))
    assert lines == [
        "FAIL R2   versions of a service are advertised newest first (should)",
        "          supported_versions: v1beta1.DRAPlugin, v1.DRAPlugin",
        "          see docs/reference/conformance.md#r2",
    ]
    summary = list(report.render_summary(REPORT))
    assert summary[-1] == (
        "gpu.example.com: does not conform (1 passed, 2 failed, 1 not applicable, 1 not judged)"
    )  # fmt: skip
    assert "  registration                       passed" in summary
    assert "  prepare                            failed" in summary


def test_no_control_character_reaches_the_terminal_or_a_file() -> None:
    shown = "\n".join(report.render_outcome(REPORT.outcomes[3]))
    for text in (shown, report.to_junit(REPORT), report.to_html(REPORT)):
        assert "\x1b" not in text


def test_json_names_the_behaviours() -> None:
    document = json.loads(json.dumps(report.to_json(REPORT)))
    assert set(document["behaviours"]) == {str(item) for item in Behaviour}
    assert document["behaviours"]["unprepare"] == "not judged"
    assert document["behaviours"]["device reuse"] == "not selected"
    assert [item["id"] for item in document["checks"]] == ["R1", "R2", "R10", "P2", "U2"]
    assert not document["conforms"]


def test_junit_fails_what_decides_and_skips_the_rest() -> None:
    root = ET.fromstring(report.to_junit(REPORT))  # noqa: S314 - of this test
    suites = {suite.get("name"): suite for suite in root}
    assert {
        name: (suite.get("failures"), suite.get("errors"), suite.get("skipped")) for name, suite in suites.items()
    } == {
        "registration": ("0", "0", "2"),
        "prepare": ("1", "0", "0"),
        "unprepare": ("0", "1", "0"),
    }
    failure = suites["prepare"].find("testcase/failure")
    assert failure is not None
    assert "<a> &" in str(failure.text)


def test_interrupted_run_never_conforms_and_is_an_error_in_each_report() -> None:
    cut = ConformanceReport("gpu.example.com", "x", [outcome("R1", CheckStatus.PASSED)], interrupted=True)
    assert not cut.conforms
    assert list(report.render_summary(cut))[-1].startswith("gpu.example.com: interrupted, so that not all checks are")
    assert report.to_json(cut)["interrupted"]
    suites = {suite.get("name"): suite.get("errors") for suite in ET.fromstring(report.to_junit(cut))}  # noqa: S314 - of this test
    assert suites == {"registration": "0", "run": "1"}
    assert "<h1>gpu.example.com: interrupted, so that" in report.to_html(cut)


def test_page_is_self_contained() -> None:
    page = report.to_html(REPORT)
    assert "<h1>gpu.example.com does not conform</h1>" in page
    assert "&lt;a&gt; &amp;" in page
    assert re.findall(r"(?:src|href)=|url\(|@import|<script", page) == []


def test_ids_are_numbered_without_gaps() -> None:
    for group in GROUPS:
        numbers = [int(check.id[1:]) for check in CATALOGUE.values() if check.group == group]
        assert numbers == list(range(1, len(numbers) + 1))


def test_every_behaviour_has_a_check_that_every_driver_must_pass() -> None:
    for cluster in (False, True):
        checks = selected("", cluster=cluster)
        musts = {check.behaviour for check in checks if check.level is CheckLevel.MUST}
        assert set(Behaviour) <= musts


def test_selection_by_group_and_id() -> None:
    assert [check.id for check in selected("u2, r10")] == ["R10", "U2"]
    assert {check.group for check in selected("P,U2")} == {"P", "U"}
    assert [check.id for check in selected("")] == list(FUNCTIONS)
    assert [check.id for check in selected("", cluster=True)] == list(CHECKS)
    with pytest.raises(ValueError, match=r"^X1 is neither a group nor a check; groups: R, P, U"):
        selected("P,X1")
    with pytest.raises(ValueError, match=r"^C1 is checked with --cluster only; groups: R, P, U"):
        selected("C1")
    with pytest.raises(ValueError, match=r"^R is checked without --cluster only; groups: C; checks: C1 to C7$"):
        selected("R", cluster=True)


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "conformance.md"


def test_page_has_a_section_for_each_check_in_the_order_of_the_catalogue() -> None:
    sections = re.findall(r"^### (\w+)\n\n\*\*(.+?)\*\* \((\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == [(check.id, check.title, str(check.level)) for check in CATALOGUE.values()]


def test_each_section_says_how_to_repair() -> None:
    for section in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        assert "Repair: " in " ".join(section.split()), section.splitlines()[0]
