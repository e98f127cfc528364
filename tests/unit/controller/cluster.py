"""The sandbox's API server, and what the active controller needs of a process around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.informer import Informer
from dra_kit.client.resources import NAMESPACES, RESOURCE_CLAIMS
from dra_kit.controller.claim_follower import ClaimFollower
from dra_kit.process.supervisor import Part

DRIVER = "disk.example.com"
CLAIMS = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}


class Clock:
    """Seconds as the test says."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    """A client that may do everything."""
    async with ApiServer() as server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        yield client


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended; raise its error if it failed before."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def running(part: Part) -> AsyncIterator[asyncio.Event]:
    """An active part, from when it is ready; cancelled at the end, as when the lease is lost."""
    ready = asyncio.Event()
    task = asyncio.create_task(part.run(ready))
    try:
        await asyncio.wait({task, waiting := asyncio.ensure_future(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            await task
        yield ready
    finally:
        await cancelled(task)


@asynccontextmanager
async def following(client: Client) -> AsyncIterator[ClaimFollower]:
    """A follower of claims with a watch, as in every replica."""
    follower = ClaimFollower(client, DRIVER, resync_seconds=3600)
    await follower.resync()

    async def watch() -> None:
        async for change in Informer(client, RESOURCE_CLAIMS).changes():
            await follower.on_claim(change.type, change.object)

    task = asyncio.create_task(watch())
    try:
        yield follower
    finally:
        task.cancel()


async def made_claim(client: Client, name: str = "lunch", *, unsorted: bool = False) -> dict[str, Any]:
    """A claim that is not allocated."""
    with suppress(Exception):
        await client.create(NAMESPACES, {"metadata": {"name": "default"}})
    requests = [{"name": "disk", "exactly": {"deviceClassName": "disk"}}]
    # these are not sorted by name, so the API server rejects patches of the claim
    config = [{"opaque": {"driver": DRIVER, "parameters": {"kind": "Order", "apiVersion": f"{DRIVER}/v1"}}}]
    spec = {"devices": {"requests": requests, "config": config if unsorted else []}}
    body = {**CLAIMS, "metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return await client.create(RESOURCE_CLAIMS, body)


async def allocate(
    client: Client, name: str = "lunch", devices: Sequence[str] = ("disk-0",), *, at: str = "2026-01-01T00:00:00Z",
    conditions: Sequence[str] = ("example.com/attached",), failures: Sequence[str] = ("example.com/failed",),
    node: str = "node-1",
) -> dict[str, Any]:  # fmt: skip
    """Allocate devices, as the scheduler does; none: give back what it has."""
    claim = await client.get(RESOURCE_CLAIMS, name, "default")
    results = [
        {
            "request": "disk", "driver": DRIVER, "pool": "warehouse", "device": device,
            "bindingConditions": list(conditions), "bindingFailureConditions": list(failures),
        }
        for device in devices
    ]  # fmt: skip
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {
        "devices": {
            "results": results,
            "config": [{"source": "FromClaim", **item} for item in claim["spec"]["devices"].get("config", ())],
        },
        "allocationTimestamp": at,
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    status = {**claim.get("status", {}), "allocation": allocation} if devices else {}
    return await client.update(RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status")


async def conditions_of(client: Client, device: str = "disk-0", claim: str = "lunch") -> dict[str, tuple[str, str]]:
    """By type, what a claim says of a device: status and message."""
    found = await client.get(RESOURCE_CLAIMS, claim, "default")
    return {
        item["type"]: (item["status"], item["message"])
        for entry in found.get("status", {}).get("devices") or ()
        if entry["device"] == device
        for item in entry.get("conditions") or ()
    }
