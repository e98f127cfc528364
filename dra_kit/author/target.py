"""Loads a driver by its TARGET: ``module:attr``, ``./file.py[:attr]``, a project folder, or a file of globs.

Drivers that share a process may have modules of the same name.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import FileFinder, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import TypeIs, override

from dra_kit.errors import ConfigurationError, TargetError
from dra_kit.text import did_you_mean

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver

DEFAULT_ATTRIBUTE = "driver"
_IMPORT = "does not import"
GLOB_SUFFIXES = (".yaml", ".yml")
"""File suffixes of a TARGET that is a file of globs of device nodes."""
_FORMS = "write module:attr, ./file.py, a project folder, or a file of globs (.yaml)"


def load_driver(target: str) -> Driver[Any, Any]:
    """Return the driver that a TARGET names; see :func:`load_drivers`."""
    return load_drivers(target, 1)[0]


def load_drivers(target: str, number: int) -> list[Driver[Any, Any]]:
    """Return the driver that a TARGET names, once for each of several nodes in one process.

    A function is called once per node. The first node gets the Driver itself and the others get copies, so that no
    node sees another's state.

    While the driver is loaded, the folder of the file or project comes first in the import path. Afterwards it comes
    last, so that an author's file never shadows an installed module.

    Args:
        target: ``module:attr``; ``./file.py`` or ``./file.py:attr``; or a folder whose ``pyproject.toml`` has
            ``[tool.dra-kit] driver = "module:attr"``. Without attr it is ``driver``. The attribute is a Driver, or
            a function without arguments that returns one. A path ending in .yaml or .yml is a file of globs.
        number: of drivers.

    Raises:
        TargetError: naming what cannot be found, or where the author's code failed.
        ConfigurationError: a file of globs is invalid.
    """
    if not target.strip():
        raise TargetError(f"TARGET {target!r} is empty; {_FORMS}")
    if target.endswith(GLOB_SUFFIXES):
        from dra_kit.author.no_code.driver import load_globs  # a driver in Python does not need it

        return [load_globs(Path(target)) for _ in range(number)]
    named, colon, attribute = target.rpartition(":")
    if not colon or "/" in attribute:
        named, attribute = target, ""
    path = Path(named)
    file: Path | None = None
    if named.endswith(".py") or ("/" in named and path.is_file()):
        file = path.resolve()
        places = [file.parent]
    elif _is_project(named, path):
        if attribute:
            raise TargetError(
                f"TARGET {target}: a project folder takes no :{attribute}; its pyproject.toml names the driver"
            )
        named, _, attribute = _named_by_project(target, path).partition(":")
        places = [place.resolve() for place in (path / "src", path) if place.is_dir()]
    elif "/" in named:
        raise TargetError(f"TARGET {target}: {path.resolve()} does not exist; give the path of the driver's file")
    else:
        places = [Path.cwd()]
    modules = modules_of(places, file.stem if file is not None else named)
    with _import_places(places):
        module = _import_module(target, named, modules) if file is None else _import_file(target, file, modules)
        modules.entries.add(module.__name__)
        drivers = _drivers(target, named, module, attribute, number=number)
    for driver in drivers:
        driver.handler_module.rename(modules.full_name)
    return drivers


def _is_project(named: str, path: Path) -> bool:
    """Return whether a path is a folder; a module name that is also a package in the working directory is a module."""
    if not named or not path.is_dir():
        return False
    return not named.isidentifier() or (path / "pyproject.toml").exists() or not (path / "__init__.py").exists()


def _named_by_project(target: str, folder: Path) -> str:
    project = folder / "pyproject.toml"
    try:
        table: Any = tomllib.loads(project.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TargetError(
            f'TARGET {target}: {project} does not exist; add it with [tool.dra-kit] driver = "module:attr"'
        ) from None
    except (OSError, ValueError) as error:
        raise TargetError(f"TARGET {target}: {project} cannot be read: {error}") from None
    for key in ("tool", "dra-kit", "driver"):
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, str):
        raise TargetError(f'TARGET {target}: {project} has no [tool.dra-kit] driver; add driver = "module:attr"')
    return table


def _import_module(target: str, name: str, modules: DriverModules) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise TargetError(f"TARGET {target}: {name!r} is not a module name; {_FORMS}")
    full_name = modules.full_name(name)
    try:
        return importlib.import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name == full_name or full_name.startswith(f"{error.name}."):
            raise TargetError(
                f"TARGET {target}: module {name} not found; install it, or run from the folder that holds it"
            ) from None
        raise _author_failed(target, error) from error
    except (Exception, SystemExit) as error:
        raise _author_failed(target, error) from error


def _import_file(target: str, path: Path, modules: DriverModules) -> ModuleType:
    if not path.is_file():
        near = did_you_mean(path.name, (item.name for item in path.parent.glob("*.py")))
        remedy = near or "; give the path of the driver's file"
        raise TargetError(f"TARGET {target}: {path} does not exist{remedy}")
    name = modules.full_name(path.stem) if modules.package else _module_name(path)
    spec = modules.spec_of(path, name)
    if spec is None or spec.loader is None:
        raise TargetError(f"TARGET {target}: {path} is not a Python file; {_FORMS}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks annotations up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _author_failed(target, error) from error
    return module


def _module_name(path: Path) -> str:
    """Return the name of the file, unless another module has it: ``logging.py`` must not replace logging."""
    name = path.stem
    if name.isidentifier():
        loaded = sys.modules.get(name)
        taken = getattr(loaded, "__spec__", None) if loaded is not None else importlib.util.find_spec(name)
        if (loaded is None and taken is None) or getattr(taken, "origin", None) == str(path):
            return name
    return f"{name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


@contextmanager
def _import_places(places: list[Path]) -> Iterator[None]:
    """Put these folders first in the import path, and last after success: authors also import later."""
    added = [text for text in map(str, places) if text not in sys.path]
    sys.path[:0] = added
    loaded = False
    try:
        yield
        loaded = True
    finally:
        for text in added:
            sys.path.remove(text)
        if loaded:
            sys.path += added


def _author_failed(target: str, error: BaseException, doing: str = _IMPORT) -> TargetError:
    from dra_kit.author.calls import author_location  # it imports pydantic

    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    place = f" at {author_location(error) or _last(error)}"
    if isinstance(error, SyntaxError) and error.text:
        place += f", in {error.text.strip()!r:.100}"
    if isinstance(error, ConfigurationError):
        return TargetError(f"TARGET {target}: {text}{place}", code=error.code)
    if isinstance(error, SystemExit):
        cause = f"it exits the process{place}; do that only under __main__"
    else:
        remedy = "; install it beside dra-kit" if isinstance(error, ModuleNotFoundError) else ""
        cause = f"{type(error).__name__}: {text}{place}{remedy}"
    alone = cause if doing == _IMPORT else f"{doing}: {cause}"
    return TargetError(f"TARGET {target} {doing}: {cause}", cause=alone)


def _last(error: BaseException) -> str:
    """Return where an error was raised that is not from the author's code."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _drivers(target: str, named: str, module: ModuleType, attribute: str, *, number: int) -> list[Driver[Any, Any]]:
    attribute = attribute or DEFAULT_ATTRIBUTE
    try:
        found = getattr(module, attribute)
    except AttributeError:
        drivers = [name for name, value in vars(module).items() if _is_driver(value)]
        hint = f"did you mean {named}:{drivers[0]}?" if drivers else f"write {attribute} = dra_kit.Driver(…) there"
        raise TargetError(f"TARGET {target}: module {module.__name__} has no attribute {attribute!r}; {hint}") from None
    if _is_driver(found):
        return [found, *(_copied(target, found) for _ in range(number - 1))]
    if callable(found):
        return [_called(target, found, attribute) for _ in range(number)]
    return [_checked(target, attribute, f"{attribute} is", found)]


def _called(target: str, function: Callable[[], object], attribute: str) -> Driver[Any, Any]:
    try:
        found = function()
    except (Exception, SystemExit) as error:
        raise _author_failed(target, error, f"failed in {attribute}()") from error
    return _checked(target, attribute, f"{attribute}() returned", found)


def _is_driver(value: object) -> TypeIs[Driver[Any, Any]]:
    from dra_kit.author.driver import Driver  # a command may print what it loads before this import

    return isinstance(value, Driver)


def _checked(target: str, attribute: str, what: str, found: object) -> Driver[Any, Any]:
    if inspect.iscoroutine(found):
        found.close()
        raise TargetError(f"TARGET {target}: {attribute} is async def; write a plain def that returns a dra_kit.Driver")
    if not _is_driver(found):
        raise TargetError(
            f"TARGET {target}: {what} {type(found).__name__}, neither a dra_kit.Driver nor a function that returns one"
        )
    return found


def _copied(target: str, driver: Driver[Any, Any]) -> Driver[Any, Any]:
    try:
        return driver.for_another_node()
    except Exception as error:  # noqa: BLE001 - an author's object may raise any exception
        raise TargetError(
            f"TARGET {target}: driver {driver.name} cannot be copied for a second node "
            f"({type(error).__name__}: {error}); write a function that returns a new Driver each time"
        ) from None


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
