"""Replaces the driver as a DaemonSet with ``maxSurge: 1`` does: the new one serves before the old one ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from dra_kit.client.resources import VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.dev.driver.process import DriverProcess
from dra_kit.dev.driver.roles import Orders, StateReport
from dra_kit.errors import Conflict, NotFound, SandboxError
from dra_kit.sandbox.cluster.directory import mark_of
from dra_kit.sandbox.sandbox import Sandbox

_ABANDONED_SECONDS: Final = 5.0  # that a process gets to end whose code could not be used


class RollingUpdates:
    """The driver's processes.

    Args:
        sandbox: the cluster; it runs no roles itself.
        arguments: of ``dra-kit dev``.
        time_scale: waits are divided by this.
        webhook: run the driver's webhook role.
        log_level: least level that the driver logs.
        log: takes each line that the driver logs or prints.
        waiting: notified why a start takes long.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        arguments: Sequence[str],
        *,
        time_scale: float,
        webhook: bool,
        log_level: str,
        log: Callable[[str], None],
        waiting: Callable[[str], None],
    ) -> None:
        self._sandbox = sandbox
        self._arguments = list(arguments)
        self._time_scale = time_scale
        self._webhook = webhook
        self._log_level = log_level
        self._log = log
        self._waiting = waiting
        self._number = 0
        self._has_served = False
        self._spare: DriverProcess | None = None
        self._starting: asyncio.Task[StateReport] | None = None
        self._configuration = ""  # name of the one that calls the webhook
        self.serving: DriverProcess | None = None
        """What the kubelets and the API server call; None when nothing does."""

    async def replace(self) -> float:
        """Start the driver anew from its files as they are, then end the process before; the seconds until it served.

        The process before goes on to serve where the new one cannot.

        Raises:
            SandboxError: the new code cannot be used; the text says why.
        """
        begin = time.monotonic()
        fresh = await self._take_spare()
        try:
            report = await self._served(fresh)
            self._require_name(report.driver)
        except BaseException:
            await fresh.stop(_ABANDONED_SECONDS)
            await self.prepare()
            raise
        former, self.serving, self._has_served = self.serving, fresh, True
        await self._call_webhook(report.webhook)
        seconds = time.monotonic() - begin
        if former is not None:
            await former.stop()
        fresh.take_over()
        await self.prepare()
        return seconds

    def abandon(self) -> None:
        """Wait no longer for new code that does not serve yet."""
        if self._starting is not None:
            self._starting.cancel()

    async def ended(self) -> str:
        """Wait until the serving process ends by itself; why it did."""
        if self.serving is None:
            await asyncio.get_running_loop().create_future()
        why = await self.serving.ended()  # type: ignore[union-attr]  # nobody waits for ever
        self.serving = None
        return why

    async def stop(self) -> None:
        """End all of them."""
        processes = [process for process in (self.serving, self._spare) if process is not None]
        self.serving = self._spare = None
        await asyncio.gather(*(process.stop() for process in processes))

    async def prepare(self) -> None:
        """Have a process load all but the author's code, which is most of a start, before it is needed."""
        if self._spare is None:
            self._spare = await DriverProcess.spawn(self._log)

    async def _served(self, fresh: DriverProcess) -> StateReport:
        self._starting = asyncio.create_task(fresh.serve(self._orders(), self._waiting))
        try:
            await asyncio.wait([self._starting])
        finally:
            starting, self._starting = self._starting, None
            starting.cancel()
        if starting.cancelled():
            raise SandboxError("it did not serve yet when a file changed again")
        return starting.result()

    def _require_name(self, name: str) -> None:
        [former] = self._sandbox.drivers
        if name != former:
            raise SandboxError(f"the driver's name was {former} and is {name} now: end dra-kit dev and start it again")

    async def _take_spare(self) -> DriverProcess:
        spare, self._spare = self._spare, None
        return spare if spare and spare.runs else await DriverProcess.spawn(self._log)

    def _orders(self) -> Orders:
        self._number += 1
        sandbox = self._sandbox
        directory = sandbox.directory / f"driver-{self._number}"
        directory.mkdir()
        return Orders(
            arguments=self._arguments,
            number=self._number,
            nodes={node.name: node.directory for node in sandbox.nodes},
            kubeconfig=sandbox.kubeconfig,
            directory=directory,
            mark=mark_of(sandbox.directory),
            time_scale=self._time_scale,
            webhook=self._webhook,
            since=None if self._has_served else sandbox.beginning,
            log_level=self._log_level,
        )

    async def _call_webhook(self, configuration: dict[str, Any] | None) -> None:
        """Have the API server call the webhook of the new process, or none."""
        client = self._sandbox.client
        if configuration is None:
            if self._configuration:
                with suppress(NotFound):
                    await client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, self._configuration)
            self._configuration = ""
            return
        self._configuration = configuration["metadata"]["name"]
        try:
            await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration)
        except Conflict:
            await client.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, self._configuration, configuration)
