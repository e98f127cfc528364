"""``dra-kit chart TARGET``: the chart of one driver, which needs no other file and knows the driver's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dra_kit.cli.app import cli
from tests.charts.options import EXAMPLES, ROWS
from tests.charts.rendering import CHART, DRIVER, Helm, Refused, target

PROJECT = EXAMPLES / "pizza-driver"


def made(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["chart", *map(str, arguments)])


def project_with(folder: Path, fields: str, settings: dict[str, Any]) -> Path:
    """A project whose driver has settings, and whose values set some."""
    file = target(folder, fields)
    (folder / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "pizzeria:driver"\n')
    (folder / "deploy").mkdir()
    (folder / "deploy" / "values.yaml").write_text(yaml.safe_dump({"node": {"settings": settings}}))
    return file


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "chart"
    result = made(PROJECT, "--directory", folder)
    assert result.exit_code == 0, result.output
    assert result.output == f"Wrote {folder}, the chart of driver {DRIVER}: helm install NAME {folder}\n"
    return folder


def test_it_needs_no_values(chart: Path, helm: Helm) -> None:
    assert helm.render({}, chart=chart).objects == helm.render(ROWS["pizza-driver"]).objects


def test_it_is_well_formed(chart: Path, helm: Helm) -> None:
    helm.lint({}, chart=chart)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"hardware_dirr": "/x"}, "hardware_dirr"),
        ({"hardware_dir": 7}, "hardware_dir"),
    ],
)
def test_helm_refuses_a_setting_that_the_driver_would_refuse(
    settings: dict[str, Any], told: str, chart: Path, helm: Helm
) -> None:
    with pytest.raises(Refused, match=told):
        helm.render({"node": {"settings": settings}}, chart=chart)


def test_a_setting_may_be_a_template_whatever_it_becomes(tmp_path: Path, helm: Helm) -> None:
    settings = (
        "    ovens: int = Field(default=1, ge=1, description='how many there are')\n"
        "    sizes: list[int] = []\n    mode: Literal['a', 'b'] = 'a'\n"
    )
    assert made(target(tmp_path, settings), "--directory", tmp_path / "chart").exit_code == 0
    image = {"repository": "images.example/pizza", "tag": "1"}
    given = {"ovens": "{{ 7 }}", "sizes": [1, 2], "mode": "b"}
    values = {"target": "pizzeria:driver", "image": image, "node": {"settings": given}}
    environment = helm.render(values, chart=tmp_path / "chart").environment("node")
    assert [environment[f"DRIVER_{name}"] for name in ("OVENS", "SIZES", "MODE")] == ["7", "[1,2]", "b"]
    with pytest.raises(Refused, match="ovens"):
        helm.render({**values, "node": {"settings": {"ovens": 0}}}, chart=tmp_path / "chart")


@pytest.mark.parametrize(
    ("setting", "value"), [("names", "red,white"), ("sizes", "1,2"), ("sizes", 1), ("names", "red"), ("both", "1")]
)
def test_setting_that_is_a_list_may_be_a_text_with_commas_or_one_item(
    setting: str, value: object, tmp_path: Path, helm: Helm
) -> None:
    settings = "    names: list[str] = []\n    sizes: tuple[int, ...] = ()\n    both: list[int] | None = None\n"
    project = project_with(tmp_path, settings, {setting: value})
    assert made(project, "--directory", tmp_path / "chart").exit_code == 0
    values = {"target": "pizzeria:driver", "image": {"repository": "images.example/pizza", "tag": "1"}}
    environment = helm.render({**values, "node": {"settings": {setting: value}}}, chart=tmp_path / "chart").environment(
        "node"
    )
    assert environment[f"DRIVER_{setting.upper()}"] == str(value)
    with pytest.raises(Refused, match=setting):
        helm.render({**values, "node": {"settings": {setting: {"a": 1}}}}, chart=tmp_path / "chart")


def test_its_values_are_explained_as_those_of_every_driver(chart: Path) -> None:
    text = (chart / "values.yaml").read_text()
    assert "# Root directory of the kubelet (its --root-dir)" in text
    merged = yaml.safe_load(text)
    assert merged["driverName"] == DRIVER
    assert merged["node"]["kubeletDir"] == "/var/lib/kubelet"
    assert merged["node"]["settings"] == {"hardware_dir": "/var/lib/pizza-kitchen"}
    assert merged["deviceClasses"] == (PROJECT / "deviceclasses.yaml").read_text()


def test_it_is_made_again_and_again_but_over_nothing_else(chart: Path, tmp_path: Path) -> None:
    assert made(PROJECT, "--directory", chart).exit_code == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "Chart.yaml").write_text("{}")
    refused = made(PROJECT, "--directory", tmp_path / "mine")
    assert refused.exit_code == 2
    assert "files that dra-kit did not generate" in refused.output


def test_without_a_driver_it_is_where_the_chart_is() -> None:
    assert made().output == f"{CHART}\n"
    assert "TARGET requires --values or --directory" in made(PROJECT).output


LIMITED = (
    "    ovens: int = Field(default=1, ge=1)\n"
    "    memory: dra.QuantityField = Field(default=dra.QuantityField('1Gi'), ge='1Gi', le='8Gi')\n"
)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"ovens": 1.5}, "--ovens (DRIVER_OVENS): must be an integer, not '1.5'"),
        ({"ovens": -2}, "--ovens (DRIVER_OVENS): must be at least 1, not '-2'"),
        ({"ovens": True}, "--ovens (DRIVER_OVENS): must be an integer, not 'true'"),
        ({"memory": "9Gi"}, "--memory (DRIVER_MEMORY): must be at most 8Gi, not '9Gi'"),
        ({"memory": "lots"}, "--memory (DRIVER_MEMORY): 'lots' is not a quantity"),
        ({"ovns": 1}, "driver dra.pizza has no setting 'ovns'; did you mean \"ovens\"? its settings: ovens, memory"),
    ],
)
def test_wrong_setting_in_the_values_of_the_project_is_rejected(
    settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    project = project_with(tmp_path, LIMITED, settings)
    refused = made(project, "--values", "-")
    assert refused.exit_code == 2
    assert "deploy/values.yaml: node.settings: " in refused.output
    assert problem in refused.output


def test_setting_that_only_a_node_can_check_is_accepted(tmp_path: Path) -> None:
    fields = "    menu: FilePath\n    oven: str\n    ovens: int = 1\n    memory: dra.QuantityField = '1'\n"
    project = project_with(tmp_path, fields, {"menu": "/only/on/nodes.yaml", "ovens": "{{ .Values.ovens }}"})
    assert made(project, "--values", "-").exit_code == 0


def test_helm_rejects_integers_and_quantities_of_the_wrong_form(tmp_path: Path, helm: Helm) -> None:
    assert made(target(tmp_path, LIMITED), "--directory", tmp_path / "chart").exit_code == 0
    image = {"repository": "images.example/pizza", "tag": "1"}
    values = {"target": "pizzeria:driver", "image": image}
    for wrong in ({"ovens": 1.5}, {"ovens": -2}, {"memory": "lots"}):
        with pytest.raises(Refused, match=next(iter(wrong))):
            helm.render({**values, "node": {"settings": wrong}}, chart=tmp_path / "chart")
    given = {"ovens": 3, "memory": "2Gi"}
    environment = helm.render({**values, "node": {"settings": given}}, chart=tmp_path / "chart").environment("node")
    assert (environment["DRIVER_OVENS"], environment["DRIVER_MEMORY"]) == ("3", "2Gi")
