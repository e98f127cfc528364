"""Reports to the kubelet whether devices are healthy: ``DRAResourceHealth`` v1 and v1alpha1 (KEP-4680).

Import it only in drivers that have a health source, because its messages take memory.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final, Literal

import grpc.aio
from msgspec import Struct

from dra_kit.kubelet.plugin_server import limit_error_text
from dra_kit.kubelet.proto import dra_health_v1_pb2 as v1
from dra_kit.kubelet.proto import dra_health_v1_pb2_grpc as v1_grpc
from dra_kit.kubelet.proto import dra_health_v1alpha1_pb2 as v1alpha1
from dra_kit.kubelet.proto import dra_health_v1alpha1_pb2_grpc as v1alpha1_grpc

HEALTH_VERSIONS: Final = ("v1", "v1alpha1")
"""Versions of the health service, newest first: v1 for kubelet 1.37 and newer, v1alpha1 for 1.34 and newer."""
LEASE: Final = 30
"""Seconds for which the kubelet trusts a report; its own default (kubelet 1.37, cm/dra/healthinfo.go)."""
RESEND: Final = 5.0
"""Seconds after which everything is sent again: when one of two processes of an update stops, the kubelet drops the
report of the other one until the next report."""
_STATUS: Final = {"Unknown": v1.UNKNOWN, "Healthy": v1.HEALTHY, "Unhealthy": v1.UNHEALTHY}


class ReportedHealth(Struct, frozen=True):
    """The health of a device."""

    pool: str
    device: str
    status: Literal["Healthy", "Unhealthy", "Unknown"]
    message: str = ""


class HealthService:
    """All streams to kubelets; used only in the event loop. A slow reader gets only the latest state.

    Args:
        resend: seconds after which everything is sent again.
    """

    def __init__(self, *, resend: float = RESEND) -> None:
        self._resend = resend
        self._latest: v1.NodeWatchResourcesResponse | None = None
        self._news = asyncio.Event()
        self._closed = False

    @property
    def supported_versions(self) -> tuple[str, ...]:
        """What to advertise, after the versions of the DRA service."""
        return tuple(f"{version}.DRAResourceHealth" for version in HEALTH_VERSIONS)

    def report(self, devices: Sequence[ReportedHealth], now: dt.datetime) -> None:
        """Report the health of all devices; devices whose health is unknown are omitted.

        Before the first call nothing is sent to the kubelet, so that the previous process's report stays.
        """
        updated = int(now.timestamp())
        self._latest = v1.NodeWatchResourcesResponse(
            devices=[
                v1.DeviceHealth(
                    device=v1.DeviceIdentifier(pool_name=item.pool, device_name=item.device),
                    health=_STATUS[item.status],
                    last_updated_time=updated,
                    health_check_timeout_seconds=LEASE,
                    message=limit_error_text(item.message),
                )
                for item in devices
            ]
        )
        self._wake()

    def close(self) -> None:
        """Close all streams, so that the server need not wait for them."""
        self._closed = True
        self._wake()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve both versions."""
        v1_grpc.add_DRAResourceHealthServicer_to_server(_HealthV1(self), server)
        v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(_HealthV1alpha1(self), server)

    async def reports(self) -> AsyncIterator[v1.NodeWatchResourcesResponse]:
        """Yield everything: immediately if it is known, on every change, and periodically."""
        while not self._closed:
            news, latest = self._news, self._latest
            if latest is not None:
                yield latest
            with suppress(TimeoutError):
                async with asyncio.timeout(self._resend):
                    await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class _HealthV1(v1_grpc.DRAResourceHealthServicer):
    def __init__(self, streams: HealthService) -> None:
        self._streams = streams

    async def NodeWatchResources(  # noqa: N802 (the method's name on the wire)
        self, request: v1.NodeWatchResourcesRequest, context: object
    ) -> AsyncIterator[v1.NodeWatchResourcesResponse]:
        del request, context
        async for report in self._streams.reports():
            yield report


class _HealthV1alpha1(v1alpha1_grpc.DRAResourceHealthServicer):
    def __init__(self, streams: HealthService) -> None:
        self._streams = streams

    async def NodeWatchResources(  # noqa: N802
        self, request: v1alpha1.NodeWatchResourcesRequest, context: object
    ) -> AsyncIterator[v1alpha1.NodeWatchResourcesResponse]:
        del request, context
        async for report in self._streams.reports():
            yield v1alpha1.NodeWatchResourcesResponse.FromString(report.SerializeToString())
