"""The driver's node role on a node of a sandbox, while it runs: in a thread, or in a process that can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from dra_kit.client.credentials import Credentials
from dra_kit.errors import ConfigurationError
from dra_kit.node.agent import NodeAgent
from dra_kit.node.settings import NodeSettings
from dra_kit.process.probes import unready_parts
from dra_kit.sandbox.driver.release import Release
from dra_kit.sandbox.driver.roles.role_thread import RoleThread


class NodeRole(Protocol):
    """It runs from its beginning on."""

    begun: bool
    """Whether the driver is loaded: from then on its own time counts."""

    @property
    def failure(self) -> str:
        """Why it ended although nobody asked it to; empty while it did not."""
        ...

    @property
    def ready(self) -> bool:
        """Whether all of its parts are: the kubelet can find it, and its devices are published."""
        ...

    def when_ended(self, then: Callable[[], None]) -> None:
        """Have something called in the running event loop once it has ended, however it did."""
        ...

    async def stop(self) -> None:
        """End it as a SIGTERM would; its state stays."""
        ...

    def calls(self) -> Sequence[str]:
        """Return the calls of the driver's code that have not returned, where that can be seen from here."""
        ...

    def hanging(self, patience: float) -> Sequence[str]:
        """Return the calls older than so many seconds, and ``discover`` when it has not yielded for as long."""
        ...

    async def inject_health(self, device: str, reason: str, message: str | None, pool: str | None) -> None:
        """See :meth:`dra_kit.node.agent.NodeAgent.inject_health`.

        Raises:
            ConfigurationError: the driver has no health source, or no such device or reason here.
        """
        ...


class RoleInThread:
    """A :class:`NodeRole` in this process: nothing has to be started, and debuggers and coverage see the driver.

    Args:
        release: to run.
        settings: of the node role, without the author's.
        credentials: for the API server.
    """

    def __init__(self, release: Release, settings: NodeSettings, credentials: Credentials) -> None:
        self.begun = True
        self._agent: NodeAgent | None = None
        whole = replace(settings, author=release.author)

        async def run() -> int:
            self._agent = NodeAgent(release.driver, whole, credentials)
            return await self._agent.run()

        self._thread = RoleThread(f"node role on {settings.node_name}", run)
        self._thread.start()

    @property
    def failure(self) -> str:
        """See :class:`NodeRole`."""
        return self._thread.failure

    @property
    def ready(self) -> bool:
        """See :class:`NodeRole`."""
        return self._agent is not None and not unready_parts(self._agent.supervisor)

    def when_ended(self, then: Callable[[], None]) -> None:
        """See :class:`NodeRole`."""
        self._thread.when_ended(then)

    async def stop(self) -> None:
        """See :class:`NodeRole`."""
        await self._thread.stop()

    def calls(self) -> Sequence[str]:
        """See :class:`NodeRole`."""
        return self._thread.calls()

    def hanging(self, patience: float) -> Sequence[str]:
        """See :class:`NodeRole`."""
        return self._agent.hanging(patience) if self._agent else ()

    async def inject_health(self, device: str, reason: str, message: str | None, pool: str | None) -> None:
        """See :class:`NodeRole`."""
        if self._agent is None:
            raise ConfigurationError("the driver has not come up yet; wait for its devices first")
        await asyncio.wrap_future(self._agent.inject_health(device, reason, message, pool=pool))
