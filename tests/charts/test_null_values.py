"""Values that are null: a values file removes a default so, and helm keeps them in a release."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.options import ROWS, set_paths
from tests.charts.rendering import CHART, DEPLOYED, Helm, Manifests
from tests.charts.test_options import SCHEMA, VALUES

Paths = tuple[str, ...]
NEEDED = {("driverName",), ("image", "repository"), ("image", "tag"), ("target",)}
LEAVES = dict(set_paths(VALUES, SCHEMA))
SCALARS = [path for path, value in LEAVES.items() if not isinstance(value, (dict, list)) and path not in NEEDED]
COLLECTIONS = [path for path, value in LEAVES.items() if isinstance(value, (dict, list))]
GROUPS = sorted({path[:length] for path in LEAVES for length in range(1, len(path))} - {("image",)})
"""Values that contain others."""
ON = {path for path in SCALARS if isinstance(LEAVES[path], bool)} | {path for path in SCALARS if "certificate" in path}
"""Switches: with them on, the templates use all other values."""


def values(path: Paths, value: Any) -> dict[str, Any]:
    """Values with nothing but this one."""
    made: Any = value
    for name in reversed(path):
        made = {name: made}
    return dict(made)


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """All of them, the later ones over the earlier."""
    made: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(made.get(name), dict) and isinstance(value, dict)
            made[name] = merged(made[name], value) if both else copy.deepcopy(value)
    return made


def empty(path: Paths) -> Any:
    """What makes a map or a list empty whatever its default is; for a scalar, the default."""
    default = LEAVES[path]
    if path == ("node", "updateStrategy", "rollingUpdate"):
        return None  # the API server refuses an empty one for OnDelete
    return dict.fromkeys(default) if isinstance(default, dict) else [] if isinstance(default, list) else default


def base(row: str) -> dict[str, Any]:
    """Values of a row in which switches are as they are there, and all else as the chart has it."""
    given = dict(set_paths(ROWS[row], SCHEMA))
    return merged(*(values(path, value) for path, value in given.items() if path in ON | NEEDED))


@pytest.fixture(scope="session")
def without_defaults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as ``helm upgrade --reuse-values`` sees it where a release has none of its defaults."""
    chart = tmp_path_factory.mktemp("chart") / "dra-driver"
    shutil.copytree(CHART, chart)
    (chart / "values.yaml").write_text("{}\n", encoding="utf-8")
    return chart


def same(helm: Helm, given: Mapping[str, Any], expected: Mapping[str, Any], *charts: Path) -> None:
    wanted = helm.render(expected).objects
    for chart in charts:
        assert list(helm.render(given, chart=chart).objects) == list(wanted), chart


@pytest.mark.parametrize("row", ["everything", "bare"])
def test_maps_and_lists_that_are_null_are_empty(row: str, helm: Helm, without_defaults: Path) -> None:
    emptied = merged(base(row), *(values(path, empty(path)) for path in COLLECTIONS))
    nulled = merged(base(row), *(values(path, None) for path in COLLECTIONS))
    same(helm, nulled, emptied, CHART, without_defaults)


@pytest.mark.parametrize("row", ["everything", "bare"])
def test_scalars_that_are_null_are_defaults(row: str, helm: Helm, without_defaults: Path) -> None:
    emptied = merged(*(values(path, empty(path)) for path in COLLECTIONS), base(row))
    nulled = merged(emptied, *(values(path, None) for path in SCALARS if path not in ON))
    same(helm, nulled, emptied, CHART, without_defaults)


@pytest.mark.parametrize("path", sorted(ON), ids=".".join)
def test_a_switch_that_is_null_is_as_by_default(path: Paths, helm: Helm, without_defaults: Path) -> None:
    emptied = merged(*(values(item, empty(item)) for item in COLLECTIONS), DEPLOYED)
    same(helm, merged(emptied, values(path, None)), emptied, CHART, without_defaults)


@pytest.mark.parametrize("path", GROUPS, ids=".".join)
def test_a_group_that_is_null_has_the_defaults_of_its_scalars(path: Paths, helm: Helm, without_defaults: Path) -> None:
    inside = [item for item in LEAVES if item[: len(path)] == path]
    expected = merged(DEPLOYED, *(values(item, empty(item)) for item in inside))
    same(helm, merged(DEPLOYED, values(path, None)), expected, CHART)
    emptied = merged(*(values(item, empty(item)) for item in COLLECTIONS), DEPLOYED)
    same(helm, merged(emptied, values(path, None)), merged(emptied, expected), without_defaults)


def test_a_key_of_a_map_that_is_null_is_left_out(helm: Helm, without_defaults: Path) -> None:
    given = merged(DEPLOYED, {"node": {"nodeSelector": {"gone": None, "kitchen": "true"}, "settings": {"menu": None}}})
    for chart in (CHART, without_defaults):
        manifests: Manifests = helm.render(given, chart=chart)
        assert manifests.pod("node")["nodeSelector"] == {"kitchen": "true"}
        assert "DRIVER_MENU" not in manifests.environment("node")


def test_every_template_begins_with_the_defaults() -> None:
    for template in (CHART / "templates").iterdir():
        if template.suffix in {".yaml", ".txt"}:
            first = template.read_text(encoding="utf-8").splitlines()[0]
            assert first == '{{- include "dra-driver.defaults" . -}}', template.name


def test_the_defaults_of_templates_are_those_of_the_values() -> None:
    defaults = yaml.safe_load((CHART / "files" / "defaults.yaml").read_text(encoding="utf-8"))
    assert dict(set_paths(defaults, SCHEMA)).items() >= {path: LEAVES[path] for path in SCALARS}.items()
