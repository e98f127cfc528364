"""Reports of a verdict: for a terminal, as JSON, as JUnit XML and as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Any, Final
from xml.etree import ElementTree as ET

from typing_extensions import override

from dra_kit.conformance.catalogue import GROUPS, Behaviour
from dra_kit.conformance.runner import CheckOutcome, CheckStatus, ConformanceReport, RunProgress
from dra_kit.conformance.subject import SimulatedNode
from dra_kit.text import escape_unprintable

_SIGNS: Final = {
    CheckStatus.PASSED: "ok",
    CheckStatus.FAILED: "FAIL",
    CheckStatus.NOT_APPLICABLE: "--",
    CheckStatus.BLOCKED: "??",
}


def behaviour_status(report: ConformanceReport, behaviour: Behaviour) -> CheckStatus | None:
    """Return what the checks of a behaviour say together; None if none of them ran."""
    found = [outcome.status for outcome in report.outcomes if outcome.check.behaviour is behaviour]
    for status in (CheckStatus.FAILED, CheckStatus.BLOCKED, CheckStatus.PASSED, CheckStatus.NOT_APPLICABLE):
        if status in found:
            return status
    return None


def render_outcome(outcome: CheckOutcome) -> Iterator[str]:
    """Yield the lines of one check."""
    check = outcome.check
    level = f"{check.level}, {check.feature}" if check.feature else str(check.level)
    yield f"{_SIGNS[outcome.status]:4} {check.id:4} {check.title} ({level})"
    yield from (f"          {escape_unprintable(line)}" for line in outcome.evidence)
    if outcome.status is CheckStatus.FAILED:
        yield f"          see {check.link}"


def render_summary(report: ConformanceReport) -> Iterator[str]:
    """Yield the behaviours of KEP-5970, and the verdict."""
    yield "behaviours of KEP-5970:"
    for behaviour in Behaviour:
        status = behaviour_status(report, behaviour)
        yield f"  {behaviour:34} {status or 'not selected'}"
    counts = ", ".join(f"{len(report.having(status))} {status}" for status in CheckStatus)
    yield f"{report.driver or 'the driver'}: {_verdict(report)} ({counts})"


def _verdict(report: ConformanceReport) -> str:
    if report.interrupted:
        return "interrupted, so that not all checks are judged"
    return "conforms" if report.conforms else "does not conform"


def to_json(report: ConformanceReport) -> dict[str, Any]:
    """Return the report as a JSON document."""
    return {
        "driver": report.driver,
        "subject": report.subject,
        "conforms": report.conforms,
        "interrupted": report.interrupted,
        "behaviours": {str(item): behaviour_status(report, item) or "not selected" for item in Behaviour},
        "checks": [
            {
                "id": outcome.check.id,
                "group": GROUPS[outcome.check.group],
                "title": outcome.check.title,
                "level": outcome.check.level,
                "feature": outcome.check.feature,
                "status": outcome.status,
                "evidence": list(outcome.evidence),
                "seconds": round(outcome.seconds, 3),
                "page": outcome.check.link,
            }
            for outcome in report.outcomes
        ],
    }


def to_junit(report: ConformanceReport) -> str:
    """Return the report as JUnit XML: a suite for each group.

    Only what decides against the driver is a failure or an error; other failed checks are skipped tests. An interrupted
    run is an error in a suite of its own.
    """
    suites = ET.Element("testsuites", name=f"conformance of {report.driver or report.subject}")
    for group, name in GROUPS.items():
        outcomes = [outcome for outcome in report.outcomes if outcome.check.group == group]
        if not outcomes:
            continue
        kinds = [_junit_kind(outcome) for outcome in outcomes]
        suite = ET.SubElement(
            suites, "testsuite", name=name, tests=str(len(outcomes)), failures=str(kinds.count("failure")),
            errors=str(kinds.count("error")), skipped=str(kinds.count("skipped")),
        )  # fmt: skip
        for outcome, kind in zip(outcomes, kinds, strict=True):
            check = outcome.check
            case = ET.SubElement(
                suite, "testcase", classname=f"conformance.{name}", name=f"{check.id} {check.title}",
                time=f"{outcome.seconds:.3f}",
            )  # fmt: skip
            if kind:
                message = f"{outcome.status} ({check.level}), see {check.link}"
                detail = ET.SubElement(case, kind, message=message)
                detail.text = "\n".join(map(_plain, outcome.evidence))
    if report.interrupted:
        suite = ET.SubElement(suites, "testsuite", name="run", tests="1", failures="0", errors="1", skipped="0")
        case = ET.SubElement(suite, "testcase", classname="conformance.run", name="all checks are judged")
        ET.SubElement(case, "error", message="interrupted")
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _junit_kind(outcome: CheckOutcome) -> str:
    if outcome.status is CheckStatus.PASSED:
        return ""
    if not outcome.counts:
        return "skipped"
    return "failure" if outcome.status is CheckStatus.FAILED else "error"


def _plain(text: str) -> str:
    """Return text without characters that XML forbids."""
    return escape_unprintable(text)


_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #8886; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; font-size: .85rem; }
.failed { color: light-dark(#a40000, #ff8a80); font-weight: 600; }
.passed { color: light-dark(#0a6b1f, #7ddc8c); }
.not-judged { color: light-dark(#7a4f00, #ffc666); font-weight: 600; }
"""


def to_html(report: ConformanceReport) -> str:
    """Return the report as one page without links to other files."""
    driver = escape(report.driver or "the driver")
    verdict = f"{driver}{':' if report.interrupted else ''} {_verdict(report)}"
    counts = ", ".join(f"{len(report.having(status))} {status}" for status in CheckStatus)
    behaviours = "".join(
        f"<tr><th scope=row>{escape(item)}</th>{_cell(behaviour_status(report, item))}</tr>" for item in Behaviour
    )
    return (
        f"<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>{verdict}</title>\n"
        f"<meta name=viewport content='width=device-width'>\n<style>{_STYLE}</style>\n"
        f"<h1>{verdict}</h1>\n<p>{escape(report.subject)}: {counts}</p>\n"
        f"<h2>Behaviours of KEP-5970</h2>\n<table>{behaviours}</table>\n"
        f"{''.join(_html_group(report, group, name) for group, name in GROUPS.items())}</html>\n"
    )


def _html_group(report: ConformanceReport, group: str, name: str) -> str:
    rows = "".join(_html_row(outcome) for outcome in report.outcomes if outcome.check.group == group)
    head = (
        "<tr><th scope=col>Check</th><th scope=col>Meaning</th><th scope=col>Level</th><th scope=col>Result</th></tr>"
    )
    return f"<h2>{escape(name.capitalize())}</h2>\n<table>{head}\n{rows}</table>\n" if rows else ""


def _html_row(outcome: CheckOutcome) -> str:
    check = outcome.check
    level = f"{check.level}: {check.feature}" if check.feature else str(check.level)
    evidence = f"<pre>{escape(chr(10).join(map(_plain, outcome.evidence)))}</pre>" if outcome.evidence else ""
    return (
        f"<tr id={check.id.lower()}><th scope=row>{check.id}</th><td>{escape(check.title)}{evidence}</td>"
        f"<td>{escape(level)}</td>{_cell(outcome.status)}</tr>\n"
    )


def _cell(status: CheckStatus | None) -> str:
    text = str(status or "not selected")
    return f"<td class={text.replace(' ', '-')}>{text}</td>"


class TerminalProgress(RunProgress):
    """Prints each outcome when it is there.

    Args:
        print_line: prints a line.
        subject: how the driver is started or found, for people.
    """

    def __init__(self, print_line: Callable[[str], None], subject: str) -> None:
        self._print = print_line
        self._subject = subject
        self._driver = ""
        self._outcomes: list[CheckOutcome] = []

    def interrupted(self) -> ConformanceReport:
        """Return the report of a run that was interrupted now."""
        return ConformanceReport(self._driver, self._subject, self._outcomes, interrupted=True)

    @override
    def waiting(self, places: SimulatedNode, seconds: float) -> None:
        self._print(
            f"waiting up to {seconds:g} s (startWithin of the profile) for a driver in {places.registry}; start it "
            f"with KUBECONFIG={places.kubeconfig}"
        )

    @override
    def identified(self, driver: str) -> None:
        self._driver = driver

    @override
    def ends(self, outcome: CheckOutcome) -> None:
        self._outcomes.append(outcome)
        for line in render_outcome(outcome):
            self._print(line)

    @override
    def remains(self, text: str) -> None:
        self._print(escape_unprintable(f"not removed: {text}"))
