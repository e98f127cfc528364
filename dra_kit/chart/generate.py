"""``python -m dra_kit.chart.generate``: the chart's ``values.schema.json`` and the values in its README anew."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dra_kit.chart.schema import values_schema
from dra_kit.chart.tables import tables

CHART: Final = Path(__file__).parents[2] / "charts" / "dra-driver"
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
        chart / "README.md": tabled,
    }


def main() -> None:
    """Write them."""
    for path, text in generated(CHART).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
