"""The author's module of handlers, imported, and its registry for each of kopf's lives."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any, Final

from dra_kit.author.driver import Driver
from dra_kit.author.handler_module import HandlerModule
from dra_kit.errors import ConfigurationError
from dra_kit.kube.operator.operator import kopf
from dra_kit.process.tracebacks import place_of

_one_at_a_time: Final = threading.Lock()  # kopf's default registry is one for the process, a sandbox has several roles


def load(driver: Driver[Any, Any]) -> kopf.OperatorRegistry:
    """Import the module of a driver that has handlers, and return the registry with them.

    While it is imported kopf's default registry is the driver's, so that ``@kopf.on.event(…)`` needs no ``registry=``.

    Raises:
        ConfigurationError: it cannot be imported, or registers nothing.
    """
    module = driver.handler_module
    with _one_at_a_time:
        former = kopf.get_default_registry()
        kopf.set_default_registry(module.registry)
        try:
            _import(driver.name, module)
        finally:
            kopf.set_default_registry(former)
    if not _has_any(module.registry):
        raise ConfigurationError(
            f"driver {driver.name}: handlers: {module.module or 'driver.handlers'} registers no kopf handler; decorate "
            "functions there with @kopf.on.event(…), or leave out Driver(handlers=…)"
        )
    return module.registry


def fresh(registry: kopf.OperatorRegistry) -> kopf.OperatorRegistry:
    """Return a registry with the same handlers: each of kopf's lives adds its own to it."""
    copy = kopf.OperatorRegistry()
    for name, handlers in vars(registry).items():
        for handler in handlers.get_all_handlers():
            getattr(copy, name).append(handler)
    return copy


def _has_any(registry: kopf.OperatorRegistry) -> bool:
    return any(handlers.get_all_handlers() for handlers in vars(registry).values())


def _import(driver: str, module: HandlerModule) -> None:
    name = module.module
    if name is None:
        return
    try:
        loaded = sys.modules.get(name)
        if loaded is None:
            importlib.import_module(name)
        elif not _has_any(module.registry):
            importlib.reload(loaded)  # another release of the driver in this process has had it
    except ModuleNotFoundError as error:
        if error.name is None or not (error.name == name or name.startswith(f"{error.name}.")):
            raise _failed(driver, name, error) from error
        raise ConfigurationError(
            f"driver {driver}: handlers: there is no module {name}; write Driver(handlers=…) as in an import"
        ) from None
    except (Exception, SystemExit) as error:
        raise _failed(driver, name, error) from error


def _failed(driver: str, name: str, error: BaseException) -> ConfigurationError:
    place = place_of(error, name) if isinstance(error, Exception) else ""
    text = " ".join(str(error).split())
    return ConfigurationError(
        f"driver {driver}: handlers: {name} does not import: {type(error).__name__}: {text}"
        f"{f' at {place}' if place else ''}; correct it, or leave out Driver(handlers=…)"
    )
