"""Every kind of project works at once, in an environment with nothing but the wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import asdict

from dra_kit.project.rendering import BASE, FILE, Answers, project_template, write
from tests.scaffold.environment import Environment
from tests.unit.project.projects import ANSWERS, SEEDED, committed, rendered

projects = pytest.mark.parametrize("answers", ANSWERS, ids=lambda answers: answers.project)


def created(answers: Answers, environment: Environment, folder: Path) -> Path:
    """The folder of a project that the wheel creates as this checkout does."""
    webhook = "--webhook" if answers.webhook else "--no-webhook"
    environment.run("dra-kit", "new", answers.project, "--kind", answers.kind, webhook, cwd=folder)
    project = folder / answers.project
    made = {path: text for path, text in committed(project).items() if path.name != BASE}
    assert made == rendered(answers)
    return project


@projects
def test_a_new_project_is_linted_tested_and_shown_at_once(
    answers: Answers, environment: Environment, tmp_path: Path
) -> None:
    project = created(answers, environment, tmp_path)
    assert "warning" not in environment.run("make", "lint", cwd=project)  # mypy, strict, is part of it
    assert " passed in " in environment.run("make", "test", cwd=project)
    assert "story first-device passed" in environment.run("make", "sandbox", cwd=project)
    assert environment.run("dra-kit", "update", cwd=project) == "nothing to do\n"


@pytest.mark.parametrize("answers", SEEDED, ids=lambda answers: answers.project)
def test_a_copy_of_a_reference_driver_is_linted_tested_and_shown_at_once(
    answers: Answers, environment: Environment, tmp_path: Path
) -> None:
    project = created(answers, environment, tmp_path)
    environment.run("make", "lint", cwd=project)
    # `make test-examples` runs the slow ones, with the original names: a killed driver, and each story
    told = environment.run("make", "test", "PYTEST_ADDOPTS=-m 'not dra_killed' -k 'not story'", cwd=project)
    assert re.search(r"[1-9]\d* passed.* deselected", told)
    assert " passed in " in environment.run("make", "sandbox", cwd=project)
    assert environment.run("dra-kit", "update", cwd=project) == "nothing to do\n"
    assert "Wrote values.yaml" in environment.run("make", "values", cwd=project)


def test_pyright_finds_nothing_in_any_of_them(environment: Environment, tmp_path: Path) -> None:
    """One run for all: most of its time is the start."""
    for answers in ANSWERS:
        for path, text in rendered(answers).items():
            write(tmp_path / answers.project, path, text)
    roots = [{"root": answers.project, "extraPaths": [f"{answers.project}/src"]} for answers in ANSWERS]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"executionEnvironments": roots}))
    environment.run(environment.python, "-m", "pip", "install", "--quiet", "pytest", cwd=tmp_path)
    pyright = Path(sys.executable).with_name("pyright")
    told = environment.run(pyright, "--pythonpath", environment.python, "--stats", cwd=tmp_path)
    assert "0 errors, 0 warnings" in told
    assert f"Found {4 * len(ANSWERS)} source files" in told  # config, driver, package, test


def test_copier_itself_refuses_a_name_that_new_refuses(tmp_path: Path) -> None:
    """All of them: tests/unit/project/test_copier.py."""
    program = str(Path(sys.executable).with_name("copier"))
    data = ["--data", "project=led", "--data", "package=json"]
    copier = [program, "copy", "--defaults", "--quiet", *data, str(project_template()), str(tmp_path / "led")]
    refused = subprocess.run(copier, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    problem = "json is the name of another module; use another name, such as json_driver"
    assert problem in " ".join(refused.stderr.split())
    assert not (tmp_path / "led").exists()


@projects
def test_copier_makes_the_same(answers: Answers, tmp_path: Path) -> None:
    copier = Path(sys.executable).with_name("copier")
    data = [word for name, value in asdict(answers).items() for word in ("--data", f"{name}={value}")]
    subprocess.run([copier, "copy", "--defaults", "--quiet", *data, project_template(), tmp_path / "made"], check=True)
    made = {str(path): text for path, text in committed(tmp_path / "made").items()}
    told = made.pop(FILE)
    assert made == {str(path): text for path, text in rendered(answers).items() if str(path) != FILE}
    # copier's own answers file has its own words, which `copier update` needs
    assert f"project: {answers.project}\n" in told
    assert f"kind: {answers.kind}\n" in told
