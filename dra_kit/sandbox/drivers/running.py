"""All drivers of a sandbox: started together, and their state reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.errors import ConfigurationError, DraKitError, SandboxError
from dra_kit.sandbox.control_plane import first_error
from dra_kit.sandbox.drivers.accounts import RoleCredentialsProvider
from dra_kit.sandbox.drivers.control import SandboxDriverControl
from dra_kit.sandbox.drivers.controller_and_webhook import ControllerAndWebhook
from dra_kit.sandbox.drivers.log import DriverLog
from dra_kit.sandbox.drivers.node import SandboxNode
from dra_kit.sandbox.drivers.node_driver import NodeDriver
from dra_kit.sandbox.drivers.roles import SLOW_CALL_SECONDS
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver, require_distinct_drivers
from dra_kit.sandbox.drivers.settings import settings_by_driver
from dra_kit.sandbox.informers import SharedInformers
from dra_kit.text import did_you_mean

PUBLISH_SECONDS: Final = 60.0
"""A driver that has published nothing by then has a problem; one takes tens of seconds on a busy machine. What it waits
for is reported long before, and a discover that fails ends it at once."""
_FAILED_SECONDS: Final = 1.5  # a driver whose discover failed may recover within this time
_POLL: Final = 0.02


class DriverHost(Protocol):
    """What drivers find in a cluster."""

    @property
    def informers(self) -> SharedInformers:
        """The informers of the cluster's objects."""
        ...

    @property
    def client(self) -> Client:
        """A client that may do everything."""
        ...

    @property
    def nodes(self) -> Sequence[SandboxNode]:
        """All of them, each with every driver."""
        ...

    @property
    def log(self) -> DriverLog:
        """What the drivers log."""
        ...

    def new_operators(self, *, first: bool) -> ControllerAndWebhook:
        """Return controller and webhook roles for one release; ``first``: no controller of the driver ran before."""
        ...

    def silent(self, calls: Sequence[str]) -> None:
        """Report that a driver has published nothing for a while; ``calls`` of its code have not returned."""
        ...


class RunningDrivers:
    """All drivers of a sandbox.

    Raises:
        ConfigurationError: two drivers have the same name.
    """

    def __init__(self, drivers: Sequence[SandboxDriver], cluster: DriverHost) -> None:
        self._drivers = [driver for driver in drivers if driver.drivers]
        self._cluster = cluster
        self._controls: list[SandboxDriverControl] = []
        self._ended = asyncio.Event()
        require_distinct_drivers((driver.target, driver.name) for driver in self._drivers)

    @property
    def names(self) -> list[str]:
        """Their names, in the given order."""
        return [driver.name for driver in self._drivers]

    def control(self, name: str = "") -> SandboxDriverControl:
        """Return the control of one driver.

        Raises:
            ConfigurationError: the driver does not exist, or the name is empty and several drivers run.
        """
        for control in self._controls:
            if control.name == name or (not name and len(self._controls) == 1):
                return control
        if not self._controls:
            raise ConfigurationError("no driver runs here; give a TARGET")
        if name:
            raise ConfigurationError(
                f"unknown driver {name}{did_you_mean(name, self.names) or ';'} running drivers: {', '.join(self.names)}"
            )
        raise ConfigurationError(
            f"{len(self.names)} drivers run here, {' and '.join(self.names)}; say which: driver: NAME in a step of a "
            "story, driver= in a test"
        )

    # --- they begin and end

    def prepare(self, places: Mapping[str, Path], edited: Sequence[str]) -> None:
        """Make their settings on each node; files of ``edited`` settings (``NAME`` or ``DRIVER.NAME``) are copied.

        Raises:
            ConfigurationError: a setting is wrong.
        """
        first = [driver.drivers[0] for driver in self._drivers]
        copied = (
            settings_by_driver(first, dict.fromkeys(edited)) if len(first) > 1 else dict.fromkeys(self.names, edited)
        )
        self._controls = [
            SandboxDriverControl(
                driver,
                places,
                edited=tuple(copied[driver.name]),
                published=lambda control: self._published([control]),
                rebooted=self._reboot,
                operators=self._cluster.new_operators,
            )
            for driver in self._drivers
        ]

    async def start(self, access: RoleCredentialsProvider) -> None:
        """Start all roles; return when each driver has published devices on each node, and its webhook listens.

        Raises:
            SandboxError: a role does not come up; the message says why.
        """
        for control in self._controls:
            control.start_on(self._cluster.nodes, access)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._published(self._controls))
                for control in self._controls:
                    group.create_task(self._start_operators(control))
        except* DraKitError as errors:
            raise first_error(errors) from None

    async def stop(self) -> None:
        """Stop all roles at the same time; each of them drains."""
        operators = [control.stop_operators() for control in self._controls]
        roles = [driver.close() for node in self._cluster.nodes for driver in node.drivers.values()]
        await asyncio.gather(*operators, *roles)

    async def _start_operators(self, control: SandboxDriverControl) -> None:
        try:
            await control.start_operators()
        except SandboxError as error:
            raise SandboxError(self._why(str(error))) from None

    async def _reboot(self, lost: Mapping[str, Sequence[Path]]) -> None:
        for node in self._cluster.nodes:
            releases = [control.fresh(node) for control in self._controls if control.nodes]
            await node.reboot(releases, lost.get(node.name, ()))
        await self._published(self._controls)

    async def _published(self, controls: Sequence[SandboxDriverControl]) -> None:
        """Wait until drivers are registered on each node and have published their pools, if they have any."""
        begin = time.monotonic()
        reported = False
        while waiting := [
            (control, node)
            for control in controls
            for node in control.nodes
            if not (control.on(node).serves() and await self._has_published(control.on(node), node.name))
        ]:
            self.check()
            seconds = time.monotonic() - begin
            if seconds > SLOW_CALL_SECONDS and not reported and (calls := self._hanging()):
                reported = True
                self._cluster.silent(calls)
            failed = any(control.on(node).discover_problem for control, node in waiting)
            if seconds > PUBLISH_SECONDS or (failed and seconds > _FAILED_SECONDS):
                names = " and driver ".join(dict.fromkeys(control.name for control, _ in waiting))
                raise SandboxError(
                    self._why(f"driver {names} publishes nothing on {waiting[0][1].name} within {seconds:.0f} s")
                )
            await asyncio.sleep(_POLL)

    async def _has_published(self, driver: NodeDriver, node: str) -> bool:
        followed = [item["spec"] for item in self._cluster.informers.objects(RESOURCE_SLICES).values()]
        nodes = {spec.get("nodeName") for spec in followed if spec["driver"] == driver.name}
        if node in nodes or not driver.ready:
            return node in nodes
        if None in nodes:  # slices of no node may be all that it publishes, or those of its controller role
            return True
        # it has no pools, or its slices are not followed yet
        selector = f"spec.driver={driver.name}"
        stored = (await self._cluster.client.list(RESOURCE_SLICES, field_selector=selector)).items
        return not any(item["spec"].get("nodeName") in {None, node} for item in stored)

    # --- how they are

    async def fail(self) -> None:
        """Wait until a role ends by itself, and raise why."""
        while True:
            self._ended.clear()
            self.check()
            await self._ended.wait()

    def role_ended(self) -> None:
        """Report that a role has ended, in order or not."""
        self._ended.set()

    def check(self) -> None:
        """Check whether a role has stopped unexpectedly.

        Raises:
            SandboxError: a role has stopped; the message says why.
        """
        for name, failure in self._failures():
            if failure:
                raise SandboxError(self._why(f"{name} ended: {failure}"))

    def calls(self) -> list[str]:
        """Return the calls of the drivers' code that have not returned."""
        return self._of_each(lambda control, node: control.on(node).calls())

    def _failures(self) -> Iterator[tuple[str, str]]:
        """Yield each role, and why it ended; empty while it runs."""
        for control in self._controls:
            whose = f"{control.name}'s" if len(self._controls) > 1 else "the driver's"
            for node in control.nodes:
                yield f"{whose} node role on {node.name}", control.on(node).failure
            for role in control.operators.roles if control.operators else ():
                yield f"{whose} {role.name}", role.failure

    def _why(self, text: str) -> str:
        problems = [*self._cluster.log.problems, *self._hanging()][-3:]
        return f"{text}: {'; '.join(problems) or 'it logged no problem, and discover() has not yielded an inventory'}"

    def _hanging(self) -> list[str]:
        return self._of_each(lambda control, node: control.on(node).hanging(0.0))

    def _of_each(self, lines: Callable[[SandboxDriverControl, SandboxNode], Sequence[str]]) -> list[str]:
        """Return lines of each driver on each node, with their names."""
        return [
            f"{control.name if len(self._controls) > 1 else ''} on {node.name}: {line}".lstrip()
            for node in self._cluster.nodes
            for control in self._controls
            if control.nodes  # a driver may have a controller alone
            for line in lines(control, node)
        ]
