"""Imports of drivers that share a process: two of them may have modules of the same name."""

from __future__ import annotations

import builtins
import hashlib
import importlib.util
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import FileFinder, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from typing_extensions import override

_UNUSED: Final = frozenset({"conftest", "setup", "tests"})
"""Modules of a project that its driver does not import."""
_FOREIGN: Final = (
    Path(__file__).resolve().parents[1],
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")),
)
"""Folders of modules that belong to no driver: dra-kit's, the standard library's, installed ones."""


class DriverModules:
    """The modules in the folders of one driver.

    Usually they have the names that they are imported by. If another driver of the process has modules of the same
    names, they are below a package of this driver: ``driver`` is ``nic-driver-5f3a90c1.driver``. Import statements in
    them find each other by the short names, at any time. ``importlib.import_module`` does not.

    Args:
        places: the folders, in the order in which they are searched.
        folder_of: the folder of each module in them, by its name.
        package: the driver's package; empty for none.
    """

    def __init__(self, places: tuple[Path, ...], folder_of: Mapping[str, Path], package: str) -> None:
        self.places: tuple[Path, ...] = places
        self.folder_of: Mapping[str, Path] = folder_of
        self.package: str = package
        self.entries: set[str] = set()
        """Full names of the modules that TARGETs name."""
        self._builtins = {**vars(builtins), "__import__": self._import}
        if package:
            root = ModuleType(package)
            root.__path__ = list(map(str, places))
            sys.modules[package] = root
            sys.meta_path.insert(0, self)

    def full_name(self, name: str) -> str:
        """Return the name in ``sys.modules`` of a module that the driver imports as ``name``."""
        return f"{self.package}.{name}" if self._is_own(name.partition(".")[0]) else name

    def is_loaded(self) -> bool:
        """Return whether a module that a TARGET named is still in ``sys.modules``."""
        origins = {_origin(sys.modules.get(name)) for name in self.entries} - {None}
        return any(origin.is_relative_to(place) for origin in origins if origin for place in self.places)

    def spec_of(self, file: Path, name: str) -> ModuleSpec | None:
        """Return how to load the file of a driver as the module with a full name; None if it is not a Python file."""
        spec = importlib.util.spec_from_file_location(name, file)
        return self._with_imports(spec) if self.package else spec

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the driver's package; the import system calls it."""
        if not fullname.startswith(f"{self.package}."):
            return None
        return self._with_imports(PathFinder.find_spec(fullname, path, target))

    def _with_imports(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.name, str(spec.loader.path), self._builtins)
        return spec

    def _is_own(self, top: str) -> bool:
        if not self.package:
            return False
        if f"{self.package}.{top}" in sys.modules:
            return True
        return _found(top, self.places) is not None and not _is_foreign(sys.modules.get(top))

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - as __import__ has it
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Do what ``__import__`` does, for import statements in these modules."""
        full = name if level else self.full_name(name)
        if full == (globals or {}).get("__name__"):
            full = name  # a module does not import itself: it means another driver's of the same name
        found = builtins.__import__(full, globals, locals, fromlist or (), level)
        return found if full == name or fromlist else sys.modules[f"{self.package}.{name.partition('.')[0]}"]


class _Loader(SourceFileLoader):
    """Loads a module with builtins of its own: an import statement calls the ``__import__`` in them."""

    def __init__(self, name: str, path: str, own_builtins: Mapping[str, object]) -> None:
        super().__init__(name, path)
        self._builtins = own_builtins

    @override
    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._builtins
        super().exec_module(module)


_known: Final[dict[tuple[Path, ...], DriverModules]] = {}


def modules_of(places: Iterable[Path], name: str) -> DriverModules:
    """Return the modules of the driver in some folders; they are the same each time.

    Args:
        places: the folders, resolved, in the order in which they are searched.
        name: the module with the driver, as it is imported.
    """
    folders = tuple(places)
    known = _known.get(folders)
    if known is not None and known.is_loaded():
        return known
    top = name.partition(".")[0]
    here = {
        item.name: Path(item.module_finder.path)
        for item in pkgutil.iter_modules(map(str, folders))
        if isinstance(item.module_finder, FileFinder) and item.name not in _UNUSED
    }
    package = ""
    if top in here and _needs_package(top, here, folders):
        readable = re.sub(r"\W", "-", folders[-1].name)
        package = f"{readable}-{hashlib.sha256(str(folders).encode()).hexdigest()[:8]}"
    _known[folders] = DriverModules(folders, here, package)
    return _known[folders]


def _needs_package(top: str, here: Mapping[str, Path], folders: tuple[Path, ...]) -> bool:
    loaded = sys.modules.get(top)
    if loaded is not None:
        return not _is_foreign(loaded) and _origin(loaded) != _origin(_found(top, folders))
    others = [known.folder_of for known in _known.values() if known.is_loaded()]
    return any(other.get(name, folder) != folder for other in others for name, folder in here.items())


def _found(name: str, places: tuple[Path, ...]) -> ModuleSpec | None:
    return PathFinder.find_spec(name.partition(".")[0], list(map(str, places)))


def _origin(module: ModuleType | ModuleSpec | None) -> Path | None:
    spec = getattr(module, "__spec__", None) if isinstance(module, ModuleType) else module
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def _is_foreign(module: ModuleType | None) -> bool:
    """Return whether a module is dra-kit's, of the standard library, or installed."""
    if module is None:
        return False
    origin = _origin(module)
    return origin is None or any(origin.is_relative_to(place) for place in _FOREIGN)
