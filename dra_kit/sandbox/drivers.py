"""The driver of a sandbox, once for each node, with the settings it has there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.project import project_of

_TABLE: Final = ("sandbox", "settings")
_SETTINGS: Final = ".".join(("tool", "dra-kit", *_TABLE))


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
    """The manifest of DeviceClasses of the project that a TARGET names: its ``deviceclasses.yaml``, if it has one.

    Raises:
        ConfigurationError: its ``pyproject.toml`` cannot be read.
    """
    project = project_of(target)
    return project.classes if project is not None else ()


def project_settings(target: str, driver: Driver[Any, Any]) -> dict[str, object]:
    """The values that the project which a TARGET names gives to its driver's settings in a sandbox.

    They stand in the table ``[tool.dra-kit.sandbox.settings]`` of its ``pyproject.toml``; ``{project}`` stands for the
    folder.

    Raises:
        ConfigurationError: the driver has no such setting, or the ``pyproject.toml`` cannot be read.
    """
    project = project_of(target)
    if project is None:
        return {}
    table: Any = project.table
    for key in _TABLE:
        table = table.get(key, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise ConfigurationError(f"{project.file}: [{_SETTINGS}] is no table; write name = value below it")
    known = driver.settings.model_fields if driver.settings else {}
    for name in table:
        if name not in known:
            raise ConfigurationError(
                f"{project.file}: [{_SETTINGS}] names {name}, which is no setting of driver {driver.name}; its "
                f"settings: {', '.join(known) or 'none'}"
            )
    return {name: _placed(value, {"{project}": str(project.folder.resolve())}) for name, value in table.items()}


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
