"""Health that drivers report: the kubelet's cache, and the status of pods."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from dra_kit.kubelet.health import ReportedHealth as Told
from dra_kit.kubelet.plugin_client import HealthCache, LeasedHealth, select_health_service
from dra_kit.kubernetes.release import Release
from tests.unit.sandbox.cluster.kubelet.driver import DRIVER
from tests.unit.sandbox.cluster.kubelet.node import Node
from tests.unit.sandbox.cluster.kubelet.pods import SLEEPER, Object, pod

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
GPU = ("node-a", "gpu-0")


def gpu(status: str, message: str = "", lease: float = 3600) -> LeasedHealth:
    return LeasedHealth(GPU, status, message, lease)


@pytest.mark.parametrize(
    ("advertised", "chosen"),
    [
        (("v1.DRAPlugin",), None),
        (("v1.DRAPlugin", "v1alpha1.DRAResourceHealth"), "v1alpha1.DRAResourceHealth"),
        (("v1.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"), "v1.DRAResourceHealth"),
    ],
)
def test_the_kubelet_prefers_the_newest_service_whatever_the_order(advertised: tuple[str, ...], chosen: str) -> None:
    assert select_health_service(advertised, Release.of()) == chosen


def test_kubelets_before_1_37_call_v1alpha1_of_the_health_service_only() -> None:
    both = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
    old, new = Release.parse("1.36"), Release.parse("1.37")

    assert [select_health_service(both, release) for release in (old, new)] == [both[1], both[0]]
    assert select_health_service(both[:1], old) is None


async def test_only_differences_are_changes() -> None:
    changes: list[str] = []
    cache = HealthCache(changes.append)
    assert cache.health(DRIVER, *GPU) == ("Unknown", "")
    for report in ([gpu("Healthy")], [gpu("Healthy")], [], [gpu("Unhealthy", "hot")]):
        cache.take(DRIVER, report)
    assert (cache.health(DRIVER, *GPU), len(changes)) == (("Unhealthy", "hot"), 2)
    cache.clear(DRIVER)
    cache.clear(DRIVER)
    assert (cache.health(DRIVER, *GPU), len(changes)) == (("Unknown", ""), 3)


async def test_health_expires_without_a_new_report() -> None:
    forgotten = asyncio.Event()
    cache = HealthCache(lambda _: forgotten.set() if cache.health(DRIVER, *GPU)[0] == "Unknown" else None)
    cache.take(DRIVER, [gpu("Healthy", lease=0.01)])
    assert cache.health(DRIVER, *GPU) == ("Healthy", "")
    async with asyncio.timeout(60):
        await forgotten.wait()


def health(found: Object) -> list[tuple[str, str]]:
    """Health and message of the devices of the first container."""
    [status] = found["status"].get("containerStatuses") or [{}]
    return [
        (item["health"], item.get("message", ""))
        for entry in status.get("allocatedResourcesStatus", [])
        for item in entry["resources"]
    ]


async def test_the_status_of_a_pod_follows_the_health_of_its_devices(kitchen: Node) -> None:
    await kitchen.order("lunch")
    await kitchen.start(pod(SLEEPER), "lunch")
    await kitchen.until(lambda found: health(found) == [("Unknown", "")])
    kitchen.driver.health.report([Told("pool", "pizza-0", "Healthy"), Told("pool", "pizza-1", "Unhealthy")], NOW)
    await kitchen.until(lambda found: health(found) == [("Healthy", "")])
    kitchen.driver.health.report([Told("pool", "pizza-0", "Unhealthy", "burnt")], NOW)
    await kitchen.until(lambda found: health(found) == [("Unhealthy", "burnt")])
    await kitchen.driver.plugin.stop(0)
    await kitchen.until(lambda found: health(found) == [("Unknown", "")])
    assert kitchen.driver.calls == [("prepare", "lunch")]
