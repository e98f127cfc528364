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


@cache
def lines(path: Path) -> dict[str, Line]:
    return {line["id"]: line for line in read(path)}


@pytest.mark.parametrize(
    ("path", "name"),
    [pytest.param(path, name, id=f"{release_of(path).version}-{name}") for path in FILES for name in lines(path)],
)
def test_scenario_results_equal_kubernetes(
    path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    agreement = Agreement()

    agreement.add(name, cases(scenarios, [lines(path)[name]], release_of(path)))

    record_property("golden", agreement.told(title(scenarios, path)))
    assert not agreement.failed, agreement.differences
