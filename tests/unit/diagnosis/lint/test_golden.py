"""Verdicts of a real API server: accepted objects have no errors, rejected ones have one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kit.diagnosis.lint.check import check
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import GROUPS, LintFinding
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.release import Release
from tests.golden.api_client import expand
from tests.golden.files import read

FOLDER = Path(__file__).parents[3] / "data" / "golden" / "api"
GATES = {"default": Release.of(), "alpha": Release.alpha()}
EACH = 6
"""Of so many recorded requests one is looked at."""

FILES = {"claims": 0.98, "classes": 0.98, "slices": 0.99, "templates": 0.98, "taintrules": 0.99, "poolstatus": 0.99}
"""The least share of refusals that must be found. Not looked for are: labels of the namespace, white space in opaque
configuration, and bodies that are not objects."""

STRUCTURE = {rule.id for rule in (*GROUPS["Files"], *GROUPS["Structure"])} | {"cel-compile", "cel-cost"}


def creations(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Lines and their first steps, where that creates an object from JSON."""
    for line in read(FOLDER / f"A-{name}.jsonl.gz")[::EACH]:
        whole = expand(line)
        step = whole["steps"][0]
        if step["method"] == "POST" and step.get("contentType", "application/json") == "application/json":
            yield whole, step


def errors(line: dict[str, Any], step: dict[str, Any]) -> list[LintFinding]:
    text = step["rawBody"] if "rawBody" in step else json.dumps(step["body"])
    findings = check([SourceFile("f.json", text)], LintContext(release=GATES[line["gates"]])).findings
    return [finding for finding in findings if finding.level == "error"]


def is_strict(line: dict[str, Any], step: dict[str, Any]) -> bool:
    """Whether kubectl, which has unknown and duplicate fields refused, would see the same answer."""
    lenient = any(
        word in warning for warning in step.get("warnings", ()) for word in ("unknown field", "duplicate field")
    )
    # the URL contains the kind of objects without one
    untold = line["id"].partition("@")[0].endswith(("no-type", "no-kind", "no-version"))
    return not lenient and not untold and "fieldValidation=Ignore" not in step.get("query", "")


@pytest.mark.parametrize("name", FILES)
def test_accepted_objects_have_no_errors(name: str) -> None:
    accepted = [(line, step) for line, step in creations(name) if step["status"] == 201 and is_strict(line, step)]
    wrong = {
        line["id"]: [finding.message for finding in found]
        for line, step in accepted
        if (found := [finding for finding in errors(line, step) if finding.rule in STRUCTURE])
    }
    assert accepted
    assert wrong == {}


@pytest.mark.parametrize(("name", "share"), FILES.items())
def test_rejected_objects_have_errors(name: str, share: float) -> None:
    refused = [(line, step) for line, step in creations(name) if step["status"] in {400, 422}]
    refused = [(line, step) for line, step in refused if "/body/" not in line["id"]]
    missed = [line["id"] for line, step in refused if not errors(line, step)]
    print(f"{name}: {len(refused) - len(missed)} of {len(refused)} refusals are found")
    assert refused
    assert len(missed) <= (1 - share) * len(refused), missed
