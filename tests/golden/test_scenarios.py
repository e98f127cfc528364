"""Scheduler and controllers of the sandbox produce the recorded results of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.golden import scenarios
from tests.golden.files import cases, read, release_of, title
from tests.golden.kind import Line
from tests.golden.pins import pinned
from tests.golden.report import Agreement

FILES = [path for name in ("scenarios", "scenarios-2", "worlds") for path in pinned(f"golden/api/{name}.jsonl*")]
FILES += pinned("golden/1.34/scenarios/*")
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
