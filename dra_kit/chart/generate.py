"""``python -m dra_kit.chart.generate``: the chart's schema, defaults for its templates, and its README's tables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from dra_kit.chart.schema import values_schema
from dra_kit.chart.tables import tables

CHART: Final = Path(__file__).parents[2] / "charts" / "dra-driver"
_DEFAULTS: Final = (
    "# Made of values.yaml by `make chart`: what the templates take for values that are null or missing.\n"
)
_TABLES: Final = re.compile(r"(?<=<!-- values -->\n).*(?=<!-- end of values -->)", re.DOTALL)


def generated(chart: Path) -> Mapping[Path, str]:
    """Return the files that are generated from the model and ``values.yaml``, with their content.

    Args:
        chart: its folder.
    """
    values = (chart / "values.yaml").read_text(encoding="utf-8")
    schema = values_schema(values)
    readme = (chart / "README.md").read_text(encoding="utf-8")
    tabled = _TABLES.sub(lambda _: f"{tables(values, schema, level=3)}\n", readme)
    return {
        chart / "values.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        chart / "files" / "defaults.yaml": _DEFAULTS
        + yaml.safe_dump(_scalars(yaml.safe_load(values), schema), sort_keys=False),
        chart / "README.md": tabled,
    }


def _scalars(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults without maps and lists: where those are null, they are empty."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        part = schema["properties"][name]
        if isinstance(value, dict) and part.get("properties"):
            made[name] = _scalars(value, part)
        elif not isinstance(value, (dict, list)):
            made[name] = value
    return made


def main() -> None:
    """Write them."""
    for path, text in generated(CHART).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
