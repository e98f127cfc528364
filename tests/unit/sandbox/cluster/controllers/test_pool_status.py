"""The controller that answers ResourcePoolStatusRequests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_POOL_STATUS_REQUESTS, RESOURCE_SLICES
from dra_kit.errors import NotFound
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.control_plane import ControlPlane
from tests.unit.sandbox.cluster.kubelet.polling import until

Object = dict[str, Any]


async def ask(client: Client, name: str) -> None:
    request = {"metadata": {"name": name}, "spec": {"driver": "dra.pizza"}}
    await client.create(RESOURCE_POOL_STATUS_REQUESTS, request)


async def publish(client: Client, name: str, *, count: int = 1) -> None:
    pool = {"name": "oven", "generation": 1, "resourceSliceCount": count}
    devices = [{"name": name}]
    spec = {"driver": "dra.pizza", "pool": pool, "allNodes": True, "devices": devices}
    await client.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})


def requests(plane: ControlPlane) -> Mapping[tuple[str, str], Object]:
    return plane.informers.objects(RESOURCE_POOL_STATUS_REQUESTS)


async def test_request_is_answered_once() -> None:
    async with ControlPlane(release=Release.alpha(), runtime_config=ALL_VERSIONS) as plane:
        client = await plane.connect("test")
        await publish(client, "pizza")
        await until(lambda: bool(plane.informers.objects(RESOURCE_SLICES)))
        await ask(client, "how-many")
        await until(lambda: bool(requests(plane).get(("", "how-many"), {}).get("status")))

        status = requests(plane)["", "how-many"]["status"]

        assert [(item["poolName"], item["totalDevices"]) for item in status["pools"]] == [("oven", 1)]
        (condition,) = status["conditions"]
        assert (condition["type"], condition["message"]) == ("Complete", "Calculated status for 1 pools")


async def test_without_the_gate_requests_are_not_answered() -> None:
    async with ControlPlane(runtime_config=ALL_VERSIONS) as plane:
        client = await plane.connect("test")
        await ask(client, "how-many")
        await until(lambda: bool(requests(plane)))
        await asyncio.sleep(0.1)

        assert "status" not in requests(plane)["", "how-many"]


async def test_request_waits_for_missing_slices_and_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with ControlPlane(release=Release.alpha(), runtime_config=ALL_VERSIONS) as plane:
        client = await plane.connect("test")
        await publish(client, "first", count=2)
        await until(lambda: bool(plane.informers.objects(RESOURCE_SLICES)))
        await ask(client, "early")
        await until(lambda: "request for the status of pools is not answered" in caplog.messages)
        await publish(client, "second", count=2)
        await until(lambda: len(plane.informers.objects(RESOURCE_SLICES)) == 2)
        await ask(client, "late")
        await until(lambda: bool(requests(plane).get(("", "late"), {}).get("status")))

        assert "status" not in requests(plane)["", "early"]


async def test_answered_request_expires() -> None:
    """After an hour: 1.2 s at this speed."""
    async with ControlPlane(release=Release.alpha(), runtime_config=ALL_VERSIONS, time_scale=3000) as plane:
        client = await plane.connect("test")
        await ask(client, "how-many")

        await until(lambda: bool(requests(plane)))
        await until(lambda: not requests(plane))

        with pytest.raises(NotFound):
            await client.get(RESOURCE_POOL_STATUS_REQUESTS, "how-many")
