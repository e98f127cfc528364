"""The chart takes what a project gives to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dra_kit.cli.app import cli
from tests.unit.charts.rendering import Helm
from tests.unit.examples.kitchen import PROJECT
from tests.unit.project.projects import ANSWERS, PROJECTS


@pytest.mark.parametrize(
    "project",
    [
        *(PROJECTS / answers.project for answers in ANSWERS),
        *(PROJECT.parent / name for name in ("pizza-driver", "gpu-driver", "nic-driver")),
    ],
    ids=lambda x: x.name,
)
def test_values_and_classes_of_a_project_are_deployed(project: Path, helm: Helm, tmp_path: Path) -> None:
    made = tmp_path / "values.yaml"
    result = CliRunner().invoke(cli, ["chart", str(project), "--values", str(made)])
    assert result.exit_code == 0, result.output
    values = yaml.safe_load(made.read_text())

    rendered = helm.render(values)

    webhook = values["webhook"]["certificate"]["selfMade"]
    assert {"DaemonSet", "Deployment", "DeviceClass"} <= rendered.kinds()
    assert ("ValidatingWebhookConfiguration" in rendered.kinds()) == webhook
