"""The values of the chart as a table: defaults and comments of ``values.yaml``, types of ``values.schema.json``."""

from __future__ import annotations

import json
from pathlib import Path

from dra_kit.project.chart_schema import value_tables


def table(chart: Path) -> str:
    """Markdown with a heading for each group of values."""
    text = (chart / "values.yaml").read_text(encoding="utf-8")
    return value_tables(text, json.loads((chart / "values.schema.json").read_text(encoding="utf-8")))
