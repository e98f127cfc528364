"""``dra-kit docs``: the documentation of the installed release."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner, Result

from dra_kit.cli.app import cli
from tests.unit.project.projects import PROJECTS


def docs(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["docs", *arguments])


def test_pages_are_listed_with_their_titles_and_their_folder() -> None:
    lines = docs().output.splitlines()
    assert any(line.split(maxsplit=1) == ["how-to/write-a-driver", "Write a driver"] for line in lines)
    assert lines[-1].endswith("/docs")


@pytest.mark.parametrize(
    "page",
    [
        "how-to/effects",
        "effects",
        "effects.md",
        "docs/how-to/effects.md",
        "how-to/effects.md",
        "../how-to/effects.md",
        "effects.md#write-an-effect",
    ],
)
def test_page_is_shown_by_its_name_or_path(page: str) -> None:
    assert docs(page).output.startswith("# ")
    assert docs(page).output == docs("how-to/effects").output


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("sandbox", "There are 2 pages 'sandbox'; name one of how-to/sandbox, reference/sandbox."),
        ("write-driver", "No page 'write-driver'; did you mean \"write-a-driver\"? 'dra-kit docs' lists all pages."),
        ("hook", "No page 'hook'; pages that mention it: how-to/pod-hooks, "),
        ("ConfigMap", "No page 'ConfigMap'; pages that mention it: how-to/read-the-cluster, "),
        ("../../etc/passwd", "No page '../../etc/passwd'; 'dra-kit docs' lists all pages."),
    ],
)
def test_unknown_or_ambiguous_page_is_an_error(page: str, problem: str) -> None:
    answer = docs(page)
    assert answer.exit_code == 2
    assert problem in answer.output


def test_pages_that_a_new_project_names_exist() -> None:
    project = PROJECTS / "simple-driver"
    named = re.findall(r"dra-kit docs (\S+)$", (project / "README.md").read_text(), re.MULTILINE)
    rule = (project / "AGENTS.md").read_text().partition("`dra-kit docs PAGE` prints")[2]
    named += re.findall(r"`([a-z-]+)`", rule)
    assert len(named) == 9
    for page in named:
        assert docs(page).exit_code == 0, page
