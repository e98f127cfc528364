"""The author's own kopf handlers, in the active replica: loaded, and run in a separate kopf."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import Metric

from dra_kit.author.calls import author_location
from dra_kit.author.context import Context
from dra_kit.author.driver import Driver, HandlerModule
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.operator import KopfThread, kopf, kopf_settings
from dra_kit.controller.context import ControllerClusterApi
from dra_kit.errors import ConfigurationError, KubeError, NotFound
from dra_kit.process.metrics import KOPF_RESTARTS

logger: logging.Logger = logging.getLogger(__name__)
LOOK_AGAIN: Final = (1.0, 2.0, 5.0, 10.0)
"""Seconds until a kind that is not served yet is looked for again; the last one repeats."""


class AuthorHandlers:
    """Runs the author's kopf handlers, and kopf again after it failed; an active part of the controller."""

    name = "handlers"

    def __init__(
        self,
        driver: Driver[Any, Any],
        registry: kopf.OperatorRegistry,
        context: Context[Any],
        *,
        credentials: Credentials,
        client: Client,
        user_agent: str,
    ) -> None:
        self._driver = driver
        self._registry = registry
        self._context = context
        self._credentials = credentials
        self._client = client
        self._user_agent = user_agent
        self._restarts: tuple[int, KopfThread | None] = (0, None)  # of former lives of the part, and this one's

    def readings(self) -> Iterator[Metric]:
        """Yield how often kopf was started again, in all lives of the part; from any thread."""
        yield KOPF_RESTARTS.of(self._count_restarts())

    def _count_restarts(self) -> int:
        former, thread = self._restarts
        return former + (thread.restarts if thread is not None else 0)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when kopf is alive."""
        await self._served()
        thread = KopfThread(self._credentials, self._build, memo=self._memo)
        self._restarts = (self._count_restarts(), thread)
        await thread.run(ready)

    async def _served(self) -> None:
        """Wait until the cluster serves the kinds of the handlers: kopf looks for them only once, at its start."""
        logged: set[str] = set()
        for attempt in itertools.count():
            missing = [kind for kind in sorted(_custom_kinds(self._registry)) if not await self._serves(*kind)]
            if not missing:
                return
            names = {f"{name}.{group}" for group, name in missing}
            if names != logged:
                remedy = "create their CustomResourceDefinitions"
                logger.warning("handlers wait for kinds", extra={"kinds": ", ".join(sorted(names)), "remedy": remedy})
            logged = names
            await asyncio.sleep(LOOK_AGAIN[min(attempt, len(LOOK_AGAIN) - 1)])

    async def _serves(self, group: str, name: str) -> bool:
        try:
            versions = (await self._client.get_path(f"/apis/{group}")).get("versions") or ()
            for version in versions:
                found = await self._client.get_path(f"/apis/{version['groupVersion']}")
                if any(name in _names(kind) for kind in found.get("resources") or ()):
                    return True
        except NotFound:
            pass
        except KubeError as error:
            logger.debug("cannot check whether a kind is served", extra={"error": str(error)})
        return False

    def _build(self) -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
        return copy_registry(self._registry), kopf_settings(chunk_size=500)

    def _memo(self, registry: kopf.OperatorRegistry) -> kopf.Memo:
        """Make the memo of one life, in kopf's loop: a client belongs to one loop."""
        client = Client(self._credentials, user_agent=self._user_agent)
        cluster = ControllerClusterApi(client, self._driver.name, asyncio.get_running_loop())

        async def close(**_: object) -> None:
            await client.close()

        kopf.on.cleanup(id="close-cluster", registry=registry)(close)
        return kopf.Memo(cluster=cluster, context=self._context)


def _custom_kinds(registry: kopf.OperatorRegistry) -> set[tuple[str, str]]:
    """Group and name of the kinds that handlers name with a group that has a dot, as those of definitions have."""
    selectors = {
        selector
        for handlers in vars(registry).values()
        for handler in handlers.get_all_handlers()
        if (selector := getattr(handler, "selector", None)) is not None
    }
    found = ((each.group, each.plural or each.kind or each.any_name) for each in selectors)
    return {(group, name) for group, name in found if isinstance(name, str) and group and "." in group}


def _names(kind: dict[str, Any]) -> set[str]:
    return {str(kind.get(key)) for key in ("name", "kind", "singularName")} | set(kind.get("shortNames") or ())


_one_at_a_time: Final = threading.Lock()  # kopf's default registry is one for the process, a sandbox has several roles


def load_handlers(driver: Driver[Any, Any]) -> kopf.OperatorRegistry:
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


def copy_registry(registry: kopf.OperatorRegistry) -> kopf.OperatorRegistry:
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
            f"driver {driver}: handlers: module {name} not found; write Driver(handlers=…) as in an import"
        ) from None
    except (Exception, SystemExit) as error:
        raise _failed(driver, name, error) from error


def _failed(driver: str, name: str, error: BaseException) -> ConfigurationError:
    place = author_location(error, name) if isinstance(error, Exception) else ""
    text = " ".join(str(error).split())
    return ConfigurationError(
        f"driver {driver}: handlers: {name} does not import: {type(error).__name__}: {text}"
        f"{f' at {place}' if place else ''}; correct it, or leave out Driver(handlers=…)"
    )
