"""Loads a driver by its TARGET: ``module:attr``, ``./file.py[:attr]``, a project folder, or a file of globs."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dra_kit.author.driver_modules import DriverModules, modules_of
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
    from dra_kit.author.driver import Driver  # a command may print what it loads before this import

    attribute = attribute or DEFAULT_ATTRIBUTE
    try:
        found = getattr(module, attribute)
    except AttributeError:
        drivers = [name for name, value in vars(module).items() if isinstance(value, Driver)]
        hint = f"did you mean {named}:{drivers[0]}?" if drivers else f"write {attribute} = dra_kit.Driver(…) there"
        raise TargetError(f"TARGET {target}: module {module.__name__} has no attribute {attribute!r}; {hint}") from None
    if isinstance(found, Driver):
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


def _checked(target: str, attribute: str, what: str, found: object) -> Driver[Any, Any]:
    from dra_kit.author.driver import Driver

    if inspect.iscoroutine(found):
        found.close()
        raise TargetError(f"TARGET {target}: {attribute} is async def; write a plain def that returns a dra_kit.Driver")
    if not isinstance(found, Driver):
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
