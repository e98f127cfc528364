"""What the drivers of a cluster publish: pools, devices by name, and texts that can be compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dra_kit.client.resources import RESOURCE_SLICES

if TYPE_CHECKING:
    from dra_kit.sandbox.stories.expectations.facts import Cluster, PublishedDevice

PARTIAL: Final = "a part"
"""Stands for a pool some slices of which are yet to come."""


async def pools(cluster: Cluster, driver: str = "") -> dict[tuple[str, str], str]:
    """Return the devices of each pool as a text, or :data:`PARTIAL`, by driver and pool.

    Args:
        cluster: to look at.
        driver: whose pools; empty for all.
    """
    slices: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for item in await _slices(cluster):
        spec = item["spec"]
        if spec["driver"] == (driver or spec["driver"]):
            slices.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    return {pool: _pool_text(specs) for pool, specs in slices.items()}


async def devices(cluster: Cluster) -> dict[str, PublishedDevice]:
    """Return the published devices, by ``<name>``; of several pools by ``<pool>/<name>``.

    Where devices of several drivers would have one name, it is ``<driver>/<pool>/<name>``.
    """
    found = [_device(item, device) for item in await _slices(cluster) for device in item["spec"].get("devices", [])]
    several = len({item.pool for item in found}) > 1
    names = [f"{item.pool}/{item.name}" if several else item.name for item in found]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return {
        f"{item.driver}/{item.pool}/{item.name}" if name in twice else name: item
        for name, item in zip(names, found, strict=True)
    }


async def device_texts(cluster: Cluster) -> set[str]:
    """Return each published device with its pool, as a text; generations do not matter."""
    several = len(cluster.drivers) > 1
    return {
        f"device {item['spec']['driver'] + '/' if several else ''}{item['spec']['pool']['name']}/{device['name']} as "
        f"{json.dumps(device, sort_keys=True)}"
        for item in await _slices(cluster)
        for device in item["spec"].get("devices", [])
    }


async def _slices(cluster: Cluster) -> Sequence[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for driver in cluster.drivers:
        found += (await cluster.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")).items
    return found


def _device(item: Mapping[str, Any], device: Mapping[str, Any]) -> PublishedDevice:
    from dra_kit.sandbox.stories.expectations.facts import PublishedDevice  # a story asks for them, -f never

    return PublishedDevice(
        name=device["name"],
        pool=item["spec"]["pool"]["name"],
        driver=item["spec"]["driver"],
        attributes={key: next(iter(value.values())) for key, value in device.get("attributes", {}).items()},
        capacity={key: value["value"] for key, value in device.get("capacity", {}).items()},
        taints=tuple(device.get("taints", ())),
    )


def _pool_text(specs: Sequence[Mapping[str, Any]]) -> str:
    newest = max(item["pool"]["generation"] for item in specs)
    current = [item for item in specs if item["pool"]["generation"] == newest]
    if len(current) < current[0]["pool"]["resourceSliceCount"]:
        return PARTIAL
    return json.dumps([item.get("devices", []) for item in current], sort_keys=True)
