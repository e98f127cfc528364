"""Pods that are created at once, so that their placements overlap.

Rounds by default are few; ``BURST_ROUNDS`` asks for more, as ``make test-hostile`` does.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from dra_kit.client.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from dra_kit.sandbox.control_plane import ControlPlane
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.cluster.scheduler.test_scheduler import add_node, add_pod, known, pizzas

ROUNDS = int(os.environ.get("BURST_ROUNDS", "5"))
PODS_AT_ONCE = 8
PIZZA = "example.com/pizza"


@pytest.mark.timeout(60 + 5 * ROUNDS)
async def test_pods_with_extended_resources_that_come_at_once_get_a_device_each() -> None:
    names = [f"guest-{number}" for number in range(PODS_AT_ONCE)]
    async with ControlPlane(time_scale=10) as plane:
        client = await plane.connect("test")
        spec = {"extendedResourceName": PIZZA}
        await client.create(DEVICE_CLASSES, {"metadata": {"name": "pizza"}, "spec": spec})
        await add_node(client, "node-1", pizzas(PODS_AT_ONCE))
        await known(plane, "node-1")
        pods, claims = plane.informers.objects(PODS), plane.informers.objects(RESOURCE_CLAIMS)

        def devices() -> list[str]:
            allocations = [claim.get("status", {}).get("allocation") for claim in claims.values()]
            return [item["device"] for found in allocations if found for item in found["devices"]["results"]]

        for number in range(ROUNDS):
            await asyncio.gather(*(add_pod(client, name, **{PIZZA: "1"}) for name in names))
            await until(lambda: sum(bool(pod["spec"].get("nodeName")) for pod in pods.values()) == PODS_AT_ONCE)
            await until(lambda: len(devices()) == PODS_AT_ONCE)

            assert len(set(devices())) == PODS_AT_ONCE, f"round {number}: {sorted(devices())}"

            await asyncio.gather(*(client.delete(PODS, name, "default", grace_period_seconds=0) for name in names))
            await until(lambda: not pods and not claims)
