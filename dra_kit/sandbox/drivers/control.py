"""What a story or a test can do to a driver: kill it, restart it, update it, change its files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError
from dra_kit.node.failpoints import Failpoint
from dra_kit.sandbox.drivers.accounts import RoleCredentialsProvider
from dra_kit.sandbox.drivers.controller_and_webhook import ControllerAndWebhook
from dra_kit.sandbox.drivers.node import SandboxNode
from dra_kit.sandbox.drivers.node_driver import NodeDriver
from dra_kit.sandbox.drivers.process_role import CrashPoint
from dra_kit.sandbox.drivers.sandbox_driver import DriverRelease, SandboxDriver
from dra_kit.sandbox.drivers.settings import copy_edited_files, read_setting_files, replace_setting_files
from dra_kit.text import did_you_mean


class ControllerAndWebhookFactory(Protocol):
    """Makes the controller and webhook roles of a release; ``first``: no controller of the driver ran before."""

    def __call__(self, *, first: bool) -> ControllerAndWebhook:
        """Return them, not started."""
        ...


class SandboxDriverControl:
    """The :class:`dra_kit.sandbox.stories.facts.DriverControl` of a sandbox.

    Args:
        edited: settings whose files are copies, which tests edit.
        published: waits until it is registered on each node and has published something.
        rebooted: reboots all nodes with all drivers; takes further directories that are lost, by node.

    Raises:
        ConfigurationError: a setting is wrong, or one in ``edited`` names no file.
    """

    def __init__(
        self,
        driver: SandboxDriver,
        places: Mapping[str, Path],
        *,
        edited: Collection[str],
        published: Callable[[SandboxDriverControl], Awaitable[None]],
        rebooted: Callable[[Mapping[str, Sequence[Path]]], Awaitable[None]],
        operators: ControllerAndWebhookFactory,
    ) -> None:
        self._past = [driver]
        self._edited = edited
        self._published = published
        self._rebooted = rebooted
        self._make_operators = operators
        self._authors = {
            node: copy_edited_files(driver.settings_on(node, directory), edited, directory / "files" / driver.name)
            for node, directory in places.items()
        }
        self.nodes: Sequence[SandboxNode] = ()
        self.operators: ControllerAndWebhook | None = None

    @property
    def driver(self) -> SandboxDriver:
        """The release that runs."""
        return self._past[-1]

    @property
    def name(self) -> str:
        """The driver's name."""
        return self.driver.name

    def on(self, node: SandboxNode) -> NodeDriver:
        """Return the driver on a node."""
        return node.drivers[self.name]

    @property
    def published(self) -> bool:
        """Whether all of its roles have published their inventories, if only empty ones."""
        operators = self.operators if self.driver.drivers[0].cluster_provider is not None else None
        return all(self.on(node).ready for node in self.nodes) and (operators is None or operators.pools_published)

    def start_on(self, nodes: Sequence[SandboxNode], access: RoleCredentialsProvider) -> None:
        """Start the driver's node role on each node, without waiting until it is ready.

        A driver that has only a controller is not started on nodes.
        """
        if not self.driver.drivers[0].on_nodes:
            return
        self.nodes = nodes
        for node, driver in zip(nodes, self.driver.drivers, strict=True):
            node.start_driver(self.driver.release(self._authors[node.name], driver), access.node(node.name))

    async def start_operators(self) -> None:
        """Start the controller and webhook roles.

        Raises:
            SandboxError: the webhook does not listen.
        """
        self.operators = self._make_operators(first=True)
        await self.operators.start(self.driver.drivers[0], self._author_of_operators)

    @property
    def _author_of_operators(self) -> BaseModel | None:
        """The author's settings for the roles of the cluster: those of the first node."""
        return self.on(self.nodes[0]).author if self.nodes else next(iter(self._authors.values()), None)

    async def stop_operators(self) -> None:
        """Stop the controller and webhook roles, if they were started."""
        if self.operators is not None:
            await self.operators.stop()

    def fresh(self, node: SandboxNode) -> DriverRelease:
        """Return the release that runs, loaded again.

        Raises:
            ConfigurationError: there is none.
        """
        return self.driver.release(self.on(node).author)

    async def restart(self) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self.nodes:
            await self.on(node).restart(self.fresh(node))
        await self._published(self)

    async def in_process(self, wanted: bool) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self.nodes:
            driver = self.on(node)
            if driver.in_process != wanted:
                release = self.fresh(node)
                driver.in_process = wanted
                try:
                    await driver.replace(release)
                except BaseException:
                    driver.in_process = not wanted
                    raise

    async def kill(self) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self.nodes:
            await self.on(node).kill()

    async def start(self) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self.nodes:
            await self.on(node).start_again()

    async def kill_after(self, step: str) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        name, colon, count = step.partition(":")
        if name not in Failpoint.__members__:
            hint = did_you_mean(name, Failpoint.__members__) or ";"
            raise ConfigurationError(f"unknown step {name!r}{hint} valid steps: {', '.join(Failpoint.__members__)}")
        if colon and not (count.isascii() and count.isdigit() and int(count)):
            raise ConfigurationError(f"{step!r}: invalid count after the colon; write {name}:2 for the second time")
        for node in self.nodes:
            self.on(node).crash_at(CrashPoint(Failpoint[name], int(count or 1)))

    @property
    def awaited(self) -> str:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        waiting = [crash.at for node in self.nodes if (crash := self.on(node).crash) is not None]
        # with several nodes, one node that reaches the step is enough
        return Failpoint(waiting[0]).name if waiting and len(waiting) == len(self.nodes) else ""

    async def upgrade(self, target: str | Driver[Any, Any]) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        if self.driver.successor is None:
            raise ConfigurationError("the driver here cannot be upgraded; use dra_kit.testing.sandbox(…)")
        new = self.driver.successor(target)
        if new.name != self.name:
            raise ConfigurationError(
                f"driver {new.name} is not a release of driver {self.name}: all releases have the same name; "
                "name another TARGET"
            )
        new = new.unused(self._past)
        await self._replace(new)
        self._past.append(new)

    async def rollback(self) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        if len(self._past) == 1:
            raise ConfigurationError("there is nothing to roll back: the driver was not upgraded; upgrade it first")
        await self._replace(self._past[-2])
        self._past.pop()

    async def reboot(self, lost: Sequence[str] = ()) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        await self._rebooted(
            {node.name: [_directory(self.on(node).author, name) for name in lost] for node in self.nodes}
        )

    async def restore(self) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self.nodes:
            if self.on(node).crash is not None:
                self.on(node).crash_at(None)
        await self.start()
        if len(self._past) > 1:
            await self._replace(self._past[0])
            del self._past[1:]

    async def files(self, place: str) -> Sequence[str]:
        """See :func:`dra_kit.sandbox.drivers.settings.read_setting_files`."""
        return await asyncio.to_thread(read_setting_files, [self.on(node).author for node in self.nodes], place)

    def folders(self, setting: str) -> Mapping[str, Path]:
        """Return the folder that a setting in the editable ones names on each node, by the node's name.

        Raises:
            ConfigurationError: the setting names no folder, or none that is the sandbox's copy.
        """
        found = {node.name: getattr(self.on(node).author, setting, None) for node in self.nodes}
        if setting not in self._edited or not all(isinstance(path, Path) and path.is_dir() for path in found.values()):
            raise ConfigurationError(
                f"the driver's setting {setting!r} names no folder that tests can change; name a setting of type Path "
                "in pytest's setting dra_hardware, or in editable= of sandbox(…)"
            )
        return {name: path for name, path in found.items() if isinstance(path, Path)}

    async def replace_file(self, setting: str, text: str) -> str:
        """See :func:`dra_kit.sandbox.drivers.settings.replace_setting_files`."""
        return await replace_setting_files([self.on(node).author for node in self.nodes], self._edited, setting, text)

    async def inject_health(self, device: str, reason: str, message: str | None) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        pool, _, name = device.rpartition("/")
        refusals = []
        for node in self.nodes:
            try:
                await self.on(node).inject_health(name, reason, message, pool or None)
            except ConfigurationError as error:
                refusals.append(error)
        if len(refusals) == len(self.nodes):
            raise refusals[0]

    async def _replace(self, new: SandboxDriver) -> None:
        """Do a rolling update, node by node; then the roles of the cluster."""
        # create all releases first: if one fails, no driver is replaced
        releases = [new.release(self._author(new, node)) for node in self.nodes]
        of_operators = new.release(None).driver
        for node, release in zip(self.nodes, releases, strict=True):
            await self.on(node).replace(release)
        former, self.operators = self.operators, self._make_operators(first=False)
        await self.operators.start(of_operators, self._author_of_operators)
        if former is not None:
            await former.stop()

    def _author(self, new: SandboxDriver, node: SandboxNode) -> BaseModel | None:
        """Return the author's settings of a release; files that tests edit stay as they are."""
        given, former = new.settings_on(node.name, node.directory), self.on(node).author
        names = [name for name in self._edited if given is not None and name in type(given).model_fields]
        return given.model_copy(update={name: getattr(former, name) for name in names}) if given else None


def _directory(author: BaseModel | None, setting: str) -> Path:
    known = type(author).model_fields if author else {}
    value = getattr(author, setting, None) if setting in known else None
    if not isinstance(value, Path) or value.is_file():
        hint = "" if setting in known else did_you_mean(setting, known)
        raise ConfigurationError(
            f"{setting!r} is not a setting of the driver that names a directory, so it cannot be lost in a reboot"
            f"{hint or ';'} its settings: {', '.join(known) or 'none'}"
        )
    return value
