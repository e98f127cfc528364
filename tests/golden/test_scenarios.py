"""Scheduler and controllers of the sandbox produce the recorded results of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.golden import scenarios
from tests.golden.files import cases, read, release_of, title
from tests.golden.kind import Line
from tests.golden.pins import pinned
from tests.golden.report import Agreement
from tests.golden.scenario_player import quiet_seconds

FILES = [path for name in ("scenarios", "scenarios-2", "worlds") for path in pinned(f"golden/api/{name}.jsonl*")]
FILES += pinned("golden/1.34/scenarios/*")
LONGEST_BACKOFF_SECONDS = 10  # podMaxBackoffSeconds of kube-scheduler
ATTEMPTS = 3
"""A phase ends when nothing has changed for some seconds, which may be in the middle of a retry on a busy machine."""


@cache
def lines(path: Path) -> dict[str, Line]:
    return {line["id"]: line for line in read(path)}


def played(path: Path, name: str) -> Agreement:
    agreement = Agreement()
    agreement.add(name, cases(scenarios, [lines(path)[name]], release_of(path)))
    return agreement


@pytest.mark.parametrize(
    ("path", "name"),
    [pytest.param(path, name, id=f"{release_of(path).version}-{name}") for path in FILES for name in lines(path)],
)
def test_scenario_results_equal_kubernetes(
    path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    attempts = (played(path, name) for _ in range(ATTEMPTS))
    agreement = next(attempts)
    while agreement.failed and (again := next(attempts, None)) is not None:
        agreement = again

    record_property("golden", agreement.told(title(scenarios, path)))
    assert not agreement.failed, agreement.differences


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{release_of(path).version}-{path.name}")
def test_recorded_phases_are_longer_than_the_backoff_of_pods_that_are_tried_again(path: Path) -> None:
    """A phase that ends before would end otherwise on a slower machine."""
    hasty = [
        f"{name}, phase {number}"
        for name, line in lines(path).items()
        for number, (former, phase) in enumerate(pairwise(line["phases"]), 1)
        if scenarios.has_failed_attempt(former) and quiet_seconds(phase) <= LONGEST_BACKOFF_SECONDS
    ]

    assert not hasty
