"""The driver's sockets as any gRPC client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc.aio

from dra_kit.kubelet.plugin_server import KubeletDevice, PluginServer
from dra_kit.kubelet.proto import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from dra_kit.kubernetes.resource.objects import ClaimReference

MESSAGES: Mapping[str, ModuleType] = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
STUBS: Mapping[str, ModuleType] = {"v1": dra_v1_pb2_grpc, "v1beta1": dra_v1beta1_pb2_grpc}


class Service:
    """Prepares one device for each claim."""

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.unprepared: list[str] = []

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        self.prepared += [claim.uid for claim in claims]
        return {
            claim.uid: [
                KubeletDevice(
                    request_names=("pizza", "plate"),
                    pool_name="node-a",
                    device_name=f"{claim.namespace}-{claim.name}",
                    cdi_device_ids=(f"dra.pizza/claim={claim.uid}",),
                    share_id="share-1",
                )
            ]
            for claim in claims
        }

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        self.unprepared += [claim.uid for claim in claims]
        return dict.fromkeys((claim.uid for claim in claims), None)


@asynccontextmanager
async def serving(service: Service, socket: Path, *, grace: float = 0, **options: Any) -> AsyncIterator[PluginServer]:
    """A server that listens, and is stopped with this grace period at the end."""
    server = PluginServer(service, socket, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(grace)


class Client:
    """A client of one version of the DRA service."""

    def __init__(self, channel: grpc.aio.Channel, version: str) -> None:
        self.messages = MESSAGES[version]
        self.stub: Any = STUBS[version].DRAPluginStub(channel)

    async def prepare(self, claims: Iterable[ClaimReference]) -> dict[str, Any]:
        request = self.messages.NodePrepareResourcesRequest(claims=self._claims(claims))
        return dict((await self.stub.NodePrepareResources(request, timeout=60)).claims)

    async def unprepare(self, claims: Iterable[ClaimReference]) -> dict[str, str]:
        request = self.messages.NodeUnprepareResourcesRequest(claims=self._claims(claims))
        answer = await self.stub.NodeUnprepareResources(request, timeout=60)
        return {uid: entry.error for uid, entry in answer.claims.items()}

    def _claims(self, claims: Iterable[ClaimReference]) -> list[Any]:
        return [self.messages.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]


@asynccontextmanager
async def connect(socket: Path, version: str = "v1") -> AsyncIterator[Client]:
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield Client(channel, version)
