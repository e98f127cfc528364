"""What stories and tests do to the driver of a sandbox: end it, kill it, replace it, and have its nodes rebooted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError
from dra_kit.node.steps import Step
from dra_kit.sandbox.driver.drivers import SandboxDriver
from dra_kit.sandbox.driver.killable import Crash
from dra_kit.sandbox.driver.node import SandboxNode
from dra_kit.sandbox.driver.operators import Operators
from dra_kit.values.nearest import did_you_mean


class SandboxControl:
    """The :class:`dra_kit.sandbox.stories.facts.DriverControl` of a sandbox.

    Args:
        driver: that runs first.
        nodes: all of them, each with the driver.
        edited: settings whose files are copies, which tests edit.
        published: waits until each node's driver is registered and has published something.
        operators: makes those of a release.
    """

    def __init__(
        self,
        driver: SandboxDriver,
        nodes: Sequence[SandboxNode],
        *,
        edited: Collection[str],
        published: Callable[[], Awaitable[None]],
        operators: Callable[[], Operators],
    ) -> None:
        self._past = [driver]
        self._nodes = nodes
        self._edited = edited
        self._published = published
        self._make_operators = operators
        self.operators: Operators = operators()

    @property
    def driver(self) -> SandboxDriver:
        """The release that runs."""
        return self._past[-1]

    async def start_operators(self) -> None:
        """Start the controller and webhook roles."""
        await self.operators.start(self.driver.drivers[0], self._nodes[0].driver.author)

    async def restart(self) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self._nodes:
            await node.driver.restart(self.driver.release(node.driver.author))
        await self._published()

    async def in_process(self, wanted: bool) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self._nodes:
            if node.driver.in_process != wanted:
                release = self.driver.release(node.driver.author)
                node.driver.in_process = wanted
                try:
                    await node.driver.replace(release)
                except BaseException:
                    node.driver.in_process = not wanted
                    raise

    async def kill(self) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self._nodes:
            await node.driver.kill()

    async def start(self) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self._nodes:
            await node.driver.start_again()

    async def kill_after(self, step: str) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        name, colon, count = step.partition(":")
        if name not in Step.__members__:
            hint = did_you_mean(name, Step.__members__) or ";"
            raise ConfigurationError(f"there is no step {name!r}{hint} it may be {', '.join(Step.__members__)}")
        if colon and not (count.isascii() and count.isdigit() and int(count)):
            raise ConfigurationError(f"{step!r}: behind the colon is which time it is; write {name}:2 for the second")
        for node in self._nodes:
            node.driver.crash_at(Crash(Step[name], int(count or 1)))

    @property
    def awaited(self) -> str:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        waiting = [crash.at for node in self._nodes if (crash := node.driver.crash) is not None]
        # where there are several nodes, one that comes to it is enough
        return Step(waiting[0]).name if len(waiting) == len(self._nodes) else ""

    async def upgrade(self, target: str | Driver[Any, Any]) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        if self.driver.successor is None:
            raise ConfigurationError("the driver here cannot be upgraded; use dra_kit.testing.sandbox(…)")
        new = self.driver.successor(target)
        if new.name != self.driver.name:
            raise ConfigurationError(
                f"driver {new.name} is no release of driver {self.driver.name}: a release keeps the name; name "
                "another TARGET"
            )
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
        directories = [[_directory(node.driver.author, name) for name in lost] for node in self._nodes]
        for node, gone in zip(self._nodes, directories, strict=True):
            await node.reboot(self.driver.release(node.driver.author), gone)
        await self._published()

    async def restore(self) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.DriverControl`."""
        for node in self._nodes:
            if node.driver.crash is not None:
                node.driver.crash_at(None)
        await self.start()
        if len(self._past) > 1:
            await self._replace(self._past[0])
            del self._past[1:]

    async def _replace(self, new: SandboxDriver) -> None:
        """A rolling update, node by node; then the roles of the cluster."""
        for node in self._nodes:
            await node.driver.replace(new.release(self._author(new, node)))
        former, self.operators = self.operators, self._make_operators()
        await self.operators.start(new.release(None).driver, self._nodes[0].driver.author)
        await former.stop()

    def _author(self, new: SandboxDriver, node: SandboxNode) -> BaseModel | None:
        """The author's settings of a release; files that tests edit stay as they are."""
        given, former = new.settings_on(node.name, node.directory), node.driver.author
        names = [name for name in self._edited if given is not None and name in type(given).model_fields]
        return given.model_copy(update={name: getattr(former, name) for name in names}) if given else None


def _directory(author: BaseModel | None, setting: str) -> Path:
    known = type(author).model_fields if author else {}
    value = getattr(author, setting, None) if setting in known else None
    if not isinstance(value, Path) or value.is_file():
        hint = "" if setting in known else did_you_mean(setting, known)
        raise ConfigurationError(
            f"{setting!r} is no setting of the driver that names a directory, and cannot be lost in a reboot"
            f"{hint or ';'} its settings: {', '.join(known) or 'none'}"
        )
    return value
