"""What a project, a driver and a package may be called."""

from __future__ import annotations

import keyword
import re
import sys
from typing import Final

from dra_kit.errors import ConfigurationError
from dra_kit.resource.validation.fields.formats import driver_name

_PROJECT: Final = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?").fullmatch
"""As a helm release and a name of Python's package index: short enough for what is added to it."""

_PACKAGE: Final = re.compile(r"[a-z][a-z0-9_]*").fullmatch
_TAKEN: Final = frozenset(
    {"dra_kit", "tests", "kopf", "grpc", "pydantic", "jinja2", "kubernetes", "kubernetes_asyncio"}
)


def check_project(name: str) -> str:
    """The name of a project.

    Raises:
        ConfigurationError: with a name that would do.
    """
    if _PROJECT(name):
        return name
    near = re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", name.lower())).strip("-0123456789")[:40].strip("-")
    remedy = f"how about {near!r}?" if near and _PROJECT(near) else "write for instance led-driver"
    raise ConfigurationError(
        f"project name {name!r}: it must be lower-case letters, digits and '-', begin with a letter, end with a letter "
        f"or digit, and have at most 40 of them; {remedy}",
        code="invalid-name",
    )


def check_driver(name: str) -> str:
    """The name of a driver.

    Raises:
        ConfigurationError: it is no DNS subdomain of at most 63 bytes, or has no domain.
    """
    problems = [str(error).removeprefix("name: ") for error in driver_name(name, "name")]
    if not problems and name != name.lower():
        problems = ["it must be lower case"]
    if not problems and "." not in name:
        problems = ["it has no domain, and another driver could have the same name"]
    if not problems:
        return name
    near = re.sub(r"[^a-z0-9.-]", "-", name.lower()).strip(".-") or "my-driver"
    near = near if "." in near else f"{near}.example.com"
    fits = not driver_name(near, "name")
    raise ConfigurationError(
        f"driver name {name!r}: {'; '.join(problems)}; "
        + (f"how about {near!r}, with a domain of yours?" if fits else "write for instance led.example.com"),
        code="invalid-name",
    )


def check_package(name: str) -> str:
    """The name of a Python package.

    Raises:
        ConfigurationError: it is no identifier, or something else has it.
    """
    if _PACKAGE(name) and not _is_taken(name):
        return name
    if keyword.iskeyword(name):
        problem = "it is a word of Python"
    elif _is_taken(name):
        problem = "it is the name of another module"
    else:
        problem = "it must be lower-case letters, digits and '_', and begin with a letter"
    near = re.sub(r"[^a-z0-9_]", "_", name.lower()).strip("_0123456789") or "led_driver"
    near = f"{near}_driver" if _is_taken(near) else near
    raise ConfigurationError(f"package name {name!r}: {problem}; how about {near!r}?", code="invalid-name")


def _is_taken(name: str) -> bool:
    return keyword.iskeyword(name) or name in _TAKEN or name in sys.stdlib_module_names


def default_driver(project: str) -> str:
    """The driver's name where nobody gives one: in a domain that is everybody's, to be replaced."""
    return f"{project}.example.com"


def default_package(project: str) -> str:
    """The package's name where nobody gives one."""
    package = project.replace("-", "_")
    try:
        return check_package(package)
    except ConfigurationError:
        return f"{package}_driver"
