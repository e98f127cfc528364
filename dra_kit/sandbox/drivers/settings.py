"""Files that settings of a sandbox's driver name: stories and tests look at them, and edit copies."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel

from dra_kit.errors import ConfigurationError


def redirected(settings: BaseModel | None, names: Iterable[str], directory: Path) -> BaseModel | None:
    """Return the settings, with the files that some of them name copied into a directory, where they may be changed.

    Raises:
        ConfigurationError: there is no such setting, or it names no file.
    """
    copies: dict[str, Path] = {}
    for name in names:
        path = _file_of(settings, name)
        directory.mkdir(parents=True, exist_ok=True)
        copies[name] = Path(shutil.copy(path, directory / path.name))
    return settings.model_copy(update=copies) if settings else None


def _file_of(settings: BaseModel | None, name: str) -> Path:
    """Return the file that a setting names.

    Raises:
        ConfigurationError: there is no such setting, or it names no file.
    """
    path = _value(settings, name, "whose file could be replaced")
    if not isinstance(path, Path) or not path.is_file():
        raise ConfigurationError(
            f"the driver's setting {name!r} is {str(path)!r}, which is no file that could be replaced; name a setting "
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


def read_files(authors: Sequence[BaseModel | None], place: str) -> list[str]:
    """Return the texts of all nodes' files at a place.

    Args:
        authors: the author's settings on each node.
        place: ``<setting>`` names the file, ``<setting>/<glob>`` is below the folder that it names.

    Raises:
        ConfigurationError: there is no such setting, or it names no path.
    """
    setting, _, pattern = place.partition("/")
    paths: list[Path] = []
    for author in authors:
        root = _value(author, setting, "that names a file or a folder")
        if not isinstance(root, Path):
            raise ConfigurationError(
                f"the driver's setting {setting!r} is {root!r}, which is no path; name one of type Path, and give it "
                "a value ([tool.dra-kit.sandbox.settings], or the driver's flag)"
            )
        paths += sorted(root.glob(pattern)) if pattern else [root]
    return [text for path in paths if (text := _text(path)) is not None]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a folder, or gone at this moment
        return None


async def replace_files(authors: Sequence[BaseModel | None], edited: Collection[str], setting: str, text: str) -> str:
    """Replace the file of a setting on every node, as editors do: a new file under the old name.

    Args:
        authors: the author's settings on each node.
        edited: settings whose files are copies.
        setting: name of the setting.
        text: the new content.

    Returns:
        The text that the first node's file had.

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
