"""Calls a driver's DRA service as the kubelet does (``pkg/kubelet/cm/dra/plugin/dra_plugin.go``, 1.37)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import grpc.aio
from msgspec import Struct

from dra_kit.errors import KubeletError
from dra_kit.kubelet.proto import dra_v1_pb2 as v1
from dra_kit.kubelet.proto import dra_v1_pb2_grpc as v1_grpc
from dra_kit.kubelet.proto import dra_v1beta1_pb2 as v1beta1
from dra_kit.kubelet.proto import dra_v1beta1_pb2_grpc as v1beta1_grpc
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.cluster.kubelet.dra.connection import open_channel, rpc_error_text
from dra_kit.sandbox.cluster.kubelet.dra.health import DeviceHealth

CALL_TIMEOUT = 45.0
"""Seconds the kubelet waits for NodePrepareResources and NodeUnprepareResources."""


class Device(Struct, frozen=True):
    """A prepared device as the driver describes it; no request names means that it serves every request."""

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None


class PreparedClaim(Struct, frozen=True):
    """A driver's answer for one claim; ``devices`` mean nothing when there is an ``error``."""

    devices: tuple[Device, ...]
    error: str = ""


class PluginClient:
    """One connection to a driver's service socket, through which all calls go.

    Args:
        endpoint: path of the service socket.
        service: ``v1.DRAPlugin`` or ``v1beta1.DRAPlugin``, as ``registration.select_service`` returned it.
        timeout: seconds for one call.
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
        """Yield whether the connection is up, now and after every change; a lost one is made again."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            yield state is grpc.ChannelConnectivity.READY
            await self._channel.wait_for_state_change(state)

    async def prepare(self, claims: Sequence[ClaimReference]) -> dict[str, PreparedClaim]:
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
            uid: PreparedClaim(devices=tuple(map(_device, entry.devices)), error=entry.error)
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

    async def health(self) -> AsyncIterator[list[DeviceHealth]]:
        """Yield the reports of the plugin's health service, until the stream ends; none without such a service.

        Raises:
            KubeletError: the stream is broken.
        """
        if self.health_service is None:
            return
        from dra_kit.sandbox.cluster.kubelet.dra.health_stream import watch_health

        with _failures("NodeWatchResources"):
            async for report in watch_health(self._channel, self.health_service):
                yield report

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
        # gRPC cancels whoever waits for the answer; in the words of grpc-go
        raise KubeletError(
            f"{call}: rpc error: code = Canceled desc = grpc: the client connection is closing"
        ) from None


def check_prepared(
    claims: Sequence[ClaimReference], answers: Mapping[str, PreparedClaim]
) -> dict[str, tuple[Device, ...]]:
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


def _device(device: v1.Device | v1beta1.Device) -> Device:
    return Device(
        request_names=tuple(device.request_names),
        pool_name=device.pool_name,
        device_name=device.device_name,
        cdi_device_ids=tuple(device.cdi_device_ids),
        share_id=device.share_id if isinstance(device, v1.Device) and device.HasField("share_id") else None,
    )


def _messages(claims: Sequence[ClaimReference]) -> list[v1.Claim]:
    return [v1.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]
