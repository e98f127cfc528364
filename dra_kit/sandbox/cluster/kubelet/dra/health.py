"""What drivers tell a kubelet of the health of devices (``pkg/kubelet/cm/dra/healthinfo.go``, Kubernetes 1.37)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import grpc.aio
from msgspec import Struct

from dra_kit.proto import dra_health_v1_pb2 as v1
from dra_kit.proto import dra_health_v1_pb2_grpc as v1_grpc
from dra_kit.proto import dra_health_v1alpha1_pb2 as v1alpha1
from dra_kit.proto import dra_health_v1alpha1_pb2_grpc as v1alpha1_grpc

HEALTH_SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Health services that a kubelet of 1.37 calls, the one it prefers first."""

RECONNECT_SECONDS: Final = 5.0
"""Seconds until a stream that ended is opened again."""

_LEASE: Final = 30.0  # seconds, where a driver does not say how long it may be believed
_MESSAGE_MAX: Final = 1024
_STATUS: Final[Mapping[int, str]] = {v1.UNKNOWN: "Unknown", v1.HEALTHY: "Healthy", v1.UNHEALTHY: "Unhealthy"}

Device = tuple[str, str]
"""Pool and name."""


class DeviceHealth(Struct, frozen=True):
    """What a driver says of a device, and for how many seconds it may be believed."""

    device: Device
    status: str
    message: str
    lease: float


def select_health_service(supported_versions: Sequence[str]) -> str | None:
    """Return the kubelet's first choice among the services that a plugin advertises; None when it advertises none."""
    return next((service for service in HEALTH_SERVICES if service in supported_versions), None)


async def watch_health(channel: grpc.aio.Channel, service: str) -> AsyncIterator[list[DeviceHealth]]:
    """Yield the reports of a driver, until the stream ends.

    Raises:
        AioRpcError: the stream is broken.
    """
    if service == HEALTH_SERVICES[0]:
        async for report in v1_grpc.DRAResourceHealthStub(channel).NodeWatchResources(v1.NodeWatchResourcesRequest()):
            yield [_device(item) for item in report.devices]
    else:
        older = v1alpha1_grpc.DRAResourceHealthStub(channel)
        async for one in older.NodeWatchResources(v1alpha1.NodeWatchResourcesRequest()):
            yield [_device(item) for item in one.devices]


def _device(item: v1.DeviceHealth | v1alpha1.DeviceHealth) -> DeviceHealth:
    message = item.message if len(item.message) <= _MESSAGE_MAX else f"{item.message[: _MESSAGE_MAX - 3]}..."
    lease = float(item.health_check_timeout_seconds)
    place = item.device.pool_name, item.device.device_name
    return DeviceHealth(place, _STATUS.get(item.health, "Unknown"), message, lease if lease > 0 else _LEASE)


class HealthCache:
    """What is known; belongs to the event loop.

    Args:
        changed: called with the driver's name when something may be different.
    """

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._known: dict[str, dict[Device, tuple[DeviceHealth, asyncio.TimerHandle]]] = {}

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return status and message of a device."""
        known = self._known.get(driver, {}).get((pool, device))
        return (known[0].status, known[0].message) if known else ("Unknown", "")

    def take(self, driver: str, report: Sequence[DeviceHealth]) -> None:
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

    def _expire(self, driver: str, device: Device) -> None:
        self._known.get(driver, {}).pop(device, None)
        self._changed(driver)
