"""Serves the kubelet: DRA v1 and v1beta1 with one ``NodeService``, and the registration of the plugin.

Requests, responses and error texts of DRA; registration has a socket of its own in ``plugins_registry``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import grpc
import grpc.aio
from msgspec import Struct

from dra_kit.errors import ConfigurationError, DraKitError, InternalError
from dra_kit.kubelet.proto import dra_v1_pb2 as v1
from dra_kit.kubelet.proto import dra_v1_pb2_grpc as v1_grpc
from dra_kit.kubelet.proto import dra_v1beta1_pb2 as v1beta1
from dra_kit.kubelet.proto import dra_v1beta1_pb2_grpc as v1beta1_grpc
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as pb
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as pb_grpc
from dra_kit.kubelet.sockets import SocketFile
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.text import shorten, without_paths

PLUGIN_TYPE = "DRAPlugin"
"""The plugin manager's name for DRA drivers (kubelet 1.37)."""
# one for the kubelet's call, one for a concurrent call of another client
_THREADS = 2


class RegistrationStatus(Struct, frozen=True):
    """The kubelet's verdict: ``registered``, or the text of ``error``."""

    registered: bool
    error: str = ""


class RegistrationServer:
    """The driver's registration socket; start it when the service socket listens: the kubelet dials immediately.

    The kubelet gives GetInfo one second and backs off for up to two minutes after a failure. Therefore it is answered
    in separate threads, no matter what the event loop and the author's code are doing.

    Args:
        endpoint: path of the service socket as the host sees it.
        supported_versions: what the service socket serves, newest first.
        socket: path of the registration socket, as returned by ``registration_socket``.

    Attributes:
        status: the kubelet's last verdict; None before the first and after the stop. A restarted kubelet repeats it.
        status_at: when the last verdict arrived; None before the first.
    """

    def __init__(self, driver: str, *, endpoint: Path, supported_versions: Sequence[str], socket: Path) -> None:
        info = pb.PluginInfo(
            type=PLUGIN_TYPE, name=driver, endpoint=str(endpoint), supported_versions=supported_versions
        )
        self._registration = _Registration(info, self._verdict)
        self._socket = SocketFile(socket)
        self.status: RegistrationStatus | None = None
        self.status_at: datetime | None = None
        self._running: tuple[grpc.Server, ThreadPoolExecutor] | None = None

    def start(self, *, bound: Callable[[], None] = lambda: None) -> None:
        """Listen and serve; the kubelet finds the socket within about a second.

        ``bound`` is called when the socket is bound but does not have its final name yet.

        Raises:
            ConfigurationError: the socket cannot be created.
        """
        calls = ThreadPoolExecutor(_THREADS, thread_name_prefix="dra-registration")
        server = grpc.server(calls)
        pb_grpc.add_RegistrationServicer_to_server(self._registration, server)
        self._socket.bind(server.add_insecure_port)
        bound()
        server.start()
        self._running = server, calls
        self._socket.publish()

    def stop(self, grace: float) -> None:
        """Remove the socket, which deregisters the driver, and stop the calls within ``grace`` seconds."""
        running, self._running = self._running, None
        if running is not None:
            self._socket.remove()
            server, calls = running
            server.stop(grace).wait()
            calls.shutdown()
            self.status = None

    def _verdict(self, status: RegistrationStatus) -> None:
        self.status, self.status_at = status, datetime.now(UTC)


class _Registration(pb_grpc.RegistrationServicer):
    def __init__(self, info: pb.PluginInfo, verdict: Callable[[RegistrationStatus], None]) -> None:
        self._info = info
        self._verdict = verdict

    def GetInfo(self, request: pb.InfoRequest, context: object) -> pb.PluginInfo:  # noqa: N802 (its name on the wire)
        del request, context
        return self._info

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: pb.RegistrationStatus, context: object
    ) -> pb.RegistrationStatusResponse:
        del context
        if request.plugin_registered:
            logger.info("the kubelet registered driver %s", self._info.name)
        else:
            logger.error("the kubelet rejects driver %s: %s", self._info.name, request.error)
        self._verdict(RegistrationStatus(registered=request.plugin_registered, error=request.error))
        return pb.RegistrationStatusResponse()


DRA_VERSIONS = ("v1", "v1beta1")
"""Versions of the DRA service, newest first: v1 for kubelet 1.34 and newer, v1beta1 for 1.32 and newer."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Upper bound of a request and of a response; grpc-go's default for what the kubelet receives is 4 MiB."""


class GrpcService(Protocol):
    """Another service on the same socket, such as device health."""

    @property
    def supported_versions(self) -> tuple[str, ...]:
        """What to advertise, after the versions of the DRA service."""
        ...

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add it to a server that has not started."""
        ...

    def close(self) -> None:
        """Close its streams."""
        ...


class PluginServer:
    """The driver's gRPC server on its service socket; every method runs on the event loop that calls it.

    Args:
        socket: path of the service socket, as returned by ``plugin_socket``.
        versions: which of ``DRA_VERSIONS`` to serve.
        health: reports the health of the devices; None for a driver that does not.

    Raises:
        ConfigurationError: a version is unknown, or there is none.
    """

    def __init__(
        self,
        service: NodeService,
        socket: Path,
        *,
        versions: Sequence[str] = DRA_VERSIONS,
        health: GrpcService | None = None,
    ) -> None:
        if not versions or not set(versions) <= set(DRA_VERSIONS):
            raise ConfigurationError(
                f"DRA service versions {list(versions)}: give at least one of {', '.join(DRA_VERSIONS)} and no others"
            )
        self._service = service
        self._versions = tuple(version for version in DRA_VERSIONS if version in versions)
        self._health = health
        self._socket = SocketFile(socket)
        self._server: grpc.aio.Server | None = None

    @property
    def supported_versions(self) -> tuple[str, ...]:
        """What to advertise, newest first: the kubelet takes the first it knows. These are not gRPC service names.

        Health versions are selected separately from DRA, and come after them.
        """
        dra = tuple(f"{version}.DRAPlugin" for version in self._versions)
        return dra if self._health is None else (*dra, *self._health.supported_versions)

    async def start(self, *, bound: Callable[[], None] = lambda: None) -> None:
        """Listen and serve; the driver can be registered when it returns.

        ``bound`` is called when the socket is bound but does not have its final name yet.

        Raises:
            ConfigurationError: the socket cannot be created.
        """
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ]
        )
        unregistered: Any = _UnregisteredMethods(server)
        if "v1" in self._versions:
            v1_grpc.add_DRAPluginServicer_to_server(_PluginV1(self._service), unregistered)
        if "v1beta1" in self._versions:
            v1beta1_grpc.add_DRAPluginServicer_to_server(_PluginV1beta1(self._service), unregistered)
        if self._health is not None:
            self._health.add_to(server)
        self._socket.bind(server.add_insecure_port)
        bound()
        await server.start()
        self._server = server
        self._socket.publish()

    async def stop(self, grace: float) -> None:
        """Accept no further calls, let running ones finish for ``grace`` seconds, then cancel them."""
        server, self._server = self._server, None
        if server is not None:
            self._socket.remove()
            if self._health is not None:
                self._health.close()  # a stream would stay open as long as the kubelet runs
            await server.stop(grace)


class _UnregisteredMethods:
    """A server for generated code; it finds methods by name, and does not register them.

    grpc.aio waits for a call of each registered method separately, and renews all these waits with each call (grpcio
    1.85).
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """Add the methods of a service."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Do nothing."""


class _PluginV1(v1_grpc.DRAPluginServicer):
    def __init__(self, service: NodeService) -> None:
        self._service = service

    async def NodePrepareResources(  # noqa: N802 (the method's name on the wire)
        self, request: v1.NodePrepareResourcesRequest, context: object
    ) -> v1.NodePrepareResourcesResponse:
        del context
        return prepare_response(await answer_prepare(self._service, claim_refs(request)))

    async def NodeUnprepareResources(  # noqa: N802
        self, request: v1.NodeUnprepareResourcesRequest, context: object
    ) -> v1.NodeUnprepareResourcesResponse:
        del context
        return unprepare_response(await answer_unprepare(self._service, claim_refs(request)))


class _PluginV1beta1(v1beta1_grpc.DRAPluginServicer):
    def __init__(self, service: NodeService) -> None:
        self._service = service

    async def NodePrepareResources(  # noqa: N802
        self, request: v1beta1.NodePrepareResourcesRequest, context: object
    ) -> v1beta1.NodePrepareResourcesResponse:
        del context
        response = prepare_response(await answer_prepare(self._service, claim_refs(request)))
        for entry in response.claims.values():
            for device in entry.devices:
                device.ClearField("share_id")  # v1beta1 has no field for it
        return v1beta1.NodePrepareResourcesResponse.FromString(response.SerializeToString())

    async def NodeUnprepareResources(  # noqa: N802
        self, request: v1beta1.NodeUnprepareResourcesRequest, context: object
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        del context
        response = unprepare_response(await answer_unprepare(self._service, claim_refs(request)))
        return v1beta1.NodeUnprepareResourcesResponse.FromString(response.SerializeToString())


class NodeService(Protocol):
    """Prepares and releases claims; called by ``PluginServer`` from its event loop, also concurrently.

    The claims of one call have distinct, non-empty UIDs. A call is cancelled when the kubelet gives up (after 45 s,
    Kubernetes 1.37) or when the grace period of a shutdown ends. An exception, returned for one claim or raised for
    all, reaches the kubelet as text: a ``DraKitError`` verbatim, anything else as a bug in dra-kit.
    """

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        """Make the devices of each claim usable; by claim UID, one entry per claim, in any order.

        The same claim may come again, and must get the same result.
        """
        ...

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        """Release each claim; by claim UID, one entry per claim, None for success.

        An unknown claim is a success.
        """
        ...


class KubeletDevice(Struct, frozen=True):
    """One allocated device that is ready for the containers of a claim.

    Args:
        request_names: top-level requests of the claim, without subrequest (``gpu``, never ``gpu/big``): the kubelet
            compares these with the requests of a container. None means every request.
        pool_name: the allocation result's pool.
        device_name: the allocation result's device.
        cdi_device_ids: fully qualified CDI names (``vendor/class=name``).
        share_id: of a device that several claims share (KEP-5075); kubelets that speak v1beta1 never see it.
    """

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...] = ()
    share_id: str | None = None


logger: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")
ERROR_BYTES: Final = 1024
"""Bytes of a claim's error. The kubelet makes an Event of it, and accepts 4 MiB for the response to one call."""
_BUG: Final = "this is a bug in dra-kit, please report it"


async def answer_prepare(service: NodeService, claims: Sequence[ClaimReference]) -> dict[str, list[v1.Device] | str]:
    """Answer NodePrepareResources: by claim UID, the prepared devices or the text of an error."""
    return await _answer("prepare", service.prepare, claims, _devices)


async def answer_unprepare(service: NodeService, claims: Sequence[ClaimReference]) -> dict[str, str | None]:
    """Answer NodeUnprepareResources: by claim UID, None or the text of an error."""
    return await _answer("unprepare", service.unprepare, claims, _nothing)


def error_text(error: Exception, doing: str) -> str:
    """Return one line about an exception, for the ``error`` of a claim and the Event that the kubelet makes of it.

    It is never empty, and never longer than ``ERROR_BYTES``: a longer text is shortened in the middle. For a
    ``DraKitError`` its public text is used; any other class is a bug in ``doing``, such as ``prepare of ResourceClaim
    default/oven``.
    """
    line = _one_line(error.public if isinstance(error, DraKitError) else without_paths(str(error)))
    if isinstance(error, DraKitError) and not isinstance(error, InternalError):
        return limit_error_text(line or f"{doing}: failed with code {error.code} and without a message")
    logger.error("%s: %s", doing, _BUG, exc_info=error)
    what = [line] if isinstance(error, InternalError) else [type(error).__name__, line]
    return limit_error_text(": ".join(filter(None, [doing, *what])) + f" ({_BUG})")


def _one_line(text: str) -> str:
    return "; ".join(filter(None, map(str.strip, text.splitlines())))


def limit_error_text(text: str) -> str:
    """Return a text as it can be sent: one line of at most ``ERROR_BYTES``; a longer text loses its middle."""
    # protobuf strings are UTF-8, and messages may contain file names with undecodable bytes
    return shorten(_one_line(text).encode("utf-8", "backslashreplace").decode("utf-8"), ERROR_BYTES)


async def _answer(
    verb: str,
    call: Callable[[Sequence[ClaimReference]], Awaitable[Mapping[str, object]]],
    claims: Sequence[ClaimReference],
    check: Callable[[object], T],
) -> dict[str, T | str]:
    asked, answers = _well_formed(claims)
    answered: dict[str, T | str] = dict(answers)
    if not asked:
        return answered
    try:
        results = await call(list(asked.values()))
        unasked = results.keys() - asked.keys()
    except Exception as error:  # noqa: BLE001 (any exception of a service becomes the result of its claims)
        text = error_text(error, f"{verb} of {len(asked)} ResourceClaims" if len(asked) > 1 else _doing(verb, asked))
        return answered | dict.fromkeys(asked, text)
    if unasked:
        listed = ", ".join(map(str, unasked))
        logger.error("%s returned results for claims that were not requested: %s: %s", verb, listed, _BUG)
    for uid, claim in asked.items():
        try:
            answered[uid] = _result(results, uid, check)
        except Exception as error:  # noqa: BLE001 (likewise)
            answered[uid] = error_text(error, _doing(verb, {uid: claim}))
    return answered


def _well_formed(claims: Sequence[ClaimReference]) -> tuple[dict[str, ClaimReference], dict[str, str]]:
    """Return claims to pass to the service, by UID and once each, and the errors of the others."""
    asked: dict[str, ClaimReference] = {}
    errors: dict[str, str] = {}
    for claim in claims:
        missing = [field for field in ("namespace", "name", "uid") if not getattr(claim, field)]
        if missing:
            errors[claim.uid] = limit_error_text(
                f"the request names ResourceClaim {str(claim)!r} without {' and '.join(missing)}"
            )
        elif asked.setdefault(claim.uid, claim) != claim:
            errors[claim.uid] = limit_error_text(
                f"the request names UID {claim.uid} twice, as {asked[claim.uid]} and as {claim}"
            )
    for uid in errors:
        asked.pop(uid, None)
    return asked, errors


def _result(results: Mapping[str, object], uid: str, check: Callable[[object], T]) -> T:
    if uid not in results:
        raise InternalError("the node service returned no result")
    result = results[uid]
    if isinstance(result, Exception):
        raise result
    return check(result)


def _devices(result: object) -> list[v1.Device]:
    if not isinstance(result, Sequence) or not all(isinstance(device, KubeletDevice) for device in result):
        raise InternalError(f"the node service returned {result!r} instead of prepared devices")
    return [
        v1.Device(
            request_names=device.request_names,
            pool_name=device.pool_name,
            device_name=device.device_name,
            cdi_device_ids=device.cdi_device_ids,
            share_id=device.share_id,
        )
        for device in result
    ]


def _nothing(result: object) -> None:
    if result is not None:
        raise InternalError(f"the node service returned {result!r} instead of None")


def _doing(verb: str, asked: Mapping[str, ClaimReference]) -> str:
    return f"{verb} of ResourceClaim {next(iter(asked.values()))}"


def claim_refs(
    request: v1.NodePrepareResourcesRequest
    | v1.NodeUnprepareResourcesRequest
    | v1beta1.NodePrepareResourcesRequest
    | v1beta1.NodeUnprepareResourcesRequest,
) -> list[ClaimReference]:
    """Return the claims in a request of either version, in its order."""
    return [ClaimReference(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in request.claims]


def prepare_response(answers: Mapping[str, Sequence[v1.Device] | str]) -> v1.NodePrepareResourcesResponse:
    """Return v1's response: by claim UID, prepared devices or the text of an error."""
    response = v1.NodePrepareResourcesResponse()
    for uid, answer in answers.items():
        entry = response.claims[uid]  # reading creates the entry
        if isinstance(answer, str):
            entry.error = answer
        else:
            entry.devices.extend(answer)
    return response


def unprepare_response(answers: Mapping[str, str | None]) -> v1.NodeUnprepareResourcesResponse:
    """Return v1's response: by claim UID, None or the text of an error."""
    response = v1.NodeUnprepareResourcesResponse()
    for uid, error in answers.items():
        response.claims[uid].error = error or ""
    return response
