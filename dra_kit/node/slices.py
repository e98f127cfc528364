"""Devices of pools that belong to no node, which the controller publishes: read when a claim names one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.published import from_published
from dra_kit.author.devices.unserved import device_class
from dra_kit.author.driver import Driver
from dra_kit.errors import InvalidDevice, KubeError, TransientError
from dra_kit.kube.client import Client
from dra_kit.kube.resources import RESOURCE_SLICES
from dra_kit.kubernetes.resource import v1
from dra_kit.node.server_facts import ServerFacts
from dra_kit.publishing.identity import Identity, identity


class DevicesOfNoNode:
    """For a driver with a cluster provider; nothing is asked for claims of this node's own devices.

    Each claim sees what is published when it is prepared: one list for it, which claims that come meanwhile share.

    Args:
        client: needs ``list`` on resourceslices, as the publisher does.
        driver: the driver's name.
        facts: what the API server can select by.
        device_class: of the cluster provider, without fields of its own.
        clock: seconds that only rise.
    """

    def __init__(
        self,
        client: Client,
        driver: str,
        facts: ServerFacts,
        device_class: type[Device],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._driver = driver
        self._facts = facts
        self._device_class = device_class
        self._clock = clock
        self._reading = asyncio.Lock()
        self._read: dict[str, tuple[float, Sequence[v1.ResourceSlice]]] = {}

    async def device(self, pool: str, name: str) -> tuple[Device, Identity]:
        """Return the device as it is published, and what makes it the same one.

        Raises:
            TransientError: it is not published (code ``device-gone``), or the API server cannot be asked.
        """
        try:
            slices = await self._slices(pool)
        except KubeError as error:
            raise TransientError(
                f"device {pool}/{name} cannot be looked up: {error}; the kubelet tries again", code=error.code
            ) from error
        for item in sorted(slices, key=lambda item: item.spec.pool.generation, reverse=True):
            for published in item.spec.devices:
                if published.name == name:
                    return self._known(pool, published)
        raise TransientError(
            f"device {pool}/{name} is neither in this node's inventory nor published for no node any more; it can be "
            "prepared when it is back, else delete the pod so that another device is allocated",
            code="device-gone",
        )

    async def _slices(self, pool: str) -> Sequence[v1.ResourceSlice]:
        asked = self._clock()
        async with self._reading:
            began, slices = self._read.get(pool, (-1.0, ()))
            if began >= asked:
                return slices  # another claim's answer, to a question that was asked later than ours
            self._read.clear()  # what is kept is for those who wait now
            began = self._clock()
            slices = await self._list(pool)
            self._read[pool] = (began, slices)
            return slices

    async def _list(self, pool: str) -> Sequence[v1.ResourceSlice]:
        selector = f"spec.driver={self._driver},spec.nodeName="
        if (await self._facts.features()).pool_name_selector:
            selector += f",spec.pool.name={pool}"
        listed = await self._client.list(RESOURCE_SLICES, field_selector=selector)
        ours: list[dict[str, Any]] = [item for item in listed.items if item["spec"]["pool"]["name"] == pool]
        try:
            return [v1.ResourceSlice.model_validate(item) for item in ours]
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            raise KubeError(f"slices of pool {pool} are not understood: {problem}; report this") from error

    def _known(self, pool: str, published: v1.Device) -> tuple[Device, Identity]:
        try:
            device = from_published(self._device_class, published)
        except (InvalidDevice, ValueError) as error:
            text = " ".join(str(error).split())
            raise TransientError(
                f"device {pool}/{published.name} is published with what this release does not know: {text}; bring the "
                "node's driver to the release of the controller's",
                code="device-gone",
            ) from error
        return device, identity(device)


def of_no_node(driver: Driver[Any, Any], client: Client, facts: ServerFacts) -> DevicesOfNoNode | None:
    """Return the source for a driver that has such devices, else None."""
    provider = driver.cluster_provider
    return None if provider is None else DevicesOfNoNode(client, driver.name, facts, device_class(provider))
