"""copier.yml refuses the names that `dra-kit new` refuses, and has the same defaults."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from dra_kit.errors import ConfigurationError
from dra_kit.project.rendering import (
    TAKEN_MODULES,
    TAKEN_PROJECTS,
    check_driver_name,
    check_package_name,
    check_project_name,
    default_driver,
    default_package,
    project_template,
)

QUESTIONS: Final[dict[str, Any]] = yaml.safe_load((project_template() / "copier.yml").read_text(encoding="utf-8"))
# what copier renders by: its answers are strings here
JINJA: Final = SandboxedEnvironment(
    extensions=["jinja2_ansible_filters.AnsibleCoreFiltersExtension"],
    **{**QUESTIONS["_envops"], "undefined": StrictUndefined},
)
HIDDEN: Final = {
    name: asked["default"] for name, asked in QUESTIONS.items() if name[0] != "_" and not asked.get("when", True)
}
VALIDATORS: Final = {name: JINJA.from_string(QUESTIONS[name]["validator"]) for name in ("project", "driver", "package")}
DEFAULTS: Final = [JINJA.from_string(QUESTIONS[name]["default"]) for name in ("driver", "package")]
CHECKS: Final[dict[str, Callable[[str], str]]] = {
    "project": check_project_name,
    "driver": check_driver_name,
    "package": check_package_name,
}


def refusal(question: str, name: str) -> str:
    """What copier answers to a name; empty where it takes it."""
    return VALIDATORS[question].render({**HIDDEN, question: name}).strip()


def refused(question: str, name: str) -> bool:
    try:
        CHECKS[question](name)
    except ConfigurationError:
        return True
    return False


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("project", TAKEN_PROJECTS),
        ("package", TAKEN_MODULES),
        ("package", {name for name in sys.stdlib_module_names if name[0] != "_"}),
        ("package", keyword.kwlist),
    ],
    ids=["projects", "modules", "modules of Python", "words of Python"],
)
def test_names_that_something_else_has_are_refused(question: str, names: frozenset[str]) -> None:
    assert names
    assert {name for name in names if not refusal(question, name)} == set()
    assert {name for name in names if not refused(question, name)} == set()


PARTS = st.from_regex(r"[a-z0-9A-Z_.-]{0,70}", fullmatch=True)


@pytest.mark.parametrize("question", CHECKS)
@given(data=st.data())
def test_every_other_name_is_judged_alike(question: str, data: st.DataObject) -> None:
    near = st.builds(lambda domain, end: f"led.{domain}.com{end}", PARTS, st.sampled_from(["", "\n", "."]))
    name = data.draw(st.one_of(PARTS, near, st.text(max_size=20)))
    assert bool(refusal(question, name)) == refused(question, name)


@given(st.one_of(st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True), st.sampled_from(["json", "class"])))
def test_the_defaults_are_the_same(project: str) -> None:
    assert [default.render({**HIDDEN, "project": project}) for default in DEFAULTS] == [
        default_driver(project),
        default_package(project),
    ]
