"""The example is a project of `dra-kit new` with an author's files, and nothing else."""

from __future__ import annotations

from pathlib import PurePosixPath

from dra_kit.scaffold.answers import FILE, read_answers
from dra_kit.scaffold.rendering import installed_version, render
from dra_kit.scaffold.share import template
from dra_kit.scaffold.writing import BASE, read_base
from tests.unit.examples.kitchen import PROJECT

EDITED = {
    "Dockerfile",  # the menu
    "Makefile",  # a story of its own; stories of failure are no manifests without findings
    "README.md",
    "demo/pod.yaml",
    "deploy/values.yaml",
    "deviceclasses.yaml",
    "pyproject.toml",
    "src/pizza_driver/config.py",
    "src/pizza_driver/driver.py",
}
REPLACED = {
    "stories/first-device/expect.yaml",
    "stories/first-device/pod.yaml",
    "tests/test_driver.py",
}
"""By stories and tests with other names."""

OF_THE_AUTHOR = {"menu.yaml", "src", "stories", "tests"}
"""Where files are that the template knows nothing of."""


def test_the_template_makes_the_rest_of_it() -> None:
    answers, version = read_answers(PROJECT)
    made = render(template(), answers, installed_version())
    assert version == installed_version()
    assert read_base(PROJECT) == made, "`make golden-projects`, and look at `git diff`"

    there = {path: (PROJECT / path).read_text() if (PROJECT / path).is_file() else None for path in made}
    assert {str(path) for path, text in there.items() if text is None} == REPLACED
    assert {str(path) for path, text in there.items() if text not in {None, made[path]}} == EDITED


def test_what_the_template_does_not_make_is_where_an_author_puts_it() -> None:
    answers, _ = read_answers(PROJECT)
    made = {str(path) for path in render(template(), answers, installed_version())}
    found = {PurePosixPath(path.relative_to(PROJECT)) for path in PROJECT.rglob("*") if path.is_file()}
    others = {path for path in found if str(path) not in made and not any("cache" in part for part in path.parts)}
    assert {path.parts[0] for path in others} - {BASE} == OF_THE_AUTHOR
    assert FILE in {str(path) for path in found}
