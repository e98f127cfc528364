"""Runs the author's handlers in a kopf of their own: their filters and failures are not those of the claims' watch."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from typing import Any, Final

from dra_kit.author.context import Context
from dra_kit.author.driver import Driver
from dra_kit.controller.author_handlers.cluster import HandlersCluster
from dra_kit.controller.author_handlers.loading import fresh
from dra_kit.errors import KubeError, NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.connection.credentials import Credentials
from dra_kit.kube.operator.operator import OperatorThread, kopf, quiet_settings
from dra_kit.process.metrics import families
from dra_kit.process.metrics.families import Reading

logger: logging.Logger = logging.getLogger(__name__)

LOOK_AGAIN: Final = (1.0, 2.0, 5.0, 10.0)
"""Seconds until a kind that is not served yet is looked for again; the last one repeats."""
_PAGE: Final = 500


class AuthorHandlers:
    """An active part of the controller; kopf may die and come back.

    Args:
        driver: whose handlers they are.
        registry: with them.
        context: of the controller, for the handlers.
        credentials: of the controller.
        client: of the part's loop.
        user_agent: for the requests of handlers.
    """

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
        self._restarts: tuple[int, OperatorThread | None] = (0, None)  # of former lives of the part, and this one's

    def readings(self) -> Iterator[Reading]:
        """Yield how often kopf was started again, in all lives of the part; from any thread."""
        yield families.KOPF_RESTARTS.of(self._count_restarts())

    def _count_restarts(self) -> int:
        former, thread = self._restarts
        return former + (thread.restarts if thread is not None else 0)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when kopf is alive."""
        await self._served()
        thread = OperatorThread(self._credentials, self._build, memo=self._memo)
        self._restarts = (self._count_restarts(), thread)
        await thread.run(ready)

    async def _served(self) -> None:
        """Wait until the cluster has the kinds of the author's: kopf looks for them once, at its start."""
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
            return False
        except KubeError as error:
            logger.debug("not known whether a kind is served", extra={"error": str(error)})
            return False
        return False

    def _build(self) -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
        return fresh(self._registry), quiet_settings(chunk_size=_PAGE)

    def _memo(self, registry: kopf.OperatorRegistry) -> kopf.Memo:
        """Make the memo of one life, in kopf's loop: a client belongs to one loop."""
        cluster = HandlersCluster(
            Client(self._credentials, user_agent=self._user_agent), f"{self._driver.name}/controller"
        )

        async def close(**_: object) -> None:
            await cluster.close()

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
