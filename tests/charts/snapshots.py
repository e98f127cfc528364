"""``python -m tests.charts.snapshots``: write the rendered chart to tests/data/charts."""

from __future__ import annotations

from tests.charts.options import ROWS, snapshot
from tests.charts.rendering import find_helm


def main() -> None:
    """Write a file for each row."""
    helm = find_helm()
    for row, values in ROWS.items():
        snapshot(row).write_text(helm.template(values), encoding="utf-8")


if __name__ == "__main__":
    main()
