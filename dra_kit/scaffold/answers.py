"""The answers a project is made with, and the file that keeps them in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import asdict

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import read_values, source_file
from dra_kit.scaffold.names import check_driver, check_package, check_project

Kind: TypeAlias = Literal["simple", "partitionable", "shared", "network"]
"""What the devices are like: one claim each; divided by counters; shared by capacity; network interfaces."""

FILE: Final = ".dra-kit.yml"
"""In the project's folder; also what copier calls its answers file."""

_VERSION: Final = "_dra_kit"


class Answers(Struct, frozen=True):
    """The answers that ``dra-kit new`` got.

    Attributes:
        project: name of the project, its folder and its helm release.
        driver: the driver's name.
        package: the Python package.
        kind: what the devices are like.
        webhook: bad config is refused when it is applied.

    Raises:
        ConfigurationError: a name breaks a rule.
    """

    project: str
    driver: str
    package: str
    kind: Kind = "simple"
    webhook: bool = True

    def __post_init__(self) -> None:
        check_project(self.project)
        check_driver(self.driver)
        check_package(self.package)
        if self.kind not in get_args(Kind):
            raise ConfigurationError(f"kind {self.kind!r} is none of {', '.join(get_args(Kind))}", code="invalid-name")

    def as_dict(self) -> dict[str, Any]:
        """Return the answers by the names of copier.yml."""
        return asdict(self)


def read_answers(folder: Path) -> tuple[Answers, str]:
    """Return the answers that a project was made with, and the version of dra-kit that made it.

    Raises:
        ConfigurationError: it has none, or they are not understood.
    """
    path = folder / FILE
    if path.is_symlink():
        raise ConfigurationError(f"{path} is a link: links are not followed; restore the file that `dra-kit new` wrote")
    if not path.is_file():
        raise ConfigurationError(f"{path} does not exist: {folder} was not made by `dra-kit new`; name its folder")
    try:
        [found] = read_values(source_file(path))
        given = {key: value for key, value in found.items() if not key.startswith("_")}
        return Answers(**given), str(found.get(_VERSION, ""))
    except (AttributeError, ConfigurationError, TypeError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise ConfigurationError(f"{path} has no answers of `dra-kit new`: {problem}; restore it") from None


def answers_file(answers: Answers, version: str) -> dict[str, Any]:
    """Return the content of the file of answers."""
    return {_VERSION: version, **answers.as_dict()}
