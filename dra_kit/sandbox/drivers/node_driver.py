"""A driver on one node: started, restarted, updated and stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from pydantic import BaseModel

from dra_kit.client.credentials import Credentials
from dra_kit.errors import ConfigurationError, SandboxError
from dra_kit.kubelet.plugin_client import PluginClient
from dra_kit.node.settings import NodeSettings
from dra_kit.sandbox.drivers.process_role import CrashPoint, NodeRoleProcess
from dra_kit.sandbox.drivers.roles import NodeRoleThread
from dra_kit.sandbox.drivers.sandbox_driver import DriverRelease
from dra_kit.sandbox.kubelet.node import NodeKubelet
from dra_kit.sandbox.records import DriverEnded, DriverStarting, RecordObserver

logger: logging.Logger = logging.getLogger(__name__)
_Role: TypeAlias = NodeRoleThread | NodeRoleProcess
_POLL: Final = 0.02
_LOADS: Final = 60.0
"""Seconds in which a process has loaded its driver, on the slowest machine."""
_COMES_UP: Final = 60.0
"""Seconds in which a driver is ready that was ready before, or whose predecessor was; one takes half a second, and tens
of seconds where a suite of tests starts dozens of them at once. What fails is reported at once."""


class NodeDriver:
    """One driver at a time; while one release replaces another, two.

    Attributes:
        in_process: whether the driver runs in a separate process, which can be killed, from its next start on.
        crash: where it will be killed, see :meth:`crash_at`; None for nowhere.
        release: the release that runs, or ran last.
    """

    def __init__(
        self,
        name: str,
        kubelet: NodeKubelet,
        settings: Callable[[str | None], NodeSettings],
        directory: Path,
        observer: RecordObserver,
        *,
        credentials: Callable[[], Credentials],
    ) -> None:
        self.name = name
        self.in_process = False
        self.crash: CrashPoint | None = None
        self.release: DriverRelease | None = None
        self._kubelet = kubelet
        self._settings = settings
        self._credentials = credentials
        self._directory = directory
        self._observe = observer
        self._role: _Role | None = None
        self._pod_uid: str | None = None
        self._pods = 0
        self._processes = 0
        self._keeping: asyncio.Task[None] | None = None
        self._starting_again = asyncio.Lock()

    @property
    def author(self) -> BaseModel | None:
        """The author's settings here."""
        return self.release.author if self.release else None

    @property
    def failure(self) -> str:
        """Why the node role exited unexpectedly; empty while it runs."""
        return self._role.failure if self._role else ""

    def calls(self) -> Sequence[str]:
        """Return the calls of the driver's code that have not returned."""
        return self._role.calls() if self._role else ()

    def hanging(self, patience: float) -> Sequence[str]:
        """Return the calls older than so many seconds, and ``discover`` when it has not yielded for as long."""
        return self._role.hanging(patience) if self._role else ()

    @property
    def ready(self) -> bool:
        """Whether all parts of its role are ready: it has published its devices."""
        return self._role is not None and self._role.ready

    @property
    def discover_problem(self) -> str:
        """Why its last ``discover`` failed; empty if it did not."""
        return self._role.discover_problem if self._role else ""

    def serves(self) -> bool:
        """Return whether the kubelet knows the driver: a pod that is created before waits for more than a minute."""
        return bool(self._plugins())

    async def inject_health(self, device: str, reason: str, message: str | None, pool: str | None) -> None:
        """See :meth:`dra_kit.node.agent.NodeAgent.inject_health`.

        Raises:
            ConfigurationError: the driver has no health source, or no such device or reason here; or it does not run.
        """
        if self._role is None:
            raise ConfigurationError("the driver does not run; start it first")
        await self._role.inject_health(device, reason, message, pool)

    # --- it begins and ends

    def start(self, release: DriverRelease) -> None:
        """Start it, and do not wait.

        Raises:
            ConfigurationError: it is to run in a process, and no TARGET names it.
        """
        self._role = self._started(release, self._pod_uid)
        self.release = release

    async def stop(self) -> None:
        """Stop it as a SIGTERM would; its state stays."""
        role, self._role = self._role, None
        if role is not None:
            await self._stopped(role)

    async def close(self) -> None:
        """Stop the driver permanently."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait([keeping])
        await self.stop()

    async def restart(self, release: DriverRelease) -> None:
        """Shut the driver down, and start a release that never ran, so that nothing in memory is left."""
        await self.stop()
        while self.serves():  # until the kubelet knows, it would call what is gone  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        self.start(release)

    async def replace(self, release: DriverRelease) -> None:
        """Do a rolling update: the new release starts in a separate pod next to the old one, which is then stopped.

        Raises:
            SandboxError: the new release does not come up; it is stopped, and the old one continues to run.
            ConfigurationError: the release must run in a process, and has no TARGET.
        """
        old, before = self._role, set(self._plugins())
        self._pods += 1
        pod_uid = f"update-{self._pods}"
        new = self._started(release, pod_uid)
        try:
            up = await self._up(new, before)
        except BaseException:
            await self._stopped(new)
            raise
        if not up:
            await self._stopped(new)
            raise SandboxError(f"driver {self.name} does not come up: it was killed before it was ready")
        self._role, self.release, self._pod_uid = new, release, pod_uid
        if old is not None:
            await self._stopped(old)
        while before & set(self._plugins()):  # the kubelet must not call it any more  # noqa: ASYNC110
            await asyncio.sleep(_POLL)

    async def kill(self) -> None:
        """Kill the driver with ``kill -9`` and wait until it is gone; it stays down until :meth:`start_again`.

        Raises:
            ConfigurationError: the driver does not run as a separate process.
        """
        role = self._own_process()
        self._role = None
        await self._killed(role)

    async def lose_power(self) -> None:
        """Stop with the node: a driver in a process is killed."""
        role, self._role = self._role, None
        if isinstance(role, NodeRoleProcess):
            await self._killed(role)
        elif role is not None:
            await self._stopped(role)

    async def start_again(self, release: DriverRelease | None = None) -> None:
        """Start the killed release, or another one, in the same pod; return when it has registered with the kubelet.

        If it is already being restarted, wait for that.

        Raises:
            SandboxError: the driver does not come up.
        """
        async with self._starting_again:
            self.release = release or self.release
            while self._role is None and self.release is not None:
                before = {client for client in self._plugins() if client.connected}
                role = self._role = self._started(self.release, self._pod_uid)
                if await self._up(role, before):
                    await self._kubelet.look_again()
                elif not await self._has_crashed(role):
                    return  # it was killed from outside, and stays away

    def crash_at(self, crash: CrashPoint | None) -> None:
        """Have the driver killed once, after a step; it is restarted as the kubelet restarts a container.

        Raises:
            ConfigurationError: the driver does not run as a separate process.
        """
        role = self._own_process()
        self.crash = crash
        role.arm(crash)

    # --- inside

    def _plugins(self) -> tuple[PluginClient, ...]:
        return self._kubelet.plugins.plugins(self.name)

    async def _stopped(self, role: _Role) -> None:
        await role.stop()
        self._observe(DriverEnded(node=self._kubelet.name, driver=self.name, how="stopped"))

    async def _killed(self, role: NodeRoleProcess, step: str = "") -> None:
        await role.kill()
        message = f"after the step {step}" if step else ""
        self._observe(DriverEnded(node=self._kubelet.name, driver=self.name, how="killed", message=message))

    def _started(self, release: DriverRelease, pod_uid: str | None) -> _Role:
        self._observe(DriverStarting(node=self._kubelet.name, driver=release.driver.name))
        settings = self._settings(pod_uid)
        role: _Role
        if self.in_process:
            self._processes += 1
            role = NodeRoleProcess(release, settings, self._directory / str(self._processes), self.crash)
            if self._keeping is None:
                self._keeping = asyncio.create_task(self._keep(), name=f"{self.name} on {settings.node_name}")
        else:
            role = NodeRoleThread(release, settings, self._credentials())
        role.when_ended(lambda: self._ended(role))
        return role

    def _ended(self, role: _Role) -> None:
        if role.failure:
            self._observe(DriverEnded(node=self._kubelet.name, driver=self.name, how="failed", message=role.failure))

    async def _keep(self) -> None:
        """Start it again when it has killed itself after a step."""
        while True:
            role = self._role
            if role is not None and await self._has_crashed(role):
                try:
                    await self.start_again()
                except SandboxError as error:  # keep watching: it may come up later
                    logger.warning("driver killed after a step not started again", extra={"error": str(error)})
            await asyncio.sleep(_POLL)

    async def _has_crashed(self, role: _Role) -> bool:
        """Return whether it has killed itself after a step; it is not there any more then."""
        if not isinstance(role, NodeRoleProcess) or not (step := role.crashed_at):
            return False
        if self._role is role:
            self._role = self.crash = None
            await self._killed(role, step)
        return True

    def _own_process(self) -> NodeRoleProcess:
        role = self._role
        if not isinstance(role, NodeRoleProcess):
            why = "does not run" if role is None else "runs in a thread here"
            raise ConfigurationError(
                f"driver {self.name} {why} and cannot be killed; mark the test with @pytest.mark.dra_process, which "
                "runs it in a separate process"
            )
        return role

    async def _up(self, role: _Role, before: Collection[PluginClient]) -> bool:
        """Wait until a driver is ready and the kubelet has a connection to it; False where it is killed before.

        It may serve the kubelet before it is ready, and so come to the step after which it is killed.
        """
        last, loaded = time.monotonic() + _LOADS, False
        while not (role.ready and any(item.connected and item not in before for item in self._plugins())):
            if role.begun and not loaded:
                last, loaded = time.monotonic() + _COMES_UP, True
            if isinstance(role, NodeRoleProcess) and role.killed:
                return False
            if role.failure or time.monotonic() > last:
                reason = role.failure or _late(role, loaded=loaded)
                raise SandboxError(f"driver {self.name} does not come up: {reason}")
            await asyncio.sleep(_POLL)
        return True


def _late(role: _Role, *, loaded: bool) -> str:
    """Return what a driver has not done in its time, and where to look."""
    if not loaded:
        return f"its module has not been imported within {_LOADS:.0f} s; see what it waits for when it is imported"
    missing = "the kubelet is not connected to it" if role.ready else "not all of its parts are ready"
    calls = "; not returned: " + ", ".join(role.calls()) if role.calls() else ""
    return f"within {_COMES_UP:g} s {missing}{calls}; see its log for what startup and discover wait for"
