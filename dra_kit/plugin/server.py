"""Serves DRA v1 and v1beta1 to the kubelet with one ``NodeService``, and health where the driver tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio

from dra_kit.errors import ConfigurationError
from dra_kit.plugin import answers, messages
from dra_kit.plugin.service import NodeService
from dra_kit.plugin.socket_file import SocketFile
from dra_kit.proto import dra_v1_pb2 as v1
from dra_kit.proto import dra_v1_pb2_grpc as v1_grpc
from dra_kit.proto import dra_v1beta1_pb2 as v1beta1
from dra_kit.proto import dra_v1beta1_pb2_grpc as v1beta1_grpc

if TYPE_CHECKING:
    from dra_kit.plugin.health import HealthStreams

DRA_VERSIONS = ("v1", "v1beta1")
"""Versions of the DRA service, newest first: v1 for kubelet 1.34 and newer, v1beta1 for 1.32 and newer."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Upper bound of a request and of an answer; grpc-go's default for what the kubelet receives is 4 MiB."""


class PluginServer:
    """The driver's gRPC server on its service socket; every method runs on the event loop that calls it.

    Args:
        service: what prepares and releases claims.
        socket: path of the service socket, as ``plugin_socket`` gives it.
        versions: which of ``DRA_VERSIONS`` to serve.
        health: what tells how the devices are; None for a driver that does not.

    Raises:
        ConfigurationError: a version that is not known, or none.
    """

    def __init__(
        self,
        service: NodeService,
        socket: Path,
        *,
        versions: Sequence[str] = DRA_VERSIONS,
        health: HealthStreams | None = None,
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
        """What to advertise, newest first: the kubelet takes the first it knows. These are no gRPC service names.

        Health is selected separately from DRA, and comes after it.
        """
        dra = tuple(f"{version}.DRAPlugin" for version in self._versions)
        return dra if self._health is None else (*dra, *self._health.supported_versions)

    async def start(self, *, bound: Callable[[], None] = lambda: None) -> None:
        """Listen and serve; when it returns, the driver can be registered.

        Args:
            bound: called when the socket is there and has not got its name yet.

        Raises:
            ConfigurationError: the socket cannot be created.
        """
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ]
        )
        for version in self._versions:
            _ADD[version](self._service, server)
        if self._health is not None:
            self._health.add_to(server)
        self._socket.bind(server.add_insecure_port)
        bound()
        await server.start()
        self._server = server
        self._socket.publish()

    async def stop(self, grace: float) -> None:
        """Take no further calls, let running ones finish for ``grace`` seconds, then cancel them."""
        server, self._server = self._server, None
        if server is not None:
            self._socket.remove()
            if self._health is not None:
                self._health.close()  # a stream would last as long as the kubelet
            await server.stop(grace)


class _PluginV1(v1_grpc.DRAPluginServicer):
    def __init__(self, service: NodeService) -> None:
        self._service = service

    async def NodePrepareResources(  # noqa: N802 (the method's name on the wire)
        self, request: v1.NodePrepareResourcesRequest, context: object
    ) -> v1.NodePrepareResourcesResponse:
        del context
        return messages.prepare_response(await answers.prepare(self._service, messages.claim_refs(request)))

    async def NodeUnprepareResources(  # noqa: N802
        self, request: v1.NodeUnprepareResourcesRequest, context: object
    ) -> v1.NodeUnprepareResourcesResponse:
        del context
        return messages.unprepare_response(await answers.unprepare(self._service, messages.claim_refs(request)))


class _PluginV1beta1(v1beta1_grpc.DRAPluginServicer):
    def __init__(self, service: NodeService) -> None:
        self._service = service

    async def NodePrepareResources(  # noqa: N802
        self, request: v1beta1.NodePrepareResourcesRequest, context: object
    ) -> v1beta1.NodePrepareResourcesResponse:
        del context
        return messages.prepare_response_v1beta1(await answers.prepare(self._service, messages.claim_refs(request)))

    async def NodeUnprepareResources(  # noqa: N802
        self, request: v1beta1.NodeUnprepareResourcesRequest, context: object
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        del context
        return messages.unprepare_response_v1beta1(await answers.unprepare(self._service, messages.claim_refs(request)))


def _add_v1(service: NodeService, server: grpc.aio.Server) -> None:
    v1_grpc.add_DRAPluginServicer_to_server(_PluginV1(service), server)


def _add_v1beta1(service: NodeService, server: grpc.aio.Server) -> None:
    v1beta1_grpc.add_DRAPluginServicer_to_server(_PluginV1beta1(service), server)


_ADD: Mapping[str, Callable[[NodeService, grpc.aio.Server], None]] = {"v1": _add_v1, "v1beta1": _add_v1beta1}
