"""Replicas of the controller role that replace each other under load: each Event is created once."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import EVENTS, LEASES, NAMESPACES, RESOURCE_CLAIMS
from tests.cluster.access import Access, granted
from tests.cluster.pizza import DRIVER, PROJECT
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT, Running, running

pytestmark = pytest.mark.any_release  # it needs Leases, Events and the claims of any release


@pytest.fixture
def access(plane: Plane) -> Iterator[Access]:
    """The controller's account; the cluster has no other controller of the driver."""
    with granted(plane, release="handover", driver=DRIVER) as access:
        yield access


class Load:
    """Claims that are allocated, and deleted a little later, in a namespace of their own."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.served = 0

    async def run(self) -> None:
        while True:
            await self.serve()
            await asyncio.sleep(0.05)

    async def serve(self) -> None:
        number = self.served + 1
        requests = [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]
        name = f"lunch-{number}"
        made = await self.client.create(RESOURCE_CLAIMS, {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"namespace": self.namespace, "name": name}, "spec": {"devices": {"requests": requests}},
        })  # fmt: skip
        result = {"request": "pizza", "driver": DRIVER, "pool": "node-1", "device": f"pizza-{number}"}
        status: dict[str, Any] = {"allocation": {"devices": {"results": [result]}}}
        await self.client.update(RESOURCE_CLAIMS, {**made, "status": status}, subresource="status")
        await self.client.delete(RESOURCE_CLAIMS, name, self.namespace)
        self.served = number

    async def told(self) -> Counter[tuple[str, str]]:
        found = (await self.client.list(EVENTS, self.namespace)).items
        return Counter((each["reason"], each["regarding"]["name"]) for each in found)


@pytest.mark.parametrize("end", ["TERM", "KILL"])
async def test_replicas_that_replace_each_other_under_load_tell_each_event_once(
    end: Literal["TERM", "KILL"], access: Access, tmp_path: Path
) -> None:
    command = [
        DRA_KIT, "controller", PROJECT, "--kubeconfig", access.kubeconfig("controller"), "--lease-namespace",
        access.namespace,
    ]  # fmt: skip
    namespace = f"{access.namespace}-{end.lower()}"

    async def holder() -> str:
        leases = (await client.list(LEASES, access.namespace)).items
        return "".join(each["spec"].get("holderIdentity", "") for each in leases)

    def replica(number: int) -> Running:
        started = stack.enter_context(running(command, log=tmp_path / f"{number}.log"))
        started.wait_until("candidate", lambda: any(word in started.tail() for word in ("standby:", "active:")))
        return started

    async def settled(load: Load, expected: int) -> None:
        async with asyncio.timeout(300):  # who takes over tells the last half minute again
            while sum((await load.told()).values()) < expected:  # noqa: ASYNC110 - other processes write them
                await asyncio.sleep(0.5)

    with ExitStack() as stack:
        async with Client(await load_credentials(access.plane.kubeconfig), user_agent="dra-kit-tests") as client:
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            load = Load(client, namespace)
            replicas = [await asyncio.to_thread(replica, number) for number in (1, 2)]
            loading = asyncio.create_task(load.run())
            for number in (3, 4):
                before = await holder()
                replicas.append(await asyncio.to_thread(replica, number))
                await asyncio.sleep(2)
                ended = replicas.pop(0)
                ended.process.send_signal(getattr(signal, f"SIG{end}"))
                async with asyncio.timeout(300):
                    while number == 3 and await holder() in {before, ""}:  # noqa: ASYNC110
                        await asyncio.sleep(0.2)
            until = load.served + 20  # also of those that are left alone now
            async with asyncio.timeout(300):
                while load.served < until:  # noqa: ASYNC110 - it is served at the speed of this machine
                    await asyncio.sleep(0.2)
            loading.cancel()
            with suppress(asyncio.CancelledError):
                await loading
            served = load.served
            await settled(load, 2 * served)
            told = await load.told()
            await client.delete(NAMESPACES, namespace)

    complete = {(reason, f"lunch-{n}") for n in range(1, served + 1) for reason in ("DeviceAllocated", "ClaimReleased")}
    assert complete <= told.keys()
    assert set(told.values()) == {1}
