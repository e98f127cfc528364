"""The roles in the driver's process, started and stopped by orders.

Each state of the author's files gets a new process, as each image in a cluster does. No module, thread, native library
or registry of the old code is left in it, and a crash of the process does not affect the cluster.

The process receives its orders as a line of JSON on its standard input (:class:`StartOrder`), later :data:`TAKE_OVER`.
It exits when that input is closed. It answers with lines of JSON on its standard output (:class:`StateReport`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.client.credentials import Credentials
from dra_kit.node.agent import NodeAgent
from dra_kit.process.probes import unready_parts
from dra_kit.sandbox.drivers.controller_and_webhook import WebhookRole, controller_role, webhook_role
from dra_kit.sandbox.drivers.log import DriverLog
from dra_kit.sandbox.drivers.roles import SLOW_CALL_SECONDS, RoleThread
from dra_kit.sandbox.drivers.running import PUBLISH_SECONDS
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.drivers.settings import node_settings
from dra_kit.slices.discovery import DISCOVER_FAILED

TAKE_OVER: Final = "take over"
"""The previous process has exited: what only one process may do, such as recording Events, is now done by this one."""
_FAILED_SECONDS: Final = 1.0  # a driver whose discover failed may recover within this time
_POLL: Final = 0.02


class StartOrder(BaseModel):
    """What a process is to do.

    Attributes:
        arguments: of ``dra-kit dev``, which name the driver and its settings.
        number: of the process, from 1; distinguishes it from those before it.
        directory: for files of this process.
        since: None where a process has served before it; else see :class:`dra_kit.controller.agent.ControllerSettings`.
        log_level: least level that is logged; empty: what the author logs from info, what dra-kit logs from warning.
        folders: folders in which files that the process writes are reported.
    """

    arguments: list[str]
    number: int
    nodes: dict[str, Path]
    kubeconfig: Path
    directory: Path
    mark: str
    time_scale: float
    webhook: bool
    since: str | None
    log_level: str
    folders: list[Path] = []


class StateReport(BaseModel):
    """The state that a process reports.

    Attributes:
        state: ``waiting``: it has not come up yet; ``ready``: it serves, and has published its devices; ``failed``: it
            cannot be used, and exits; ``writes``: it changes the file ``text``.
        webhook: the ValidatingWebhookConfiguration that calls its webhook role; None if it lacks that role.
    """

    state: Literal["waiting", "ready", "failed", "writes"]
    text: str = ""
    driver: str = ""
    webhook: dict[str, Any] | None = None


class DriverRoles:
    """All roles of a driver, on all nodes."""

    def __init__(
        self, driver: SandboxDriver, orders: StartOrder, credentials: Credentials, tell: Callable[[StateReport], None]
    ) -> None:
        self._driver = driver
        self._orders = orders
        self._credentials = credentials
        self._report = tell
        self._agents: dict[str, NodeAgent] = {}
        self._log = DriverLog()
        self._roles: list[RoleThread] = []
        self._webhook: WebhookRole | None = None
        self._author: BaseModel | None = None

    async def run(self) -> None:
        """Start the roles, report their state, and run until one of them stops."""
        logging.getLogger().addHandler(self._log)
        self._start()
        begin, reported = time.monotonic(), False
        while waiting := await self._waiting():
            seconds = time.monotonic() - begin
            if failure := self._failure(seconds):
                self._report(StateReport(state="failed", text=failure))
                return
            if not reported and seconds > SLOW_CALL_SECONDS:
                reported = True
                self._report(StateReport(state="waiting", text="; ".join(self._hanging() or waiting)))
            await asyncio.sleep(_POLL)
        configuration = dict(self._webhook.configuration) if self._webhook else None
        self._report(StateReport(state="ready", driver=self._driver.name, webhook=configuration))
        while not (failure := self._ended()):  # noqa: ASYNC110 - threads end it
            await asyncio.sleep(_POLL)
        self._report(StateReport(state="failed", text=failure))

    def take_over(self) -> None:
        """Start also what only one process may run."""
        driver, since = self._driver.drivers[0], self._orders.since
        self._roles.append(controller_role(driver, self._credentials, self._author, since))
        self._roles[-1].start()

    async def stop(self) -> None:
        """Stop as a SIGTERM would."""
        await asyncio.gather(*(role.stop() for role in self._roles))

    def _start(self) -> None:
        orders = self._orders
        authors = [self._driver.settings_on(name, directory) for name, directory in orders.nodes.items()]
        self._author = authors[0]
        nodes = zip(orders.nodes.items(), self._driver.drivers, authors, strict=True)
        for (name, directory), driver, author in nodes if self._driver.drivers[0].on_nodes else ():
            run = partial(self._run_node, name, directory, driver, author)
            self._roles.append(RoleThread(f"node role on {name}", run))
        driver = self._driver.drivers[0]
        if orders.webhook and driver.configs.kinds:
            self._webhook = webhook_role(driver, self._credentials, orders.directory, self._author)
            self._roles.append(self._webhook.role)
        for role in self._roles:
            role.start()

    async def _run_node(self, name: str, directory: Path, driver: Driver[Any, Any], author: BaseModel | None) -> int:
        orders = self._orders
        settings = node_settings(
            name, directory, orders.kubeconfig, author,
            mark=orders.mark, time_scale=orders.time_scale, pod_uid=f"dev-{orders.number}",
        )  # fmt: skip
        self._agents[name] = NodeAgent(driver, settings, self._credentials)
        return await self._agents[name].run()

    async def _waiting(self) -> list[str]:
        """Return what is not ready on the nodes, and the webhook role as long as it does not listen."""
        found = []
        for name in self._orders.nodes if self._driver.drivers[0].on_nodes else ():
            agent = self._agents.get(name)
            lines = unready_parts(agent.supervisor) if agent else ["it starts"]
            found += [f"on {name}: {line}" for line in lines]
        if self._webhook is not None and not await self._webhook.listens():
            found.append("the webhook role does not listen")
        return found

    def _failure(self, seconds: float) -> str:
        """Return why the driver cannot be used, some seconds after its start; empty while it may still come up."""
        if failure := self._ended():
            return failure
        discover = self._log.problems_of(DISCOVER_FAILED)
        fails = any(agent.discover_problem for agent in self._agents.values())
        if discover and fails and seconds > _FAILED_SECONDS:
            return discover[-1]
        if seconds > PUBLISH_SECONDS:
            reasons = [*self._log.problems, *self._hanging()][-2:] or ["discover() has not yielded an inventory"]
            return f"it publishes nothing within {PUBLISH_SECONDS:.0f} s: {'; '.join(reasons)}"
        return ""

    def _ended(self) -> str:
        """Return why a role exited unexpectedly; empty while all run."""
        for role in self._roles:
            if role.failure:
                problems = self._log.problems
                return problems[-1] if problems and role.exit_code is not None else role.failure
        return ""

    def _hanging(self) -> list[str]:
        return [f"on {name}: {line}" for name, agent in self._agents.items() for line in agent.hanging(0.0)]
