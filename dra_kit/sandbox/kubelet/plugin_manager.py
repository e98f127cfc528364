"""The DRA part of a kubelet in one object: finds plugins, registers them, and calls the right one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from dra_kit.errors import KubeletError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.cluster.kubelet.dra.health import RECONNECT_SECONDS, HealthCache, select_health_service
from dra_kit.sandbox.cluster.kubelet.dra.plugin import (
    CALL_TIMEOUT,
    Device,
    PluginClient,
    check_prepared,
    check_unprepared,
)
from dra_kit.sandbox.cluster.kubelet.dra.registration import (
    GET_INFO_TIMEOUT,
    SUPPORTED_SERVICES,
    PluginInfo,
    register,
    select_service,
)
from dra_kit.sandbox.cluster.kubelet.dra.registry import POLL_INTERVAL, watch_sockets

log: logging.Logger = logging.getLogger(__name__)

# a registration that failed is repeated after half a second, then after twice as long each time (kubelet 1.37)
_FIRST_DELAY = 0.5
_LAST_DELAY = 122.0


class Kubelet:
    """A kubelet that knows nothing but DRA plugins; an asynchronous context manager that runs it.

    Args:
        kubelet_dir: its root directory; plugins register in ``plugins_registry`` below.
        supported_services: DRA services it knows; give ``("v1beta1.DRAPlugin",)`` for a kubelet of 1.32 or 1.33.
        get_info_timeout: seconds for GetInfo.
        call_timeout: seconds for a prepare or unprepare.
        time_scale: the waits between two attempts to register a plugin are divided by this.
        connection_changed: called with a driver's name whenever :meth:`connected` may say something new of it.
        health_changed: called with a driver's name whenever :meth:`health` may say something new of its devices.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        *,
        supported_services: Sequence[str] = SUPPORTED_SERVICES,
        get_info_timeout: float = GET_INFO_TIMEOUT,
        call_timeout: float = CALL_TIMEOUT,
        time_scale: float = 1.0,
        connection_changed: Callable[[str], None] = lambda _: None,
        health_changed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._registry = kubelet_dir / "plugins_registry"
        self._supported_services = tuple(supported_services)
        self._get_info_timeout = get_info_timeout
        self._call_timeout = call_timeout
        self._time_scale = time_scale
        self._connection_changed = connection_changed
        self._health = HealthCache(health_changed)
        self._plugins: dict[Path, tuple[str, PluginClient]] = {}  # by registration socket, oldest first
        self._refusals: dict[Path, str] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch(), name="kubelet plugin watcher")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])
            if not watcher.cancelled():
                watcher.result()

    async def restart(self) -> None:
        """Forget every plugin and every connection, then find and register the plugins again."""
        await self.__aexit__(None, None, None)
        await self.__aenter__()

    @property
    def refusals(self) -> Mapping[Path, str]:
        """Why the last attempt failed, by registration socket, for the plugins that are not registered."""
        return MappingProxyType(self._refusals)

    def plugins(self, driver: str) -> tuple[PluginClient, ...]:
        """Return the registered instances of a driver, oldest first; a rolling update has two."""
        return tuple(client for name, client in self._plugins.values() if name == driver)

    def plugin(self, driver: str) -> PluginClient:
        """Return the instance that is called: the one registered last among those connected, or else the last.

        Raises:
            KubeletError: there is none.
        """
        instances = self.plugins(driver)
        if not instances:
            raise KubeletError(f"DRA driver {driver} is not registered")
        return next((client for client in reversed(instances) if client.connected), instances[-1])

    def connected(self, driver: str) -> bool:
        """Return whether there is a connection to any instance of a driver."""
        return any(client.connected for client in self.plugins(driver))

    async def wait_for_plugin(self, driver: str, *, timeout: float = 30.0) -> PluginClient:
        """Return the driver's instance once one is registered.

        Raises:
            KubeletError: none was registered within ``timeout`` seconds; the text has what was refused meanwhile.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self.plugins(driver):
                    if self._watcher is not None and self._watcher.done():
                        self._watcher.result()
                    await asyncio.sleep(POLL_INTERVAL)
        except TimeoutError:
            refused = "".join(f"; {text}" for text in self._refusals.values())
            raise KubeletError(f"DRA driver {driver} is not registered{refused}") from None
        return self.plugin(driver)

    async def prepare(self, driver: str, claims: Sequence[ClaimReference]) -> dict[str, tuple[Device, ...]]:
        """Have the driver prepare the claims of a pod, in one call; the devices by claim UID.

        Raises:
            KubeletError: the pod could not start, in the words of the pod's event.
        """
        return check_prepared(claims, await self.plugin(driver).prepare(claims))

    async def unprepare(self, driver: str, claims: Sequence[ClaimReference]) -> None:
        """Have the driver release the claims of a pod, in one call.

        Raises:
            KubeletError: the pod would stay terminating, in the words of the kubelet's log.
        """
        check_unprepared(claims, await self.plugin(driver).unprepare(claims))

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return health and message of a device by its driver; ``Unknown`` where it reports none."""
        return self._health.health(driver, pool, device)

    async def _watch(self) -> None:
        keepers: dict[Path, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group, aclosing(watch_sockets(self._registry)) as changes:
            async for change in changes:
                for socket in change.removed:
                    keeper = keepers.pop(socket)
                    keeper.cancel()
                    await asyncio.wait([keeper])
                for socket in change.added:
                    keepers[socket] = group.create_task(self._keep_registered(socket))

    async def _keep_registered(self, socket: Path) -> None:
        """Register the plugin behind a socket, with repetition, and forget it when cancelled."""
        delay = _FIRST_DELAY
        try:
            while not await self._register(socket):
                await asyncio.sleep(delay / self._time_scale)
                delay = min(delay * 2, _LAST_DELAY)
            driver, client = self._plugins[socket]
            async with asyncio.TaskGroup() as group, aclosing(client.connection()) as changes:
                if client.health_service is not None:
                    group.create_task(self._keep_watching(driver, client), name=f"health of {driver}")
                async for _ in changes:
                    self._connection_changed(driver)
        finally:
            self._refusals.pop(socket, None)
            await self._forget(socket)

    async def _keep_watching(self, driver: str, client: PluginClient) -> None:
        """Take what a plugin tells of its devices' health, and open the stream again when it ends."""
        while True:
            try:
                async for report in client.health():
                    self._health.take(driver, report)
            except KubeletError as error:
                log.info("health of driver %s is not known: %s", driver, error)
            finally:
                self._health.clear(driver)
            await asyncio.sleep(RECONNECT_SECONDS / self._time_scale)

    async def _register(self, socket: Path) -> bool:
        def accept(info: PluginInfo) -> None:
            service = select_service(info, self._supported_services)
            if any(client.endpoint == info.endpoint for client in self.plugins(info.name)):
                raise KubeletError(
                    "RegisterPlugin error -- plugin registration failed with err: "
                    f"endpoint {info.endpoint} already registered for DRA driver plugin {info.name}"
                )
            health_service = select_health_service(info.supported_versions)
            client = PluginClient(info.endpoint, service, timeout=self._call_timeout, health_service=health_service)
            self._plugins[socket] = (info.name, client)

        try:
            await register(socket, accept, get_info_timeout=self._get_info_timeout)
        except KubeletError as error:
            self._refusals[socket] = str(error)
            await self._forget(socket)
            return False
        self._refusals.pop(socket, None)
        return True

    async def _forget(self, socket: Path) -> None:
        if plugin := self._plugins.pop(socket, None):
            driver, client = plugin
            await client.close()
            self._connection_changed(driver)
