"""A driver to run in the sandbox: one for each node, its classes and its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.author.target import load_driver
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.drivers.project import project_of

_TABLE: Final = ("sandbox", "settings")
_SETTINGS: Final = ".".join(("tool", "dra-kit", *_TABLE))


class SandboxDriver(Struct, frozen=True):
    """A driver to run, or none.

    Attributes:
        drivers: one for each node; none where the drivers are started by others.
        settings: makes the author's settings of values by name; None where the driver has none.
        classes: manifests of DeviceClasses that belong to it, applied first.
        spare: one that is never run: copies of it take the place of those that are restarted; None where nobody does.
        target: the TARGET that they were loaded from; empty for none.
        folder: where the TARGET begins.
        successor: loads another release of it, from a TARGET or a driver; None where there is none.
        values: for ``settings``. In texts ``{node}`` stands for the node's name, and ``{directory}`` for a directory
            of the node that goes with the sandbox.
    """

    drivers: tuple[Driver[Any, Any], ...]
    settings: Callable[[Mapping[str, object]], BaseModel | None] = field(default=lambda _: None)
    classes: tuple[Path, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    spare: Driver[Any, Any] | None = None
    target: str = ""
    folder: Path = field(default_factory=Path.cwd)
    successor: Callable[[str | Driver[Any, Any]], SandboxDriver] | None = None

    @property
    def name(self) -> str:
        """The driver's name; empty where there is none."""
        return self.drivers[0].name if self.drivers else ""

    def release(self, author: BaseModel | None, driver: Driver[Any, Any] | None = None) -> DriverRelease:
        """Return the release for one node.

        Args:
            author: the author's settings there.
            driver: one that never ran; None for a copy of the spare one.

        Raises:
            ConfigurationError: there is no spare one, or it cannot be copied.
        """
        if driver is None:
            if self.spare is None:
                raise ConfigurationError("the driver here cannot be restarted; use dra_kit.testing.sandbox(…)")
            driver = _copied(self.spare)
        return DriverRelease(driver, author, self.target, self.folder)

    def unused(self, used: Iterable[SandboxDriver]) -> SandboxDriver:
        """Return the same with a driver that never ran: a module that is imported already gives the driver that runs.

        Args:
            used: releases that ran or run here.
        """
        for release in used:
            if any(driver in release.drivers for driver in self.drivers):
                spare = release.spare
                return replace(self, drivers=(spare,) * len(self.drivers), spare=spare) if spare else self
        return self

    def settings_on(self, node: str, directory: Path) -> BaseModel | None:
        """Return the author's settings on a node.

        Raises:
            ConfigurationError: a value is wrong.
        """
        return self.settings(_placed(self.values, {"{node}": node, "{directory}": str(directory)}))


def successor_loader(
    settings: Callable[[Driver[Any, Any], Mapping[str, object]], BaseModel | None],
    nodes: int,
    values: Mapping[str, object],
) -> Callable[[str | Driver[Any, Any]], SandboxDriver]:
    """Load other releases of a driver, whose TARGETs begin in the present working directory.

    Args:
        settings: makes the author's settings of a driver of values by name.
        nodes: how many there are.
        values: for ``settings``; a release gets those that it knows.
    """
    folder = Path.cwd()

    def successor(target: str | Driver[Any, Any]) -> SandboxDriver:
        if isinstance(target, Driver):
            driver, name = target, ""
        else:
            with chdir(folder):
                driver, name = load_driver(target), target
        known = driver.settings.model_fields if driver.settings else {}
        return SandboxDriver(
            (driver,) * nodes,
            partial(settings, driver),
            values={key: value for key, value in values.items() if key in known},
            spare=driver,
            target=name,
            folder=folder,
            successor=successor,
        )

    return successor


def _copied(driver: Driver[Any, Any]) -> Driver[Any, Any]:
    try:
        return driver.for_another_node()
    except Exception as error:  # noqa: BLE001 - an author's object may refuse in any way
        raise ConfigurationError(
            f"driver {driver.name} cannot be copied to be started anew ({type(error).__name__}: {error}); make what "
            "cannot be copied in startup, or give a driver that never ran"
        ) from None


def require_distinct_drivers(drivers: Iterable[tuple[str, str]]) -> None:
    """Refuse two drivers of one name.

    Args:
        drivers: TARGET and name of each; a TARGET may be empty.

    Raises:
        ConfigurationError: two have one name.
    """
    known: dict[str, str] = {}
    for target, name in drivers:
        if name in known:
            raise ConfigurationError(
                f"{known[name] or 'one'} and {target or 'another'} are both driver {name}; leave one out, or give it "
                "another name"
            )
        known[name] = target


def device_classes(target: str) -> tuple[Path, ...]:
    """Return the manifest of DeviceClasses of the project of a TARGET: its ``deviceclasses.yaml``, if it has one.

    Raises:
        ConfigurationError: its ``pyproject.toml`` cannot be read.
    """
    project = project_of(target)
    return project.classes if project is not None else ()


def project_settings(target: str, driver: Driver[Any, Any]) -> dict[str, object]:
    """Return the values that the project which a TARGET names gives to its driver's settings in a sandbox.

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
    """Return a value with its placeholders replaced."""
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


class DriverRelease(Struct, frozen=True):
    """A driver for one node.

    Attributes:
        driver: one that never ran.
        author: the author's settings there.
        target: the TARGET that it was loaded from; empty where it was none.
        folder: where the TARGET begins.
    """

    driver: Driver[Any, Any]
    author: BaseModel | None
    target: str = ""
    folder: Path = Path()
