"""The health service on the driver's socket: everything at once, on every change and again; two versions."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc.aio
import pytest

from dra_kit.kubelet.health import HealthService, ReportedHealth
from dra_kit.kubelet.plugin_server import PluginServer
from dra_kit.kubelet.proto import (
    dra_health_v1_pb2,
    dra_health_v1_pb2_grpc,
    dra_health_v1alpha1_pb2,
    dra_health_v1alpha1_pb2_grpc,
)
from tests.unit.kubelet.wire import Service, connect, serving

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
NEVER = 3600.0
SERVICES: Mapping[str, tuple[ModuleType, ModuleType]] = {
    "v1": (dra_health_v1_pb2, dra_health_v1_pb2_grpc),
    "v1alpha1": (dra_health_v1alpha1_pb2, dra_health_v1alpha1_pb2_grpc),
}

Seen = list[tuple[str, str, str, str]]


async def watch(socket: Path, version: str = "v1") -> AsyncIterator[Any]:
    """The reports as a kubelet gets them."""
    messages, stubs = SERVICES[version]
    async with grpc.aio.insecure_channel(f"unix:{socket}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = stubs.DRAResourceHealthStub(channel)
        async for report in stub.NodeWatchResources(messages.NodeWatchResourcesRequest()):
            yield report


async def following(reports: AsyncIterator[Any]) -> Seen:
    async with asyncio.timeout(60):
        report = await anext(reports)
    return [
        (item.device.pool_name, item.device.device_name, ("Unknown", "Healthy", "Unhealthy")[item.health], item.message)
        for item in report.devices
    ]


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_kubelet_gets_all_health_at_once_and_again_on_every_change(socket: Path, version: str) -> None:
    health = HealthService(resend=NEVER)
    health.report(
        [ReportedHealth("node-a", "gpu-0", "Healthy"), ReportedHealth("node-a", "gpu-1", "Unknown", "no answer")], NOW
    )
    async with serving(Service(), socket, health=health, grace=NEVER):
        reports = watch(socket, version)
        assert await following(reports) == [
            ("node-a", "gpu-0", "Healthy", ""),
            ("node-a", "gpu-1", "Unknown", "no answer"),
        ]
        health.report([ReportedHealth("node-a", "gpu-0", "Unhealthy", "hot:\n93 °C")], NOW)
        assert await following(reports) == [("node-a", "gpu-0", "Unhealthy", "hot:; 93 °C")]


async def test_health_is_sent_again_before_the_report_expires(socket: Path) -> None:
    health = HealthService(resend=0.01)
    health.report([ReportedHealth("node-a", "gpu-0", "Healthy")], NOW)
    async with serving(Service(), socket, health=health, grace=NEVER):
        reports = watch(socket)
        async with asyncio.timeout(60):
            [device] = (await anext(reports)).devices
        assert (device.last_updated_time, device.health_check_timeout_seconds) == (int(NOW.timestamp()), 30)
        for _ in range(3):
            assert await following(reports) == [("node-a", "gpu-0", "Healthy", "")]


async def test_no_health_is_sent_before_the_first_report(socket: Path) -> None:
    health = HealthService(resend=0.01)
    async with serving(Service(), socket, health=health, grace=NEVER), connect(socket) as client:
        first = asyncio.ensure_future(following(watch(socket)))
        await client.prepare([])
        assert not first.done()
        health.report([], NOW)
        assert await first == []


async def test_the_end_of_the_driver_ends_the_stream_at_once(socket: Path) -> None:
    health = HealthService(resend=NEVER)
    health.report([], NOW)
    server = PluginServer(Service(), socket, health=health)
    await server.start()
    reports = watch(socket)
    assert await following(reports) == []
    async with asyncio.timeout(60):
        await server.stop(NEVER)
        with pytest.raises(StopAsyncIteration):
            await anext(reports)


async def test_a_driver_without_health_advertises_and_serves_none(socket: Path) -> None:
    async with serving(Service(), socket) as server:
        assert server.supported_versions == ("v1.DRAPlugin", "v1beta1.DRAPlugin")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await following(watch(socket))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_is_advertised_after_dra(socket: Path) -> None:
    server = PluginServer(Service(), socket, versions=["v1"], health=HealthService())
    assert server.supported_versions == ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
