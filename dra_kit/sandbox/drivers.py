"""The driver of a sandbox, once for each node, with the settings it has there."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError

_CLASSES: Final = "deviceclasses.yaml"
_PROJECT: Final = "pyproject.toml"
_TABLE: Final = ("tool", "dra-kit", "sandbox", "settings")


@dataclass(frozen=True)
class SandboxDriver:
    """A driver to run.

    Attributes:
        drivers: one for each node.
        settings: makes the author's settings of values by name; None where the driver has none.
        classes: manifests of DeviceClasses that belong to it, applied first.
        values: for ``settings``. In texts ``{node}`` stands for the node's name, and ``{directory}`` for a directory
            of the node that goes with the sandbox.
    """

    drivers: tuple[Driver[Any, Any], ...]
    settings: Callable[[Mapping[str, object]], BaseModel | None] = field(default=lambda _: None)
    classes: tuple[Path, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The driver's name."""
        return self.drivers[0].name

    def settings_on(self, node: str, directory: Path) -> BaseModel | None:
        """The author's settings on a node.

        Raises:
            ConfigurationError: a value is wrong.
        """
        return self.settings(_placed(self.values, {"{node}": node, "{directory}": str(directory)}))


def device_classes(target: str) -> tuple[Path, ...]:
    """The manifest of DeviceClasses in a project folder: its ``deviceclasses.yaml``; none of any other TARGET."""
    found = Path(target) / _CLASSES
    return (found,) if found.is_file() else ()


def project_settings(target: str, driver: Driver[Any, Any]) -> dict[str, object]:
    """The values that a project folder gives to its driver's settings in a sandbox; none of any other TARGET.

    They stand in the table ``[tool.dra-kit.sandbox.settings]`` of its ``pyproject.toml``; ``{project}`` stands for the
    folder.

    Raises:
        ConfigurationError: the driver has no such setting.
    """
    project = Path(target) / _PROJECT
    if not project.is_file():
        return {}
    table: Any = tomllib.loads(project.read_text(encoding="utf-8"))
    for key in _TABLE:
        table = table.get(key, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise ConfigurationError(f"{project}: [{'.'.join(_TABLE)}] is no table; write name = value below it")
    known = driver.settings.model_fields if driver.settings else {}
    for name in table:
        if name not in known:
            raise ConfigurationError(
                f"{project}: [{'.'.join(_TABLE)}] names {name}, which is no setting of driver {driver.name}; its "
                f"settings: {', '.join(known) or 'none'}"
            )
    return {name: _placed(value, {"{project}": str(project.parent.resolve())}) for name, value in table.items()}


def _placed(value: Any, places: Mapping[str, str]) -> Any:
    """A value with what its placeholders stand for."""
    match value:
        case str():
            for name, text in places.items():
                value = value.replace(name, text)
            return value
        case list():
            return [_placed(item, places) for item in value]
        case Mapping():
            return {name: _placed(item, places) for name, item in value.items()}
    return value


def redirected(settings: BaseModel | None, names: Iterable[str], directory: Path) -> BaseModel | None:
    """The settings, with the files that some of them name copied into a directory, where they may be changed.

    Raises:
        ConfigurationError: there is no such setting, or it names no file.
    """
    names = list(names)
    if not names:
        return settings
    copies: dict[str, Path] = {}
    for name in names:
        path = getattr(settings, name, None)
        if not isinstance(path, Path) or not path.is_file():
            known = ", ".join(type(settings).model_fields) if settings else "none"
            raise ConfigurationError(
                f"a story edits the file of the driver's setting {name!r}, which names no file; settings: {known}"
            )
        directory.mkdir(parents=True, exist_ok=True)
        copies[name] = Path(shutil.copy(path, directory / path.name))
    return settings.model_copy(update=copies) if settings else None
