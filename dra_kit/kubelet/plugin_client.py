"""The kubelet's connection to a driver: its sockets, prepare and unprepare calls, and the health of devices.

Also the connection of one driver to another one on the same node.

Source: Kubernetes 1.37 ``pkg/kubelet/cm/dra/plugin/dra_plugin.go`` and ``pkg/kubelet/cm/dra/healthinfo.go``.
"""

from __future__ import annotations

import asyncio
import json
import re
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import grpc.aio
from msgspec import Struct
from typing_extensions import override

from dra_kit.author.calls import PendingResult
from dra_kit.author.context import OtherDevice, OtherDriver
from dra_kit.errors import KubeletError, TransientError
from dra_kit.kubelet.plugin_server import PLUGIN_TYPE
from dra_kit.kubelet.proto import dra_health_v1_pb2 as health_v1
from dra_kit.kubelet.proto import dra_health_v1_pb2_grpc as health_v1_grpc
from dra_kit.kubelet.proto import dra_health_v1alpha1_pb2 as health_v1alpha1
from dra_kit.kubelet.proto import dra_health_v1alpha1_pb2_grpc as health_v1alpha1_grpc
from dra_kit.kubelet.proto import dra_v1_pb2 as v1
from dra_kit.kubelet.proto import dra_v1_pb2_grpc as v1_grpc
from dra_kit.kubelet.proto import dra_v1beta1_pb2 as v1beta1
from dra_kit.kubelet.proto import dra_v1beta1_pb2_grpc as v1beta1_grpc
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as pb
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as pb_grpc
from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.resource.names import driver_name
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.values.json import byte_length

T = TypeVar("T")
CALL_TIMEOUT = 45.0
"""Seconds the kubelet waits for NodePrepareResources and NodeUnprepareResources."""


class DeviceAnswer(Struct, frozen=True):
    """A prepared device as the driver describes it; no request names means that it serves every request."""

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None


class ClaimAnswer(Struct, frozen=True):
    """A driver's answer for one claim; ignore ``devices`` if ``error`` is set."""

    devices: tuple[DeviceAnswer, ...]
    error: str = ""


class PluginClient:
    """One connection to a driver's service socket, through which all calls go.

    Args:
        service: ``v1.DRAPlugin`` or ``v1beta1.DRAPlugin``, as :func:`select_service` returned it.
        health_service: as ``health.select_health_service`` returned it; None for a plugin that serves none.
    """

    def __init__(
        self, endpoint: str, service: str, *, timeout: float = CALL_TIMEOUT, health_service: str | None = None
    ) -> None:
        self.endpoint = endpoint
        self.service = service
        self.health_service = health_service
        self._timeout = timeout
        self._channel = open_channel(endpoint)
        self._v1 = v1_grpc.DRAPluginStub(self._channel)
        self._v1beta1 = v1beta1_grpc.DRAPluginStub(self._channel)
        self._channel.get_state(try_to_connect=True)  # the kubelet does not wait for the first call either

    @property
    def connected(self) -> bool:
        """Whether the connection is up: the kubelet's measure of a plugin's liveness since 1.34."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def connection(self) -> AsyncGenerator[bool, None]:
        """Yield whether the connection is up, now and after every change; a lost connection is restored."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            yield state is grpc.ChannelConnectivity.READY
            await self._channel.wait_for_state_change(state)

    async def prepare(self, claims: Sequence[ClaimReference]) -> dict[str, ClaimAnswer]:
        """Call NodePrepareResources for all claims at once; return the driver's answers by UID, as they came.

        Raises:
            KubeletError: the call failed.
        """
        request = v1.NodePrepareResourcesRequest(claims=_messages(claims))
        answer: v1.NodePrepareResourcesResponse | v1beta1.NodePrepareResourcesResponse
        with _failures("NodePrepareResources"):
            if self.service == "v1.DRAPlugin":
                answer = await self._v1.NodePrepareResources(request, timeout=self._timeout)
            else:
                older = v1beta1.NodePrepareResourcesRequest.FromString(request.SerializeToString())
                answer = await self._v1beta1.NodePrepareResources(older, timeout=self._timeout)
        return {
            uid: ClaimAnswer(devices=tuple(map(_device_answer, entry.devices)), error=entry.error)
            for uid, entry in answer.claims.items()
        }

    async def unprepare(self, claims: Sequence[ClaimReference]) -> dict[str, str]:
        """Call NodeUnprepareResources for all claims at once; return the error texts by UID, empty for done.

        Raises:
            KubeletError: the call failed.
        """
        request = v1.NodeUnprepareResourcesRequest(claims=_messages(claims))
        answer: v1.NodeUnprepareResourcesResponse | v1beta1.NodeUnprepareResourcesResponse
        with _failures("NodeUnprepareResources"):
            if self.service == "v1.DRAPlugin":
                answer = await self._v1.NodeUnprepareResources(request, timeout=self._timeout)
            else:
                older = v1beta1.NodeUnprepareResourcesRequest.FromString(request.SerializeToString())
                answer = await self._v1beta1.NodeUnprepareResources(older, timeout=self._timeout)
        return {uid: entry.error for uid, entry in answer.claims.items()}

    async def health(self) -> AsyncIterator[list[LeasedHealth]]:
        """Yield the reports of the plugin's health service, until the stream ends; none without such a service.

        Raises:
            KubeletError: the stream is broken.
        """
        with _failures("NodeWatchResources"):
            if self.health_service == HEALTH_SERVICES[0]:
                stub = health_v1_grpc.DRAResourceHealthStub(self._channel)
                async for report in stub.NodeWatchResources(health_v1.NodeWatchResourcesRequest()):
                    yield [_reported_health(item) for item in report.devices]
            elif self.health_service is not None:
                older = health_v1alpha1_grpc.DRAResourceHealthStub(self._channel)
                async for one in older.NodeWatchResources(health_v1alpha1.NodeWatchResourcesRequest()):
                    yield [_reported_health(item) for item in one.devices]

    async def close(self) -> None:
        """End the connection; calls in progress fail."""
        await self._channel.close(grace=None)


@contextmanager
def _failures(call: str) -> Iterator[None]:
    """Raise a KubeletError for a call that fails, or that the end of its connection cancels."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise KubeletError(f"{call}: {rpc_error_text(error)}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # gRPC cancels calls that wait for the answer; the text is that of grpc-go
        raise KubeletError(
            f"{call}: rpc error: code = Canceled desc = grpc: the client connection is closing"
        ) from None


def check_prepared(
    claims: Sequence[ClaimReference], answers: Mapping[str, ClaimAnswer]
) -> dict[str, tuple[DeviceAnswer, ...]]:
    """Check a driver's answers to one NodePrepareResources, as the kubelet does; return devices by UID.

    Raises:
        KubeletError: an answer that aborts the start of the pod.
    """
    _check("NodePrepareResources", claims, {uid: answer.error for uid, answer in answers.items()})
    return {uid: answer.devices for uid, answer in answers.items()}


def check_unprepared(claims: Sequence[ClaimReference], answers: Mapping[str, str]) -> None:
    """Check a driver's answers to one NodeUnprepareResources, as the kubelet does.

    Raises:
        KubeletError: an answer that keeps the pod terminating.
    """
    _check("NodeUnprepareResources", claims, answers)


def _check(call: str, claims: Sequence[ClaimReference], errors: Mapping[str, str]) -> None:
    names = {claim.uid: claim.name for claim in claims}
    for uid, error in errors.items():
        if uid not in names:
            raise KubeletError(f"{call} returned result for unknown claim UID {uid}")
        if error:
            raise KubeletError(f"{call} failed for ResourceClaim {names[uid]}: {error}")
    if unanswered := len(claims) - len(errors):
        raise KubeletError(f"{call} skipped {unanswered} ResourceClaims")


def _device_answer(device: v1.Device | v1beta1.Device) -> DeviceAnswer:
    return DeviceAnswer(
        request_names=tuple(device.request_names),
        pool_name=device.pool_name,
        device_name=device.device_name,
        cdi_device_ids=tuple(device.cdi_device_ids),
        share_id=device.share_id if isinstance(device, v1.Device) and device.HasField("share_id") else None,
    )


def _messages(claims: Sequence[ClaimReference]) -> list[v1.Claim]:
    return [v1.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]


def open_channel(path: str) -> grpc.aio.Channel:
    """Return a channel to the socket at ``path``, connected at the first call and again when it is lost.

    Each channel has its own connection; by default, gRPC shares one between channels with the same target.
    """
    return grpc.aio.insecure_channel(
        f"unix:{quote(path)}",
        options=[
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", 16 * 1024 * 1024),
        ],
    )


def rpc_error_text(error: grpc.aio.AioRpcError) -> str:
    """Return the text of grpc-go for the same error: ``rpc error: code = DeadlineExceeded desc = ...``."""
    code = "".join(word.capitalize() for word in error.code().name.split("_"))
    return f"rpc error: code = {_GO_SPELLING.get(code, code)} desc = {error.details() or ''}"


_GO_SPELLING = {"Ok": "OK", "Cancelled": "Canceled"}
HEALTH_SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Health services that kubelets of 1.37 and newer call, the one that they prefer first; older ones call the last."""
RECONNECT_SECONDS: Final = 5.0
"""Seconds until a stream that ended is opened again."""
PoolDevice = tuple[str, str]
"""Pool and name."""


class LeasedHealth(Struct, frozen=True):
    """What a driver says of a device, and for how many seconds it may be believed."""

    device: PoolDevice
    status: str
    message: str
    lease: float


def select_health_service(supported_versions: Sequence[str], release: Release) -> str | None:
    """Return the first choice of a release's kubelet among the services that a plugin advertises; None for none."""
    known = HEALTH_SERVICES if release.has(Change.HEALTH_HAS_V1) else HEALTH_SERVICES[1:]
    return next((service for service in known if service in supported_versions), None)


class HealthCache:
    """What drivers reported; ``changed`` is called with the name of one when something may be different."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._known: dict[str, dict[PoolDevice, tuple[LeasedHealth, asyncio.TimerHandle]]] = {}

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return status and message of a device."""
        known = self._known.get(driver, {}).get((pool, device))
        return (known[0].status, known[0].message) if known else ("Unknown", "")

    def take(self, driver: str, report: Sequence[LeasedHealth]) -> None:
        """Take a report of a driver; devices that are not in it stay as they are until their time is over."""
        known = self._known.setdefault(driver, {})
        loop = asyncio.get_running_loop()
        different = False
        for item in report:
            before = known.get(item.device)
            if before is not None:
                before[1].cancel()
            known[item.device] = item, loop.call_later(item.lease, self._expire, driver, item.device)
            different = different or before is None or before[0] != item
        if different:
            self._changed(driver)

    def clear(self, driver: str) -> None:
        """Clear the health of a driver whose stream has ended: it is unknown until the next report."""
        known = self._known.pop(driver, {})
        for _, timer in known.values():
            timer.cancel()
        if known:
            self._changed(driver)

    def _expire(self, driver: str, device: PoolDevice) -> None:
        self._known.get(driver, {}).pop(device, None)
        self._changed(driver)


_LEASE: Final = 30.0  # seconds, where a driver does not say how long it may be believed
_MESSAGE_MAX: Final = 1024
_STATUS: Final[Mapping[int, str]] = {
    health_v1.UNKNOWN: "Unknown",
    health_v1.HEALTHY: "Healthy",
    health_v1.UNHEALTHY: "Unhealthy",
}


def _reported_health(item: health_v1.DeviceHealth | health_v1alpha1.DeviceHealth) -> LeasedHealth:
    message = item.message if len(item.message) <= _MESSAGE_MAX else f"{item.message[: _MESSAGE_MAX - 3]}..."
    lease = float(item.health_check_timeout_seconds)
    place = item.device.pool_name, item.device.device_name
    return LeasedHealth(place, _STATUS.get(item.health, "Unknown"), message, lease if lease > 0 else _LEASE)


SUPPORTED_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""DRA services that a kubelet of 1.34 and newer calls; 1.32 and 1.33 know only the second."""
GET_INFO_TIMEOUT = 1.0
"""Seconds the kubelet waits for GetInfo."""


class PluginInfo(Struct, frozen=True):
    """The answer of a plugin to GetInfo; ``endpoint`` is never empty."""

    type: str
    name: str
    endpoint: str
    supported_versions: tuple[str, ...]


def select_service(info: PluginInfo, supported: Sequence[str] = SUPPORTED_SERVICES) -> str:
    """Return the first entry of the plugin's list that the kubelet supports.

    Raises:
        KubeletError: there is none.
    """
    for service in info.supported_versions:
        if service in supported:
            return service
    if info.supported_versions:
        reason = (
            f"none of services supported by the plugin ({_quoted(info.supported_versions)}) are supported by the "
            f"kubelet ({_quoted(supported)})"
        )
    else:
        reason = "empty list of supported gRPC services (aka supported versions)"
    raise KubeletError(
        f"{_VALIDATION_FAILED}invalid supported gRPC versions of DRA driver "
        f"plugin {info.name} at endpoint {info.endpoint}: {reason}"
    )


ENDPOINT_MAX: Final = 108
"""Bytes of a socket's path with the one that ends it: the endpoint of a plugin has fewer."""
_VALIDATION_FAILED: Final = "RegisterPlugin error -- plugin validation failed with err: "
_CHANGED_IN_URLS: Final = re.compile(r"^//|[%?#\x00-\x1f\x7f]")
"""What a URL's parser rejects or changes in a path."""


def check_registration(info: PluginInfo, release: Release) -> None:
    """Check driver name and endpoint of a plugin, as kubelets do since 1.38 (``dra_plugin_manager.go``).

    Raises:
        KubeletError: one of them is invalid.
    """
    if not release.has(Change.REGISTRATIONS_ARE_CHECKED):
        return
    errors = [str(error) for error in driver_name(info.name, "driverName")]
    if errors:
        shown = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        raise KubeletError(f"{_VALIDATION_FAILED}invalid DRA driver name: {shown}")
    problem = ""
    if not info.endpoint.startswith("/"):
        problem = "must be an absolute path"
    elif byte_length(info.endpoint) >= ENDPOINT_MAX:
        problem = f"must not be longer than {ENDPOINT_MAX} bytes"
    elif _CHANGED_IN_URLS.search(info.endpoint):
        problem = "must be a plain path"
    if problem:
        raise KubeletError(f"{_VALIDATION_FAILED}DRA plugin endpoint {go_quote(info.endpoint)} {problem}")


async def get_info(stub: pb_grpc.RegistrationAsyncStub, socket: Path, timeout: float) -> PluginInfo:
    """Ask the plugin behind a registration socket for its name and its endpoint.

    Raises:
        KubeletError: it does not answer.
    """
    try:
        answer = await stub.GetInfo(pb.InfoRequest(), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        raise KubeletError(
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket "
            f"{socket}, err: {rpc_error_text(error)}"
        ) from error
    return PluginInfo(
        type=answer.type,
        name=answer.name,
        endpoint=answer.endpoint or str(socket),
        supported_versions=tuple(answer.supported_versions),
    )


SocketIdentity = tuple[int, int, int]
"""Device, inode and time of creation in nanoseconds: a new socket may get the inode of the previous one."""


def find_sockets(directory: Path, enter: Callable[[Path], None] = lambda _: None) -> dict[Path, SocketIdentity]:
    """Find Unix sockets in a directory, if it exists, and below; skip names that begin with a dot.

    Call ``enter`` with each directory before it is read.
    """
    return dict(sorted(_walk(directory, enter)))


def _walk(directory: Path, enter: Callable[[Path], None]) -> Iterator[tuple[Path, SocketIdentity]]:
    enter(directory)
    try:
        entries = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in entries:
        if path.name.startswith("."):
            continue
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # gone since the directory was read
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, enter)
        elif stat.S_ISSOCK(status.st_mode):
            yield path, (status.st_dev, status.st_ino, status.st_mtime_ns)


def _quoted(names: Sequence[str]) -> str:
    """Return a list as Go prints it with %q."""
    return f"[{' '.join(json.dumps(name, ensure_ascii=False) for name in names)}]"


class RegisteredDriver(OtherDriver):
    """A driver that is registered on this node, found by its registration socket and called as the kubelet does.

    Args:
        name: the driver's name.
        kubelet_dir: the kubelet's root directory.
        loop: the event loop in which the calls are made.
    """

    def __init__(self, name: str, kubelet_dir: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._registry = kubelet_dir / "plugins_registry"
        self._loop = loop

    @override
    def prepare(self, claim: ClaimReference) -> PendingResult[tuple[OtherDevice, ...]]:
        async def prepare() -> tuple[OtherDevice, ...]:
            with self._failures("prepare", claim):
                async with self._connected() as client:
                    devices = check_prepared([claim], await client.prepare([claim]))[claim.uid]
            return tuple(
                OtherDevice(item.pool_name, item.device_name, item.request_names, item.cdi_device_ids, item.share_id)
                for item in devices
            )

        return self._pending("prepare", prepare)

    @override
    def unprepare(self, claim: ClaimReference) -> PendingResult[None]:
        async def unprepare() -> None:
            with self._failures("release", claim):
                async with self._connected() as client:
                    check_unprepared([claim], await client.unprepare([claim]))

        return self._pending("unprepare", unprepare)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[PluginClient]:
        info = await self._registration()
        client = PluginClient(info.endpoint, select_service(info))
        try:
            yield client
        finally:
            await client.close()

    async def _registration(self) -> PluginInfo:
        """Return what the instance says that registered last: while a driver is updated, there are two."""
        sockets = find_sockets(self._registry)
        for socket in sorted(sockets, key=lambda path: sockets[path][2], reverse=True):
            with suppress(KubeletError):
                async with open_channel(str(socket)) as channel:
                    info = await get_info(pb_grpc.RegistrationStub(channel), socket, GET_INFO_TIMEOUT)
                if (info.type, info.name) == (PLUGIN_TYPE, self._name):
                    return info
        raise KubeletError(f"no socket below {self._registry} answers for it")

    @contextmanager
    def _failures(self, verb: str, claim: ClaimReference) -> Iterator[None]:
        try:
            yield
        except KubeletError as error:
            raise TransientError(
                f"driver {self._name} cannot {verb} claim {claim}: {error}; it is called again with the next attempt. "
                "Check that it runs on this node, that its folder in the kubelet's folder plugins is mounted into this "
                "driver's container, and its log",
                code="other-driver-failed",
            ) from error

    def _pending(self, verb: str, start: Callable[[], Coroutine[Any, Any, T]]) -> PendingResult[T]:
        return PendingResult(start, lambda: self._loop, f"other_driver(…).{verb}(…)", f"other_driver(…).{verb}(…)")
