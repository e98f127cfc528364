"""The names and answers from which a project is created."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import asdict

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import read_values, source_file
from dra_kit.kubernetes.resource.names import driver_name

_PROJECT: Final = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?").fullmatch
"""A valid helm release and package name, short enough for suffixes."""
_PACKAGE: Final = re.compile(r"[a-z][a-z0-9_]*").fullmatch
TAKEN_MODULES: Final = frozenset(
    """
    aiohappyeyeballs aiohttp aiosignal annotated_types ast_serialize attr attrs certifi cffi click cryptography dateutil
    dra_kit editables frozenlist google grpc hatchling hypothesis idna iniconfig iso8601 jinja2 jsonpatch jsonpatch_cli
    jsonpointer kopf kubernetes kubernetes_asyncio librt markdown_it markupsafe mdurl msgspec multidict mypy
    mypy_extensions mypyc packaging pathspec pip pkg_resources pluggy prometheus_client propcache py pycparser pydantic
    pydantic_core pygments pyroute2 pytest pytest_asyncio pythonjsonlogger re2 rich ruff setuptools six sortedcontainers
    tests tomlkit trove_classifiers trustme typing_extensions typing_inspection tzdata urllib3 uvloop yaml yarl
    """.split()  # noqa: SIM905 - a list would be a word on each line
)
"""Modules in a project's environment: a driver of the same name would hide them, or they would hide the driver."""
TAKEN_PROJECTS: Final = frozenset(
    {
        *(name.replace("_", "-") for name in TAKEN_MODULES),
        *("google-re2", "grpcio", "markdown-it-py", "protobuf", "python-dateutil", "python-json-logger", "pyyaml"),
        "types-pyyaml",
    }
)
"""Packages that a project requires: pip would mistake a project of the same name for them."""


def check_project_name(name: str) -> str:
    """Check the name of a project.

    Raises:
        ConfigurationError: it is invalid; the message suggests a valid name.
    """
    if _PROJECT(name) and name not in TAKEN_PROJECTS:
        return name
    near = re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", name.lower())).lstrip("-0123456789")[:40].strip("-")
    near = f"{near}-driver" if near in TAKEN_PROJECTS else near
    remedy = f"use {near!r}" if near and _PROJECT(near) else "use for example 'led-driver'"
    problem = "it is the name of a package that the project requires"
    if name not in TAKEN_PROJECTS:
        problem = (
            "it must consist of at most 40 lower-case letters, digits and '-', begin with a letter, and end with a "
            "letter or digit"
        )
    raise ConfigurationError(f"project name {name!r}: {problem}; {remedy}", code="invalid-name")


def check_driver_name(name: str) -> str:
    """Check the name of a driver.

    Raises:
        ConfigurationError: the name is not a DNS subdomain of at most 63 bytes, or lacks a domain.
    """
    problems = [error.body for error in driver_name(name, "name")]
    if not problems and name != name.lower():
        problems = ["it must be lower case"]
    if not problems and "." not in name:
        problems = ["it lacks a domain, so that another driver could have the same name"]
    if not problems:
        return name
    near = re.sub(r"[^a-z0-9.-]", "-", name.lower()).strip(".-") or "my-driver"
    near = near if "." in near else f"{near}.example.com"
    fits = not driver_name(near, "name")
    raise ConfigurationError(
        f"driver name {name!r}: {'; '.join(problems)}; "
        + (f"use {near!r}, with a domain that you own" if fits else "use for example 'led.example.com'"),
        code="invalid-name",
    )


def check_package_name(name: str) -> str:
    """Check the name of a Python package.

    Raises:
        ConfigurationError: the name is not an identifier, or is already in use.
    """
    if _PACKAGE(name) and not _is_taken(name):
        return name
    if keyword.iskeyword(name):
        problem = "it is a keyword of Python"
    elif _is_taken(name):
        problem = "it is the name of another module"
    else:
        problem = "it must consist of lower-case letters, digits and '_', and begin with a letter"
    near = re.sub(r"[^a-z0-9_]", "_", name.lower()).lstrip("_0123456789").rstrip("_") or "led_driver"
    near = f"{near}_driver" if _is_taken(near) else near
    raise ConfigurationError(f"package name {name!r}: {problem}; use {near!r}", code="invalid-name")


def _is_taken(name: str) -> bool:
    return keyword.iskeyword(name) or name in TAKEN_MODULES or name in sys.stdlib_module_names


def default_driver(project: str) -> str:
    """Return the default name of the driver, in a reserved domain that the author must replace."""
    return f"{project}.example.com"


def default_package(project: str) -> str:
    """Return the default name of the package."""
    package = project.replace("-", "_")
    try:
        return check_package_name(package)
    except ConfigurationError:
        return f"{package}_driver"


Kind: TypeAlias = Literal["simple", "partitionable", "modes", "shared", "network", "cpu"]
"""Kind of the devices: one claim each; divided by counters; in modes; shared by capacity; network interfaces; CPUs."""
FILE: Final = ".dra-kit.yml"
"""The answers file in the project's folder, for dra-kit and for copier."""
_VERSION: Final = "_dra_kit"


class Answers(Struct, frozen=True):
    """The answers to the questions of ``dra-kit new``, as in copier.yml; invalid ones raise a ConfigurationError.

    ``project`` is also the name of the folder and the helm release. With ``webhook``, invalid config is rejected when
    it is applied.
    """

    project: str
    driver: str
    package: str
    kind: Kind = "simple"
    webhook: bool = True

    def __post_init__(self) -> None:
        check_project_name(self.project)
        check_driver_name(self.driver)
        check_package_name(self.package)
        if self.kind not in get_args(Kind):
            raise ConfigurationError(
                f"kind {self.kind!r} is invalid; use one of {', '.join(get_args(Kind))}", code="invalid-name"
            )


def read_answers(folder: Path) -> tuple[Answers, str]:
    """Return the answers from which a project was created, and the version of dra-kit that created it.

    Raises:
        ConfigurationError: the project has no answers, or they are invalid.
    """
    path = folder / FILE
    if path.is_symlink():
        raise ConfigurationError(f"{path} is a link, which is not followed; restore the file that `dra-kit new` wrote")
    if not path.is_file():
        raise ConfigurationError(
            f"{path} does not exist: `dra-kit new` did not create {folder}; pass the folder of a project"
        )
    try:
        [found] = read_values(source_file(path))
        given = {key: value for key, value in found.items() if not key.startswith("_")}
        return Answers(**given), str(found.get(_VERSION, ""))
    except (AttributeError, ConfigurationError, TypeError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise ConfigurationError(f"{path} has no valid answers of `dra-kit new`: {problem}; restore it") from None


def answers_file(answers: Answers, version: str) -> dict[str, Any]:
    """Return the content of the file of answers."""
    return {_VERSION: version, **asdict(answers)}
