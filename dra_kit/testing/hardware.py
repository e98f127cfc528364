"""A folder that stands for a node's hardware: the files that a driver reads and writes, such as those of sysfs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dra_kit.errors import ConfigurationError

__tracebackhide__ = True  # pytest shows the test's own line instead


class FakeHardware:
    """Folders with fake hardware, one for each node, that a setting of the driver names.

    Changes are made on all nodes and undone by :meth:`restore`. The driver sees them like those of real hardware, so
    wait for their effect with ``dra.wait_for``.

    Args:
        folders: the folder of each node, by the node's name.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)
        self._kept: list[tuple[Path, Path | None]] = []  # what was changed, and a copy of what was there
        self._copies = Path(tempfile.mkdtemp(prefix="dra-kit-hardware-"))

    @property
    def folder(self) -> Path:
        """The folder of the first node."""
        return next(iter(self._folders.values()))

    def read(self, path: str, *, node: str = "") -> str:
        """Return the text of a file, without surrounding white space; by default on the first node.

        Raises:
            FileNotFoundError: it does not exist.
        """
        return self._on(node or next(iter(self._folders)), path).read_text(encoding="utf-8").strip()

    def write(self, path: str, text: str, *, node: str = "") -> None:
        """Create or replace a file, and the folders above it; by default on all nodes.

        The new file appears at once with its whole text.
        """
        for name in [node] if node else self._folders:
            file = self._on(name, path)
            self._keep(next((place for place in reversed(file.parents) if not place.exists()), file))
            file.parent.mkdir(parents=True, exist_ok=True)
            new = file.with_name(f".{file.name}.new")
            new.write_text(text, encoding="utf-8")
            new.replace(file)

    def remove(self, path: str, *, node: str = "") -> None:
        """Remove a file, or a folder with all that is in it, as if the hardware were unplugged; by default everywhere.

        Raises:
            FileNotFoundError: it does not exist.
        """
        for name in [node] if node else self._folders:
            place = self._on(name, path)
            place.lstat()
            self._keep(place)
            _remove(place)

    def restore(self) -> None:
        """Undo all changes, the last one first."""
        for place, copy in reversed(self._kept):
            _remove(place)
            if copy is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(copy, place)
        self._kept.clear()
        shutil.rmtree(self._copies, ignore_errors=True)

    def _on(self, node: str, path: str) -> Path:
        if node not in self._folders:
            raise ConfigurationError(f"node {node} does not exist; the nodes are {', '.join(self._folders)}")
        place = self._folders[node] / path
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ConfigurationError(f"{path} is not a path in the folder of the hardware; write one without / and ..")
        return place

    def _keep(self, place: Path) -> None:
        copy = self._copies / str(len(self._kept))
        if place.is_dir() and not place.is_symlink():
            shutil.copytree(place, copy, symlinks=True)
        elif place.is_symlink() or place.exists():
            shutil.copy2(place, copy, follow_symlinks=False)
        self._kept.append((place, copy if copy.exists() or copy.is_symlink() else None))


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        with suppress(FileNotFoundError):
            place.unlink()
