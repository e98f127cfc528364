"""The results of benchmarks: figures with budgets, as a table."""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.bytecode import compile_package


@dataclass(frozen=True)
class Row:
    """A figure and its budget; ``rival`` is scaled to this machine."""

    name: str
    figure: float
    unit: str
    budget: float | None
    rival: float | None = None

    @property
    def within(self) -> bool:
        return self.budget is None or round(self.figure, 2) <= self.budget  # as displayed


def show(table: Sequence[Row]) -> None:
    print(f"{'what':52} {'ours':>10} {'budget':>10} {'rival':>10}")
    for row in table:
        figure, budget, rival = (
            "" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")
            for value in (row.figure, row.budget, row.rival)
        )
        mark = "" if row.within else "  OVER BUDGET"
        print(f"{row.name:52} {figure:>10} {budget:>10} {rival:>10} {row.unit}{mark}")


def write(table: Sequence[Row], path: Path) -> None:
    path.write_text(json.dumps([asdict(row) | {"within": row.within} for row in table], indent=2) + "\n")


def read(path: Path) -> list[Row]:
    found = json.loads(path.read_text())
    return [Row(item["name"], item["figure"], item["unit"], item["budget"], item["rival"]) for item in found]


def part(prog: str, description: str | None, measure: Callable[[], Sequence[Row]]) -> int:
    """Run one part as a command: measure, print, and return 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--profile", action="store_true", help="show where the time goes, instead of the figures")
    options = parser.parse_args()
    if options.profile:
        _profile(measure)
        return 0
    compile_package()
    table = measure()
    show(table)
    if options.json:
        write(table, options.json)
    return 0 if all(row.within for row in table) else 1


_SHOWN = 15


def _profile(measure: Callable[[], Sequence[Row]]) -> None:
    with cProfile.Profile() as profile:
        measure()
    show_shares(by_module(profile))


def by_module(profile: cProfile.Profile | str) -> Counter[str]:
    """Return the seconds of each module in a profile or profile file; C functions count for their caller."""
    found: Counter[str] = Counter()
    for (file, _, _), (_, _, own, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if file != "~":
            found[_module(file)] += own
            continue
        for (caller, _, _), (_, _, part, _) in callers.items():
            found[_module(caller)] += part
    return found


def show_shares(found: Counter[str]) -> None:
    """Return the modules with the most time."""
    total = sum(found.values())
    for module, seconds in found.most_common(_SHOWN):
        print(f"{seconds / total:6.1%}  {module}")


def _module(file: str) -> str:
    _, mark, below = file.rpartition("/dra_kit/")
    if mark:
        return f"dra_kit/{below}"
    return file.rpartition("site-packages/")[2].partition("/")[0] if "site-packages" in file else Path(file).name
