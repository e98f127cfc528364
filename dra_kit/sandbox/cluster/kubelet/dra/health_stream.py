"""The stream by which a driver tells a kubelet how its devices are; loaded for a driver that has one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

import grpc.aio

from dra_kit.kubelet.proto import dra_health_v1_pb2 as health_v1
from dra_kit.kubelet.proto import dra_health_v1_pb2_grpc as health_v1_grpc
from dra_kit.kubelet.proto import dra_health_v1alpha1_pb2 as health_v1alpha1
from dra_kit.kubelet.proto import dra_health_v1alpha1_pb2_grpc as health_v1alpha1_grpc
from dra_kit.sandbox.cluster.kubelet.dra.health import HEALTH_SERVICES, DeviceHealth

_LEASE: Final = 30.0  # seconds, where a driver does not say how long it may be believed
_MESSAGE_MAX: Final = 1024
_STATUS: Final[Mapping[int, str]] = {
    health_v1.UNKNOWN: "Unknown",
    health_v1.HEALTHY: "Healthy",
    health_v1.UNHEALTHY: "Unhealthy",
}


async def watch_health(channel: grpc.aio.Channel, service: str) -> AsyncIterator[list[DeviceHealth]]:
    """Yield the reports of a driver, until the stream ends.

    Raises:
        AioRpcError: the stream is broken.
    """
    if service == HEALTH_SERVICES[0]:
        async for report in health_v1_grpc.DRAResourceHealthStub(channel).NodeWatchResources(
            health_v1.NodeWatchResourcesRequest()
        ):
            yield [_device(item) for item in report.devices]
    else:
        older = health_v1alpha1_grpc.DRAResourceHealthStub(channel)
        async for one in older.NodeWatchResources(health_v1alpha1.NodeWatchResourcesRequest()):
            yield [_device(item) for item in one.devices]


def _device(item: health_v1.DeviceHealth | health_v1alpha1.DeviceHealth) -> DeviceHealth:
    message = item.message if len(item.message) <= _MESSAGE_MAX else f"{item.message[: _MESSAGE_MAX - 3]}..."
    lease = float(item.health_check_timeout_seconds)
    place = item.device.pool_name, item.device.device_name
    return DeviceHealth(place, _STATUS.get(item.health, "Unknown"), message, lease if lease > 0 else _LEASE)
