"""Registers the driver with the kubelet: the plugin registration service on a socket in ``plugins_registry``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import grpc
from msgspec import Struct

from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as pb
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as pb_grpc
from dra_kit.kubelet.sockets import SocketFile

logger: logging.Logger = logging.getLogger(__name__)
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
