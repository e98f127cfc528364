"""The chart of one driver: with its values, its DeviceClasses, and a schema that knows its settings."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from dra_kit.chart import comments
from dra_kit.chart.editing import WIDTH, lines_of
from dra_kit.chart.schema import values_schema
from dra_kit.chart.settings import settings_schema
from dra_kit.chart.values import ChartValues
from dra_kit.errors import ConfigurationError

DRIVER: Final = "dra-kit/driver"
"""Annotation of a chart that was made for a driver, with its name: such a chart may be made again."""


def write_chart(
    chart: Path, folder: Path, *, driver: str, settings: type[BaseModel] | None, values: Mapping[str, Any]
) -> None:
    """Write the chart of a driver.

    Args:
        chart: for all drivers.
        folder: to write it to; one that was made for the same driver is replaced.
        driver: its name.
        settings: the model of its settings; None where it has none.
        values: what it is installed with unless somebody says otherwise.

    Raises:
        ConfigurationError: something else is in the folder, it cannot be written, or a value is wrong.
    """
    _refuse_others(folder, driver)
    text = (chart / "values.yaml").read_text(encoding="utf-8")
    merged = complete_values(chart, values)
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    about |= {"description": f"Driver {driver}", "annotations": {**about.get("annotations", {}), DRIVER: driver}}
    written = {
        "Chart.yaml": yaml.safe_dump(about, sort_keys=False),
        "values.yaml": "\n".join(_commented(merged, comments.comments(text))) + "\n",
        "values.schema.json": json.dumps(values_schema(text, settings_schema(settings)), indent=2) + "\n",
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
            made = shutil.copytree(chart, Path(place) / "chart")
            for name, content in written.items():
                (made / name).write_text(content, encoding="utf-8")
            if folder.exists():
                folder.rename(Path(place) / "former")
            made.rename(folder)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error}; choose another by --directory") from None


def complete_values(chart: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a driver with the chart's own where it has none.

    Args:
        chart: for all drivers.
        values: of one driver.

    Raises:
        ConfigurationError: a value is wrong, or the chart has none of that name.
    """
    merged: dict[str, Any] = _merged(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")), values)
    try:
        ChartValues.model_validate(merged)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"deploy/values.yaml: {where}: {first['msg']}; correct it") from None
    return merged


def _refuse_others(folder: Path, driver: str) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        about = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
        found = about["annotations"][DRIVER]
    except (OSError, yaml.YAMLError, TypeError, KeyError):
        found = None
    if found != driver:
        what = f"the chart of driver {found}" if found else "something else than a chart that was made here"
        raise ConfigurationError(f"{folder} has {what} in it, and is not replaced; choose another by --directory")


def _merged(below: Any, above: Any) -> Any:
    """Merge values over others, as helm does it: maps are merged, everything else is replaced."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}
    return above


def _commented(
    values: Mapping[str, Any], commented: Mapping[comments.Path, str], above: comments.Path = ()
) -> Iterator[str]:
    """Yield lines of YAML with the comment of each value above it."""
    indent = "  " * len(above)
    for number, (name, value) in enumerate(values.items()):
        path = (*above, name)
        comment = commented.get(path, "")
        if comment and number and not above:
            yield ""
        for line in wrap(comment, WIDTH - len(indent) - 2):
            yield f"{indent}# {line}"
        if (
            isinstance(value, dict)
            and value
            and any(len(other) > len(path) and other[: len(path)] == path for other in commented)
        ):
            yield f"{indent}{name}:"
            yield from _commented(value, commented, path)
        else:
            yield from lines_of({name: value}, len(indent))
