"""What drivers tell a kubelet of the health of devices (``pkg/kubelet/cm/dra/healthinfo.go``, Kubernetes 1.37)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

HEALTH_SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Health services that a kubelet of 1.37 calls, the one it prefers first."""

RECONNECT_SECONDS: Final = 5.0
"""Seconds until a stream that ended is opened again."""

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
