"""The driver of a sandbox, once for each node, with the settings it has there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError

_CLASSES: Final = "deviceclasses.yaml"


@dataclass(frozen=True)
class SandboxDriver:
    """A driver to run.

    Attributes:
        drivers: one for each node.
        settings: makes the author's settings for a node, by its name; None where the driver has none.
        classes: manifests of DeviceClasses that belong to it, applied first.
    """

    drivers: tuple[Driver[Any, Any], ...]
    settings: Callable[[str], BaseModel | None] = field(default=lambda _: None)
    classes: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """The driver's name."""
        return self.drivers[0].name


def device_classes(target: str) -> tuple[Path, ...]:
    """The manifest of DeviceClasses in a project folder: its ``deviceclasses.yaml``; none of any other TARGET."""
    found = Path(target) / _CLASSES
    return (found,) if found.is_file() else ()


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
