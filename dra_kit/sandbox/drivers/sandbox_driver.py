"""A driver to run in the sandbox: one for each node, its classes and its settings."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
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
_COPY: Final = re.compile(r"\{copy:([^{}]+)\}")


class SandboxDriver(Struct, frozen=True):
    """A driver to run, or none.

    Attributes:
        drivers: one for each node; empty if the drivers are started outside the sandbox.
        settings: builds the author's settings from values by name; None if the driver has no settings.
        classes: manifests of the driver's DeviceClasses, applied first.
        spare: a driver that is never run; copies of it replace drivers that are restarted. None if none is restarted.
        target: the TARGET that the drivers were loaded from; empty for none.
        folder: the folder that relative paths in the TARGET start from.
        successor: loads another release of the driver, from a TARGET or a driver; None if there is none.
        values: values for ``settings``. In texts, ``{node}`` is replaced by the node's name, ``{directory}`` by a
            directory of the node that is removed with the sandbox, and ``{copy:PATH}`` by a copy in it of a file or
            folder.
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
        """Return the release for one node, of a driver that never ran; None for a copy of the spare driver.

        Raises:
            ConfigurationError: the spare driver is missing or cannot be copied.
        """
        if driver is None:
            if self.spare is None:
                raise ConfigurationError("the driver here cannot be restarted; use dra_kit.testing.sandbox(…)")
            driver = _copied(self.spare)
        return DriverRelease(driver, author, self.target, self.folder)

    def unused(self, used: Iterable[SandboxDriver]) -> SandboxDriver:
        """Return it with a driver that never ran: a module that is imported already has the driver that runs."""
        for release in used:
            if any(driver in release.drivers for driver in self.drivers):
                spare = release.spare
                return replace(self, drivers=(spare,) * len(self.drivers), spare=spare) if spare else self
        return self

    def settings_on(self, node: str, directory: Path) -> BaseModel | None:
        """Return the author's settings on a node. Copies are made once for all releases of the driver.

        Raises:
            ConfigurationError: a value is wrong.
        """
        places, copies = {"{node}": node, "{directory}": str(directory)}, directory / "copies" / self.name
        return self.settings(
            {
                name: _changed_texts(_placed(value, places), partial(_with_copies, name, copies))
                for name, value in self.values.items()
            }
        )


def successor_loader(
    settings: Callable[[Driver[Any, Any], Mapping[str, object]], BaseModel | None],
    nodes: int,
    values: Mapping[str, object],
) -> Callable[[str | Driver[Any, Any]], SandboxDriver]:
    """Load other releases of a driver, whose TARGETs begin in the present working directory."""
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
            f"driver {driver.name} cannot be copied for another start ({type(error).__name__}: {error}); create what "
            "cannot be copied in startup, or pass a driver that never ran"
        ) from None


def require_distinct_drivers(drivers: Iterable[tuple[str, str]]) -> None:
    """Reject two drivers with the same name.

    Raises:
        ConfigurationError: two drivers have the same name.
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

    They are read from the table ``[tool.dra-kit.sandbox.settings]`` of its ``pyproject.toml``. ``{project}`` is
    replaced by the project's folder.

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
        raise ConfigurationError(f"{project.file}: [{_SETTINGS}] is not a table; write name = value below it")
    known = driver.settings.model_fields if driver.settings else {}
    for name in table:
        if name not in known:
            raise ConfigurationError(
                f"{project.file}: [{_SETTINGS}] names {name}, which is not a setting of driver {driver.name}; its "
                f"settings: {', '.join(known) or 'none'}"
            )
    return {name: _placed(value, {"{project}": str(project.folder.resolve())}) for name, value in table.items()}


def _placed(value: Any, places: Mapping[str, str]) -> Any:
    """Return a value with its placeholders replaced."""

    def change(text: str) -> str:
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    return _changed_texts(value, change)


def _changed_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of which each text is changed."""
    match value:
        case str():
            return change(value)
        case list():
            return [_changed_texts(item, change) for item in value]
        case Mapping():
            return {name: _changed_texts(item, change) for name, item in value.items()}
    return value


def _with_copies(name: str, directory: Path, text: str) -> str:
    """Return a setting's text in which each ``{copy:PATH}`` is a copy in a directory; there is one of each path."""

    def copied(found: re.Match[str]) -> str:
        path = Path(found[1]).resolve()
        copy = directory / hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:12] / path.name
        if not path.exists():
            raise ConfigurationError(
                f"setting {name} names a copy of {path}, which does not exist; name a file or folder, such as "
                "{copy:{project}/sysfs}"
            )
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                if path.is_dir():
                    shutil.copytree(path, copy, symlinks=True)
                else:
                    shutil.copy(path, copy)
            except (OSError, shutil.Error) as error:
                shutil.rmtree(copy, ignore_errors=True)  # a later start copies all of it
                raise ConfigurationError(
                    f"setting {name} names a copy of {path}, which cannot be copied: {_why_not_copied(error)}; copy "
                    "simulated hardware only"
                ) from None
        return str(copy)

    return _COPY.sub(copied, text)


def _why_not_copied(error: OSError) -> str:
    """Return the first problem of a copy; shutil collects those of all files of a folder."""
    problems = error.args[0] if isinstance(error, shutil.Error) and error.args else None
    return str(problems[0][-1] if isinstance(problems, list) and problems else error)


class DriverRelease(Struct, frozen=True):
    """A driver for one node."""

    driver: Driver[Any, Any]
    author: BaseModel | None
    target: str = ""
    folder: Path = Path()
