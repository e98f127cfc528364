"""Names of projects, drivers and packages: what is refused, and what is offered instead."""

from __future__ import annotations

import keyword
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.names import driver_name
from dra_kit.project.rendering import (
    TAKEN_PROJECTS,
    check_driver_name,
    check_package_name,
    check_project_name,
    default_driver,
    default_package,
)
from tests.unit.project.projects import ANSWERS, SEEDED, rendered


@pytest.mark.parametrize("name", ["led", "led-driver", "a1", "x" * 40])
def test_a_project_may_be_called(name: str) -> None:
    assert check_project_name(name) == name


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Led Driver", "use 'led-driver'"),
        ("Led_2", "use 'led-2'"),
        ("led_driver", "use 'led-driver'"),
        ("-led-", "use 'led'"),
        ("9lives", "use 'lives'"),
        ("", "use for example 'led-driver'"),
        ("???", "use for example 'led-driver'"),
        ("x" * 41, f"use {'x' * 40!r}"),
        ("../led", "use 'led'"),
        ("dra-kit", "use 'dra-kit-driver'"),
        ("Dra_Kit", "use 'dra-kit-driver'"),
        ("pyyaml", "use 'pyyaml-driver'"),
    ],
)
def test_invalid_project_name_gets_a_suggestion(name: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_project_name(name)
    assert str(raised.value).startswith(f"project name {name!r}: ")
    assert str(raised.value).endswith(remedy)
    assert raised.value.code == "invalid-name"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("led", "it lacks a domain, so that another driver could have the same name; use 'led.example.com'"),
        ("LED.example.com", "it must be lower case; use 'led.example.com'"),
        ("led_1.example.com", "use 'led-1.example.com'"),
        ("x" * 64 + ".com", "use for example 'led.example.com'"),
    ],
)
def test_invalid_driver_name_gets_a_suggestion(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_driver_name(name)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("class", "it is a keyword of Python; use 'class_driver'"),
        ("json", "it is the name of another module; use 'json_driver'"),
        ("dra_kit", "it is the name of another module; use 'dra_kit_driver'"),
        ("yaml", "it is the name of another module; use 'yaml_driver'"),
        (
            "led-driver",
            "it must consist of lower-case letters, digits and '_', and begin with a letter; use 'led_driver'",
        ),
    ],
)
def test_invalid_package_name_gets_a_suggestion(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        check_package_name(name)


def required() -> set[str]:
    """What the projects of all kinds require."""
    texts = [rendered(answers)[PurePosixPath("pyproject.toml")] for answers in (*ANSWERS, *SEEDED)]
    projects = [tomllib.loads(text)["project"] for text in texts]
    lines = [line for one in projects for line in (*one["dependencies"], *one["optional-dependencies"]["dev"])]
    return {canonicalize_name(Requirement(line).name) for line in lines}


@cache
def needed() -> set[str]:
    """What pip installs for a new project, by the names of its index."""
    waiting, found = ["dra-kit", "hatchling", "pip", *required()], set[str]()
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for line in requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(requirement.name))
    return found


def test_no_project_takes_the_place_of_a_package_that_it_needs() -> None:
    assert needed() >= {"dra-kit", "pyyaml", "grpcio", "pytest", "pyroute2", "hypothesis"}
    assert needed() - TAKEN_PROJECTS == set()


@pytest.mark.processes
def test_no_package_takes_the_place_of_a_module_that_it_needs() -> None:
    of = {name: {canonicalize_name(one) for one in by} for name, by in packages_distributions().items()}
    modules = {name for name, by in of.items() if by & needed() and re.fullmatch(r"[a-z][a-z0-9_]*", name)}
    assert modules >= {"yaml", "grpc", "google", "pytest"}  # not dra_kit, which is not installed as a copy
    assert {name for name in modules if default_package(name.replace("_", "-")) == name} == set()


@given(st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True).filter(lambda it: it not in TAKEN_PROJECTS))
def test_the_defaults_of_every_project_may_be_used(project: str) -> None:
    assert check_driver_name(default_driver(check_project_name(project)))
    package = default_package(project)
    assert check_package_name(package).isidentifier()
    assert not keyword.iskeyword(package)
    assert package not in sys.stdlib_module_names


@given(st.text(max_size=60))
def test_what_is_offered_may_be_used(name: str) -> None:
    for check in (check_project_name, check_driver_name, check_package_name):
        try:
            check(name)
        except ConfigurationError as error:
            if offered := re.search(r"use '([^']*)'[^']*$", str(error)):
                assert check(offered[1]) == offered[1]


@given(st.text(max_size=60))
def test_a_driver_that_is_accepted_is_one_for_the_api(name: str) -> None:
    try:
        check_driver_name(name)
    except ConfigurationError:
        return
    assert not driver_name(name, "name")
