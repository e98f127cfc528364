"""Tables of the chart values: defaults and comments from ``values.yaml``, types from ``values.schema.json``."""

from __future__ import annotations

import json
from pathlib import Path

from dra_kit.project.chart_values import value_tables


def table(chart: Path) -> str:
    """Return Markdown with a heading for each group of values."""
    text = (chart / "values.yaml").read_text(encoding="utf-8")
    return value_tables(text, json.loads((chart / "values.schema.json").read_text(encoding="utf-8")))
