"""Settings of drivers in the sandbox: of nodes, by driver, and files that stories change."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel

from dra_kit.errors import ConfigurationError
from dra_kit.node.settings import NodeSettings
from dra_kit.sandbox.containers.processes import MARK_VARIABLE
from dra_kit.text import did_you_mean

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver


def copy_edited_files(settings: BaseModel | None, names: Iterable[str], directory: Path) -> BaseModel | None:
    """Copy files and folders that settings name, so that they may be changed; return settings that name the copies.

    A folder in the node's own directory (``{directory}``, ``{copy:PATH}``) is used itself, and created if necessary.

    Raises:
        ConfigurationError: the setting does not exist, or does not name a file or a folder of the project.
    """
    copies: dict[str, Path] = {}
    for name in names:
        path = _value(settings, name, "whose file can be replaced")
        if isinstance(path, Path) and directory.parents[1] in path.parents and not path.is_file():
            path.mkdir(parents=True, exist_ok=True)
            copies[name] = path
            continue
        if isinstance(path, Path) and path.is_dir():
            copies[name] = _copy_folder(name, path, directory / name)
            continue
        path = _file_of(settings, name)
        directory.mkdir(parents=True, exist_ok=True)
        copies[name] = Path(shutil.copy(path, directory / path.name))
    return settings.model_copy(update=copies) if settings else None


def _copy_folder(name: str, path: Path, copy: Path) -> Path:
    if Path.cwd().resolve() not in path.resolve().parents:  # such as /sys
        raise ConfigurationError(
            f"the driver's setting {name!r} names {path}, which is not a folder below {Path.cwd()}; name the folder of "
            "the simulated hardware in [tool.dra-kit.sandbox.settings]"
        )
    return Path(shutil.copytree(path, copy, symlinks=True))


def _file_of(settings: BaseModel | None, name: str) -> Path:
    """Return the file that a setting names.

    Raises:
        ConfigurationError: the setting does not exist or does not name a file.
    """
    path = _value(settings, name, "whose file can be replaced")
    if not isinstance(path, Path) or not path.is_file():
        raise ConfigurationError(
            f"the driver's setting {name!r} is {str(path)!r}, which is not a file that can be replaced; name a setting "
            "of type Path whose file exists"
        )
    return path


def _value(settings: BaseModel | None, name: str, purpose: str) -> object:
    known = type(settings).model_fields if settings else {}
    if name not in known:
        raise ConfigurationError(
            f"the driver has no setting {name!r} {purpose}; its settings: {', '.join(known) or 'none'}"
        )
    return getattr(settings, name)


def read_setting_files(authors: Sequence[BaseModel | None], place: str) -> list[str]:
    """Return the texts of the files at a place, from all nodes, given the author's settings on each.

    ``<setting>`` names the file, ``<setting>/<glob>`` is below the folder that it names.

    Raises:
        ConfigurationError: the setting does not exist or does not name a path.
    """
    setting, _, pattern = place.partition("/")
    paths: list[Path] = []
    for author in authors:
        root = _value(author, setting, "that names a file or a folder")
        if not isinstance(root, Path):
            raise ConfigurationError(
                f"the driver's setting {setting!r} is {root!r}, which is not a path; name a setting of type Path, "
                "and give it a value ([tool.dra-kit.sandbox.settings], or the driver's flag)"
            )
        paths += sorted(root.glob(pattern)) if pattern else [root]
    return [text for path in paths if (text := _text(path)) is not None]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a folder, or gone at this moment
        return None


async def replace_setting_files(
    authors: Sequence[BaseModel | None], edited: Collection[str], setting: str, text: str
) -> str:
    """Replace the file of a setting on every node, as editors do: a new file under the old name.

    Return the text that the first node's file had.

    Raises:
        ConfigurationError: the setting names no file, or none that is the sandbox's copy.
    """
    paths = [_file_of(author, setting) for author in authors]
    if setting not in edited:
        raise ConfigurationError(
            f"the driver's setting {setting!r} names {paths[0]} itself, which would be overwritten; add {setting} "
            "to pytest's setting dra_editable, or to editable= of sandbox(…), so that the driver gets a copy"
        )
    formers = [await asyncio.to_thread(_replace, path, text) for path in paths]
    return formers[0]


def _replace(path: Path, text: str) -> str:
    former = path.read_text(encoding="utf-8")
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    return former


BOOT_ID: Final = NodeSettings("").boot_id
"""That of the machine."""
_ORPHAN_AFTER: Final = 600.0
_EFFECTS_INTERVAL: Final = 30.0  # seconds, as on a node
_LEFTOVERS_INTERVAL: Final = 10.0  # seldom: nothing but a sandbox's own stories kills a driver here
_DRAIN_SECONDS: Final = 1.0  # the state of a sandbox that stops is not needed later


def node_settings(
    node: str,
    directory: Path,
    kubeconfig: Path,
    author: BaseModel | None = None,
    *,
    mark: str,
    time_scale: float,
    pod_uid: str | None = None,
    boot_id: Path = BOOT_ID,
) -> NodeSettings:
    """Return the settings of the node role.

    ``pod_uid`` distinguishes two processes of the driver on one node; None if there is never a second one. The content
    of the file ``boot_id`` identifies a boot of the node.
    """
    return NodeSettings(
        node_name=node,
        kubeconfig=kubeconfig,
        kubelet_dir=directory,
        cdi_dir=cdi_directory(directory),
        nri_socket=nri_socket(directory),
        pod_uid=pod_uid,
        boot_id=boot_id,
        drain=_DRAIN_SECONDS,
        settle=0.0,  # users who restart drivers here should see the next one at once
        orphan_after=_ORPHAN_AFTER / time_scale,
        leftovers_interval=_LEFTOVERS_INTERVAL / time_scale,
        effects_interval=_EFFECTS_INTERVAL / time_scale,
        child_environment={MARK_VARIABLE: mark},
        simulated_hardware=True,
        author=author,
    )


def cdi_directory(directory: Path) -> Path:
    """Return where the CDI files of the node with this directory are."""
    return directory / "cdi"


def nri_socket(directory: Path) -> Path:
    """Return where NRI plugins of the node with this directory connect."""
    return directory / "nri.sock"


T = TypeVar("T")


def settings_by_driver(drivers: Sequence[Driver[Any, Any]], given: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Return values given by ``NAME`` or ``DRIVER.NAME`` for each driver, by the name of the setting.

    Raises:
        ConfigurationError: no driver has such a setting, or several have it and none is named.
    """
    found: dict[str, dict[str, T]] = {driver.name: {} for driver in drivers}
    for text, value in given.items():
        driver, name = _owner(drivers, text)
        found[driver.name][name] = value
    return found


def settings_of(driver: Driver[Any, Any]) -> list[str]:
    """Return the names of a driver's settings."""
    return list(driver.settings.model_fields) if driver.settings else []


def _owner(drivers: Sequence[Driver[Any, Any]], text: str) -> tuple[Driver[Any, Any], str]:
    for driver in sorted(drivers, key=lambda item: -len(item.name)):
        name = text.removeprefix(f"{driver.name}.")
        if name != text or len(drivers) == 1:
            known = settings_of(driver)
            if name not in known:
                raise ConfigurationError(
                    f"driver {driver.name} has no setting {name!r}{did_you_mean(name, known) or ';'} its settings: "
                    f"{', '.join(known) or 'none'}"
                )
            return driver, name
    having = [driver for driver in drivers if text in settings_of(driver)]
    if len(having) == 1:
        return having[0], text
    if having:
        names = [driver.name for driver in having]
        raise ConfigurationError(
            f"setting {text!r} is one of the drivers {' and '.join(names)}; write "
            f"{' or '.join(f'{name}.{text}' for name in names)}"
        )
    known = [name for driver in drivers for name in settings_of(driver)]
    theirs = "; ".join(f"{driver.name}: {', '.join(settings_of(driver)) or 'none'}" for driver in drivers)
    raise ConfigurationError(
        f"no driver has a setting {text!r}{did_you_mean(text, known) or ';'} their settings: {theirs}"
    )
