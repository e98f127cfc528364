"""The project of a driver: what ``[tool.dra-kit]`` of its pyproject.toml says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_kit.author.target import DEFAULT_ATTRIBUTE, GLOB_SUFFIXES
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.files import MANIFESTS, read_file

_FILE: Final = "pyproject.toml"
_CLASSES: Final = "deviceclasses.yaml"
_SETTINGS: Final = "sandbox"


class DriverProject(Struct, frozen=True):
    """A folder with a driver."""

    folder: Path
    table: Mapping[str, Any]

    @property
    def file(self) -> Path:
        """Its ``pyproject.toml``, which may not exist."""
        return self.folder / _FILE

    @property
    def driver(self) -> tuple[str, str]:
        """Module and attribute of its driver; the module is empty where none is named."""
        named = self.table.get("driver")
        return _module_and_attribute(named) if isinstance(named, str) else ("", "")

    @property
    def classes(self) -> tuple[Path, ...]:
        """Its manifest of DeviceClasses, if it has one."""
        found = self.folder / _CLASSES
        return (found,) if found.is_file() else ()

    def has_more_than_a_driver(self) -> bool:
        """Return whether a sandbox uses more of it than the driver."""
        return bool(self.classes) or _SETTINGS in self.table


def project_of(target: str) -> DriverProject | None:
    """Return the project that a TARGET names: its folder, the file of its driver, or its driver as ``module:attr``.

    Raises:
        ConfigurationError: its ``pyproject.toml`` cannot be read.
    """
    if Path(target).is_dir():
        return _project(Path(target))
    near = _near(target)
    return near if near is not None and _names(near, target) else None


def place_of(target: str) -> Path | None:
    """Return where the files of a TARGET are: a folder, or a file of globs; None for a module of no project.

    Raises:
        ConfigurationError: the project's ``pyproject.toml`` cannot be read.
    """
    if target.endswith(GLOB_SUFFIXES):
        return Path(target).resolve()
    project = project_of(target)
    if project is not None:
        return project.folder.resolve()
    file = Path(target.rpartition(".py")[0] + ".py")
    return file.parent.resolve() if file.is_file() else None


def enclosing_project(target: str) -> DriverProject | None:
    """Return the project whose folder contains a TARGET that is not the project's driver, else None.

    Raises:
        ConfigurationError: the ``pyproject.toml`` of the project cannot be read.
    """
    near = None if Path(target).is_dir() else _near(target)
    return near if near is not None and near.driver[0] and not _names(near, target) else None


def _near(target: str) -> DriverProject | None:
    """Return the project around a file, or the one of the working directory for a module; a file of globs has none."""
    if target.endswith(GLOB_SUFFIXES):
        return None
    file = _file(target)
    folders = [Path()] if file is None else file.parents
    found = next((folder for folder in folders if (folder / _FILE).is_file()), None)
    return _project(found) if found is not None else None


def _project(folder: Path) -> DriverProject:
    file = folder / _FILE
    if not file.exists():
        return DriverProject(folder, {})
    try:
        table: Any = tomllib.loads(read_file(file, MANIFESTS).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from None
    for key in ("tool", "dra-kit"):
        table = table.get(key) if isinstance(table, dict) else None
    return DriverProject(folder, table if isinstance(table, dict) else {})


def _names(project: DriverProject, target: str) -> bool:
    module, attribute = project.driver
    file = _file(target)
    if file is None:
        return (module, attribute) == _module_and_attribute(target)
    wanted = target.rpartition(".py")[2].removeprefix(":") or DEFAULT_ATTRIBUTE
    return attribute == wanted and file in _files(project.folder, module)


def _files(folder: Path, module: str) -> Iterator[Path]:
    for place in (folder / "src", folder):
        path = place.joinpath(*module.split(".")).resolve()
        yield path.with_name(f"{path.name}.py")
        yield path / "__init__.py"


def _file(target: str) -> Path | None:
    """Return the file that a TARGET names; None if it names a module."""
    path, dot, attribute = target.rpartition(".py")
    if not dot or (attribute and not attribute.startswith(":")):
        return None
    return Path(path + dot).resolve()


def _module_and_attribute(text: str) -> tuple[str, str]:
    module, _, attribute = text.partition(":")
    return module, attribute or DEFAULT_ATTRIBUTE
