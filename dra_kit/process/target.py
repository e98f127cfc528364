"""Loading a driver by its TARGET: ``module:attr``, ``./file.py[:attr]`` or a project folder."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError, DraKitError, TargetError

DEFAULT_ATTRIBUTE = "driver"


def load_driver(target: str) -> Driver[Any, Any]:
    """The driver that a TARGET names.

    Args:
        target: ``module:attr``; ``./file.py`` or ``./file.py:attr``; or a folder whose ``pyproject.toml`` has
            ``[tool.dra-kit] driver = "module:attr"``. Without attr it is ``driver``. The attribute is a Driver, or
            a function without arguments that returns one.

    Raises:
        TargetError: naming what cannot be found, or where the author's code failed.
    """
    path_text, colon, attribute = target.rpartition(":")
    if not colon or "/" in attribute:
        path_text, attribute = target, ""
    path = Path(path_text)
    if path.is_dir():
        return _from_project(target, path)
    looks_like_file = path_text.endswith(".py") or "/" in path_text
    if looks_like_file and not path.is_file():
        raise TargetError(f"TARGET {target}: {path.resolve()} does not exist; give the path of the driver's file")
    module = _import_file(target, path) if looks_like_file else _import_module(target, path_text)
    return _driver(target, module, attribute or DEFAULT_ATTRIBUTE)


def _from_project(target: str, folder: Path) -> Driver[Any, Any]:
    project = folder / "pyproject.toml"
    try:
        table = tomllib.loads(project.read_text()).get("tool", {}).get("dra-kit", {})
    except FileNotFoundError:
        raise TargetError(
            f'TARGET {target}: {project} does not exist; add it with [tool.dra-kit] driver = "module:attr"'
        ) from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise TargetError(f"TARGET {target}: {project} cannot be read: {error}") from None
    named = table.get("driver")
    if not isinstance(named, str):
        raise TargetError(f'TARGET {target}: {project} has no [tool.dra-kit] driver; add driver = "module:attr"')
    for place in (folder / "src", folder):
        if place.is_dir() and str(place.resolve()) not in sys.path:
            sys.path.insert(0, str(place.resolve()))
    name, _, attribute = named.partition(":")
    return _driver(target, _import_module(target, name), attribute or DEFAULT_ATTRIBUTE)


def _import_module(target: str, name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise TargetError(f"TARGET {target}: {name!r} is no module; write module:attr, ./file.py or a project folder")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name or name.startswith(f"{error.name}."):
            raise TargetError(
                f"TARGET {target}: there is no module {name}; install it, or run from the folder that holds it"
            ) from None
        raise _author_failed(target, error) from error
    except Exception as error:
        raise _author_failed(target, error) from error


def _import_file(target: str, path: Path) -> ModuleType:
    path = path.resolve()
    name = path.stem.replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"TARGET {target}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks annotations up there
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _author_failed(target, error) from error
    return module


def _author_failed(target: str, error: Exception) -> DraKitError:
    if isinstance(error, ConfigurationError):
        return error
    where = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    place = f" at {where.filename}:{where.lineno}" if where else ""
    if isinstance(error, SyntaxError):
        place = f" at {error.filename}:{error.lineno}"
    return TargetError(f"TARGET {target} does not import: {type(error).__name__}: {error}{place}")


def _driver(target: str, module: ModuleType, attribute: str) -> Driver[Any, Any]:
    try:
        found = getattr(module, attribute)
    except AttributeError:
        drivers = [name for name, value in vars(module).items() if isinstance(value, Driver)]
        hint = f"; did you mean :{drivers[0]}?" if drivers else "; write driver = dra_kit.Driver(…) there"
        raise TargetError(f"TARGET {target}: module {module.__name__} has no attribute {attribute!r}{hint}") from None
    if not isinstance(found, Driver) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise _author_failed(target, error) from error
    if not isinstance(found, Driver):
        raise TargetError(
            f"TARGET {target}: {attribute} is {type(found).__name__}, neither a dra_kit.Driver nor a function that "
            "returns one"
        )
    return found
