"""Plugins of a node: found by their sockets, registered, selected, and their slices wiped when they are gone.

Sources: ``pkg/kubelet/pluginmanager/pluginwatcher``,
``pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go`` and
``pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go`` of Kubernetes 1.37.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import random
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

import grpc.aio
from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.errors import KubeError, KubeletError
from dra_kit.kubelet.plugin_client import (
    CALL_TIMEOUT,
    GET_INFO_TIMEOUT,
    RECONNECT_SECONDS,
    SUPPORTED_SERVICES,
    DeviceAnswer,
    HealthCache,
    PluginClient,
    PluginInfo,
    SocketIdentity,
    check_prepared,
    check_registration,
    check_unprepared,
    find_sockets,
    get_info,
    open_channel,
    rpc_error_text,
    select_health_service,
    select_service,
)
from dra_kit.kubelet.plugin_server import PLUGIN_TYPE
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as pb
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as pb_grpc
from dra_kit.kubelet.sockets import SOCKET_PATH_MAX
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.records import PluginConnected, PluginDisconnected, RecordObserver, SlicesWiped

log: logging.Logger = logging.getLogger(__name__)
# a registration that failed is repeated after half a second, then after twice as long each time (kubelet 1.37)
_FIRST_DELAY = 0.5
_LAST_DELAY = 122.0


class PluginManager:
    """The part of a kubelet that manages DRA plugins; an asynchronous context manager that runs it.

    Args:
        kubelet_dir: the kubelet's root directory; plugins register in ``plugins_registry`` below it.
        supported_services: DRA services it supports; ``("v1beta1.DRAPlugin",)`` for a kubelet of 1.32 or 1.33.
        time_scale: the waits between two attempts to register a plugin are divided by this.
        connection_changed: called with a driver's name when the result of :meth:`connected` may have changed.
        health_changed: called with a driver's name when the result of :meth:`health` may have changed.
        refused: called with the registration socket and the reason after each attempt that failed.
        endpoint_path: returns where the kubelet finds the socket that a plugin names.
        release: whose kubelet it is.
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
        refused: Callable[[Path, str], None] = lambda *_: None,
        endpoint_path: Callable[[str], Path] = Path,
        release: Release,
    ) -> None:
        self._release = release
        self._endpoint_path = endpoint_path
        self._refused = refused
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

    async def __aexit__(self, *_: object) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])
            if not watcher.cancelled():
                watcher.result()

    async def restart(self) -> None:
        """Forget every plugin and every connection, then find and register the plugins again."""
        await self.__aexit__()
        await self.__aenter__()

    @property
    def refusals(self) -> Mapping[Path, str]:
        """Why the last attempt failed, by registration socket, for the plugins that are not registered."""
        return MappingProxyType(self._refusals)

    @property
    def registrations(self) -> Mapping[Path, str]:
        """The drivers that are registered, by registration socket."""
        return {socket: driver for socket, (driver, _) in self._plugins.items()}

    def plugins(self, driver: str) -> tuple[PluginClient, ...]:
        """Return the registered instances of a driver, oldest first; a rolling update has two."""
        return tuple(client for name, client in self._plugins.values() if name == driver)

    def plugin(self, driver: str) -> PluginClient:
        """Return the instance to call: the connected instance that registered last, or else the last one registered.

        Raises:
            KubeletError: no instance is registered.
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
            KubeletError: none was registered within ``timeout`` seconds; the message lists rejected registrations.
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

    async def prepare(self, driver: str, claims: Sequence[ClaimReference]) -> dict[str, tuple[DeviceAnswer, ...]]:
        """Have the driver prepare the claims of a pod, in one call; the devices by claim UID.

        Raises:
            KubeletError: the pod could not start; the text is the message of the pod's Event.
        """
        return check_prepared(claims, await self.plugin(driver).prepare(claims))

    async def unprepare(self, driver: str, claims: Sequence[ClaimReference]) -> None:
        """Have the driver release the claims of a pod, in one call.

        Raises:
            KubeletError: the pod would stay terminating; the text is that of the kubelet's log.
        """
        check_unprepared(claims, await self.plugin(driver).unprepare(claims))

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return health and message of a device by its driver; ``Unknown`` where it reports none."""
        return self._health.health(driver, pool, device)

    async def _watch(self) -> None:
        keepers: dict[Path, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group, aclosing(watch_sockets(self._registry)) as changes:
            async for change in changes:
                for path in change.removed:
                    keeper = keepers.pop(path)
                    keeper.cancel()
                    await asyncio.wait([keeper])
                for path in change.added:
                    keepers[path] = group.create_task(self._keep_registered(path))

    async def _keep_registered(self, socket: Path) -> None:
        """Register the plugin behind a socket, with repetition, and forget it when cancelled."""
        delay = _FIRST_DELAY
        try:
            while (refusal := await self._register(socket)) is not None:
                wait = delay / self._time_scale
                self._refused(socket, f"{refusal}; the kubelet tries again after {wait:g} s")
                await asyncio.sleep(wait)
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
        """Receive the device health that a plugin reports, and open the stream again when it ends."""
        while True:
            try:
                async for report in client.health():
                    self._health.take(driver, report)
            except KubeletError as error:
                log.info("health of driver %s is not known: %s", driver, error)
            finally:
                self._health.clear(driver)
            await asyncio.sleep(RECONNECT_SECONDS / self._time_scale)

    async def _register(self, socket: Path) -> KubeletError | None:
        """Make one attempt; return why it failed."""

        def accept(info: PluginInfo) -> None:
            check_registration(info, self._release)
            service = select_service(info, self._supported_services)
            if any(client.endpoint == str(self._endpoint_path(info.endpoint)) for client in self.plugins(info.name)):
                raise KubeletError(
                    "RegisterPlugin error -- plugin registration failed with err: "
                    f"endpoint {info.endpoint} already registered for DRA driver plugin {info.name}"
                )
            health_service = select_health_service(info.supported_versions, self._release)
            endpoint = str(self._endpoint_path(info.endpoint))
            client = PluginClient(endpoint, service, timeout=self._call_timeout, health_service=health_service)
            self._plugins[socket] = (info.name, client)

        try:
            await register_plugin(socket, accept, get_info_timeout=self._get_info_timeout)
        except KubeletError as error:
            self._refusals[socket] = str(error)
            await self._forget(socket)
            return error
        self._refusals.pop(socket, None)
        return None

    async def _forget(self, socket: Path) -> None:
        if plugin := self._plugins.pop(socket, None):
            driver, client = plugin
            await client.close()
            self._connection_changed(driver)


POLL_INTERVAL = 0.1
"""Seconds between two polls if the kernel reports no changes; the kubelet's reconciler runs once per second."""


class SocketChanges(Struct, frozen=True):
    """What is different from the look before; a socket that was replaced is in both."""

    removed: tuple[Path, ...]
    added: tuple[Path, ...]


async def watch_sockets(directory: Path) -> AsyncGenerator[SocketChanges, None]:
    """Yield changes, at first everything that is there; end only when its consumer stops."""
    known: dict[Path, SocketIdentity] = {}
    with closing(DirectoryEvents()) as events:
        while True:
            present = find_sockets(directory, events.watch)
            change = SocketChanges(
                removed=tuple(path for path, identity in known.items() if present.get(path) != identity),
                added=tuple(path for path, identity in present.items() if known.get(path) != identity),
            )
            known = present
            if change.removed or change.added:
                yield change
            await events.wait(POLL_INTERVAL)


_COMES_OR_GOES: Final = 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_DELETE_SELF and IN_MOVE_SELF of ``linux/inotify.h``."""
_BLOCK: Final = 1 << 16


class DirectoryEvents:
    """Watches directories in the running event loop, until it is closed.

    If the kernel cannot watch a directory, because it is missing or there are too many watches, :meth:`wait` returns
    after a while instead, so that its caller polls.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._add = libc.inotify_add_watch
        self._descriptor: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._event = asyncio.Event()
        self._unwatched = False
        if self._descriptor >= 0:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def watch(self, directory: Path) -> None:
        """Watch a directory from now on, but none below it; again and again does no harm."""
        if self._descriptor < 0 or self._add(self._descriptor, os.fsencode(directory), _COMES_OR_GOES) < 0:
            self._unwatched = True

    async def wait(self, longest: float) -> None:
        """Wait for a change since the last time, at most ``longest`` seconds if a directory is not watched."""
        unwatched, self._unwatched = self._unwatched, False
        with suppress(TimeoutError):
            async with asyncio.timeout(longest if unwatched else None):
                await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        """End it."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._descriptor, _BLOCK):
                pass  # the event itself is ignored: the caller reads the directories
        self._event.set()


NOTIFY_TIMEOUT = 5.0
"""Seconds the kubelet waits for NotifyRegistrationStatus."""


async def register_plugin(
    socket: Path,
    accept: Callable[[PluginInfo], None],
    *,
    get_info_timeout: float = GET_INFO_TIMEOUT,
    notify_timeout: float = NOTIFY_TIMEOUT,
) -> PluginInfo:
    """Make one attempt: ask the plugin for its name, let ``accept`` decide, and notify the plugin.

    A KubeletError from ``accept`` refuses the plugin with that text. The registration socket is the endpoint too when
    the plugin names none.

    Raises:
        KubeletError: no answer, or refused. When the plugin was accepted but could not be notified, ``accept`` has been
            called, and the caller must forget the plugin again, as the kubelet does.
    """
    _dial(socket)
    async with open_channel(str(socket)) as channel:
        stub = pb_grpc.RegistrationStub(channel)
        info = await get_info(stub, socket, get_info_timeout)
        refusal = _refusal(info, socket, accept)
        verdict = pb.RegistrationStatus(plugin_registered=refusal is None, error=str(refusal or ""))
        try:
            await stub.NotifyRegistrationStatus(verdict, timeout=notify_timeout)
        except grpc.aio.AioRpcError as error:
            if refusal is None:
                raise KubeletError(
                    "RegisterPlugin error -- failed to send registration status at socket "
                    f"{socket}, err: {rpc_error_text(error)}"
                ) from error
        if refusal is not None:
            raise refusal
    return info


def _dial(path: Path) -> None:
    """Connect to a socket and disconnect again: gRPC reports failures in its own words, on standard error.

    Raises:
        KubeletError: nothing can be reached there.
    """
    size, reason = len(os.fsencode(path)), ""
    if size > SOCKET_PATH_MAX:
        reason = f"invalid argument (its path has {size} bytes, and a unix socket's at most {SOCKET_PATH_MAX})"
    else:
        with socket.socket(socket.AF_UNIX) as found:
            found.setblocking(False)
            try:
                found.connect(str(path))
            except BlockingIOError:
                pass  # others are waiting for it, too
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
    if reason:
        raise KubeletError(
            f"RegisterPlugin error -- dial failed at socket {path}, err: "
            f"failed to dial socket {path}, err: dial unix {path}: connect: {reason}"
        )


def _refusal(info: PluginInfo, socket: Path, accept: Callable[[PluginInfo], None]) -> KubeletError | None:
    if info.type != PLUGIN_TYPE:
        return KubeletError(
            f"RegisterPlugin error -- no handler registered for plugin type: {info.type} at socket {socket}"
        )
    try:
        accept(info)
    except KubeletError as error:
        return error
    return None


WIPING_DELAY: Final = 30.0
"""Seconds that a driver may be without a connection."""
_FIRST_RETRY: Final = 1.0
_LAST_RETRY: Final = 300.0


class SliceWiper:
    """Deletes the node's ResourceSlices of drivers that are disconnected for ``delay`` / ``time_scale`` seconds.

    Slices that do not name a node are left alone.
    """

    def __init__(
        self,
        client: Client,
        node_name: str,
        connected: Callable[[str], bool],
        *,
        delay: float = WIPING_DELAY,
        time_scale: float,
        observer: RecordObserver,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._connected = connected
        self._delay = delay
        self._time_scale = time_scale
        self._observe = observer
        self._known: set[str] = set()
        self._due: dict[str, float] = {}  # drivers without a connection, and when their slices go
        self._news = asyncio.Event()

    def changed(self, driver: str) -> None:
        """Check a driver's connections: losing the last one starts the delay, and a new one cancels it."""
        connected = self._connected(driver)
        if connected == (driver in self._known):
            return
        kind = PluginConnected if connected else PluginDisconnected
        self._observe(kind(node=self._node_name, driver=driver))
        if connected:
            self._known.add(driver)
            self._due.pop(driver, None)
        else:
            self._known.discard(driver)
            self._due[driver] = time.monotonic() + self._delay / self._time_scale
        self._news.set()

    async def run(self) -> None:
        """Delete what is due, until cancelled."""
        while True:
            self._news.clear()
            pause = min(self._due.values()) - time.monotonic() if self._due else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
            for driver, due in [item for item in self._due.items() if item[1] <= time.monotonic()]:
                await self._wipe(driver, due)
                # else the driver reconnected and disconnected meanwhile: a new delay has started
                if self._due.get(driver) == due:
                    del self._due[driver]

    async def wipe_all(self) -> None:
        """Delete the node's slices of all drivers: again and again until the API server has done it."""
        await self._wipe("", None)

    async def _wipe(self, driver: str, due: float | None) -> None:
        selector = f"spec.nodeName={self._node_name}" + (f",spec.driver={driver}" if driver else "")
        delay = _FIRST_RETRY
        while self._due.get(driver) == due:
            try:
                await self._client.delete_collection(RESOURCE_SLICES, field_selector=selector)
            except KubeError as error:
                log.warning("ResourceSlices of node %s cannot be deleted now: %s", self._node_name, error)
                await asyncio.sleep(delay * random.uniform(1.0, 1.2) / self._time_scale)  # noqa: S311 - no secret
                delay = min(delay * 2, _LAST_RETRY)
            else:
                self._observe(SlicesWiped(node=self._node_name, driver=driver))
                return
