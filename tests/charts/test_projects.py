"""The chart takes what a project gives to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.project.rendering import Answers, create
from tests.charts.rendering import Helm
from tests.unit.examples.kitchen import PROJECT
from tests.unit.project.projects import ANSWERS, PROJECTS, SEEDED, rendered

EXAMPLES = [PROJECT.parent / name for name in ("pizza-driver", "gpu-driver")]


@pytest.fixture(params=[*ANSWERS, *SEEDED, *EXAMPLES], ids=lambda x: x.name if isinstance(x, Path) else x.project)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of an example, or of a new project of each kind."""
    given: Answers | Path = request.param
    if isinstance(given, Path):
        return given
    if given not in SEEDED:
        return PROJECTS / given.project
    create(tmp_path / given.project, rendered(given))
    return tmp_path / given.project


def test_values_and_classes_of_a_project_are_deployed(project: Path, helm: Helm, tmp_path: Path) -> None:
    made = tmp_path / "values.yaml"
    result = CliRunner().invoke(cli, ["chart", str(project), "--values", str(made)])
    assert result.exit_code == 0, result.output
    values = yaml.safe_load(made.read_text())

    rendered = helm.render(values)

    webhook = values["webhook"].get("certificate", {}).get("selfMade", False)
    assert {"DaemonSet", "Deployment", "DeviceClass"} <= rendered.kinds()
    assert ("ValidatingWebhookConfiguration" in rendered.kinds()) == webhook
