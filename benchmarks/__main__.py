"""``python -m benchmarks [--json FILE]``: measure everything, print the table, exit 1 when a budget is exceeded."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import node
from benchmarks.table import Row, read, show, write

PARTS = (
    "benchmarks.inventory",
    "benchmarks.cel",
    "benchmarks.allocation",
    "benchmarks.explain",
    "benchmarks.controller",
    "benchmarks.sandbox",
    "benchmarks.loud_pods",
    "benchmarks.fleet",
    "benchmarks.agents",
    "benchmarks.crowded",
)
"""Parts that need no cluster; each runs in a separate process, because memory is measured."""


def without_a_cluster(directory: Path) -> list[Row]:
    table = []
    for part in PARTS:
        path = directory / f"{part}.json"
        # the table shows exceeded budgets
        subprocess.run([sys.executable, "-m", part, "--json", str(path)], stdout=subprocess.DEVNULL, check=False)
        table += read(path)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--rival", type=Path, help="its binary: it is measured in turn with ours")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        table = without_a_cluster(Path(directory))
    table = node.measured(options.rival) + table
    show(table)
    measured = "measured in turn with ours" if options.rival else "elsewhere, scaled by the floors"
    print(f"\nrival: the Go example driver with its best settings; its figures for calls: {measured}")
    if options.json:
        write(table, options.json)
    return 0 if all(row.within for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
