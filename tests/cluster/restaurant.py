"""Guests that come and go: pods with claims from a template, created and deleted over and over, of any driver."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from dra_kit.client.api import Client
from dra_kit.client.resources import EVENTS, NAMESPACES, PODS, RESOURCE_CLAIM_TEMPLATES
from dra_kit.errors import NotFound
from dra_kit.sandbox.stories.namespace import namespace_name

POLL_SECONDS = 0.3
DEADLINE_SECONDS = 180
OF_OTHERS = (
    "FailedScheduling",
    "FailedMount",  # a new namespace does not have its kube-root-ca.crt at once
    "no relationship found between node",  # the node authorizer does not know of a pod as soon as the kubelet does
)
"""Warnings that no driver causes."""


class Lost(Exception):
    """A guest was not served, or could not leave; the message has the state of the pod."""


@dataclass(frozen=True)
class Order:
    """What each guest orders.

    Attributes:
        device_class: of the one device that it needs.
        variable: part of the name of a variable that its container has then; without one it has not been served.
        config: of its claim.
    """

    device_class: str
    variable: str = "_DOUGH"
    config: Sequence[Mapping[str, Any]] = field(default=())


class Restaurant:
    """A namespace in which every guest orders the same.

    Attributes:
        lost: what became of guests who were not served.
        last_orders: guests who leave after it do not come again.
    """

    def __init__(self, client: Client, namespace: str, order: Order) -> None:
        self.lost: list[str] = []
        self.last_orders = asyncio.Event()
        self._client = client
        self._namespace = namespace
        self._order = order
        self._visits: Counter[str] = Counter()
        self._news = asyncio.Condition()

    @classmethod
    @asynccontextmanager
    async def open(cls, client: Client, order: Order) -> AsyncIterator[Self]:
        """A restaurant in a new namespace, which is gone in the end."""
        namespace = namespace_name("story", "restaurant")
        await client.create(NAMESPACES, {"metadata": {"name": namespace}, "apiVersion": "v1", "kind": "Namespace"})
        try:
            await client.create(RESOURCE_CLAIM_TEMPLATES, _template(namespace, order))
            await _until(client, f"/api/v1/namespaces/{namespace}/serviceaccounts/default", there=True)
            yield cls(client, namespace, order)
        finally:
            await client.delete(NAMESPACES, namespace)
            await _until(client, f"/api/v1/namespaces/{namespace}", there=False)

    async def come_and_go(self, guest: str) -> None:
        """Be a guest again and again, until the last orders."""
        self._visits[guest] = 0
        while not self.last_orders.is_set() and not self.lost:
            try:
                await self.seat(guest)
                await self.leave(guest)
            except Lost as error:
                self.lost.append(str(error))
            self._visits[guest] += 1
            async with self._news:
                self._news.notify_all()

    async def everybody_was_served_again(self, guests: int) -> None:
        """Wait until each of so many guests came, was served and left once more from now on, or one was lost."""
        before = self._visits.copy()

        def so() -> bool:
            # the visit that was under way when the wait began does not count
            return len(self._visits) == guests and all(
                self._visits[guest] > before[guest] + 1 for guest in self._visits
            )

        async with self._news:
            await self._news.wait_for(lambda: bool(self.lost) or so())

    async def seat(self, guest: str) -> None:
        """A guest comes, and is served when this returns.

        Raises:
            Lost: or is not.
        """
        await self._client.create(PODS, _pod(self._namespace, guest, self._order.variable))
        end = time.monotonic() + DEADLINE_SECONDS
        while (phase := (await self._client.get(PODS, guest, self._namespace))["status"].get("phase")) != "Running":
            if phase in {"Failed", "Succeeded"} or time.monotonic() > end:
                raise Lost(f"{guest} came and is {phase}: {await self.events(guest)}")
            await asyncio.sleep(POLL_SECONDS)

    async def leave(self, guest: str) -> None:
        """A guest goes; the pod is gone when this returns.

        Raises:
            Lost: it is still there.
        """
        await self._client.delete(PODS, guest, self._namespace)
        try:
            await _until(self._client, PODS.path(self._namespace, guest), there=False)
        except TimeoutError:
            raise Lost(f"{guest} cannot go: {await self.events(guest)}") from None

    async def events(self, guest: str = "", kind: str = "") -> Sequence[str]:
        """Events of one type, or of any, on a guest, or on anybody."""
        return [
            f"{item.get('reason')}: {item.get('note')}"
            for item in (await self._client.list(EVENTS, self._namespace)).items
            if guest in {"", item.get("regarding", {}).get("name")} and kind in {"", item.get("type")}
        ]


async def served_throughout(restaurant: Restaurant, guests: int, roll: Callable[[], Awaitable[object]]) -> list[str]:
    """Have guests come and go while a release is rolled; return warnings that are of a driver's doing.

    Args:
        restaurant: where.
        guests: how many come.
        roll: rolls the release; waits until it is over.
    """
    async with asyncio.TaskGroup() as group:
        for number in range(guests):
            group.create_task(restaurant.come_and_go(f"guest-{number}"))
        await restaurant.everybody_was_served_again(guests)
        await roll()
        await restaurant.everybody_was_served_again(guests)
        restaurant.last_orders.set()
    return [text for text in await restaurant.events(kind="Warning") if not any(other in text for other in OF_OTHERS)]


def _template(namespace: str, order: Order) -> dict[str, Any]:
    requests = [{"name": "dish", "exactly": {"deviceClassName": order.device_class}}]
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATES.kind,
        "metadata": {"name": "dish", "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": requests, "config": list(order.config)}}},
    }


def _pod(namespace: str, name: str, variable: str) -> dict[str, Any]:
    eater = {
        "name": "eater",
        "image": "busybox:stable",
        # who is not served fails
        "command": ["sh", "-c", f"env | grep -q {variable}= && exec sleep 3600"],
        "resources": {"claims": [{"name": "dish"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "dnsPolicy": "Default",
            "containers": [eater],
            "resourceClaims": [{"name": "dish", "resourceClaimTemplateName": "dish"}],
        },
    }


async def _until(client: Client, path: str, *, there: bool) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            if await _exists(client, path) is there:
                return
            await asyncio.sleep(POLL_SECONDS)


async def _exists(client: Client, path: str) -> bool:
    try:
        await client.get_path(path)
    except NotFound:
        return False
    return True
