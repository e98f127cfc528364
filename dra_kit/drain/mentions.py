"""Whether anything in a cluster mentions a driver: a misspelt name has no users either."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.resources import DAEMON_SETS, DEVICE_CLASSES, RESOURCE_SLICES, Resource
from dra_kit.drain.confirmations import DRIVER_LABEL, is_of_node_role
from dra_kit.errors import ConfigurationError, Forbidden
from dra_kit.text import did_you_mean

_NAMED: Final = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")
_TEXTS: Final = re.compile(r"""["']([^"']+)["']""")


class Mentions(Struct, frozen=True):
    """What was looked at for a driver's name.

    Attributes:
        drivers: names of drivers that the cluster mentions.
        unreadable: resources that the user may not list.
    """

    drivers: frozenset[str]
    unreadable: tuple[str, ...] = ()


async def require_mentioned(client: Client, driver: str, others: Iterable[str], namespace: str | None) -> Mentions:
    """Look for the driver in slices, DeviceClasses and DaemonSets.

    Args:
        client: of the user.
        driver: its name; no claim has devices of it.
        others: drivers of which claims have devices.
        namespace: of the DaemonSets that are looked at; None for all.

    Returns:
        What was looked at. The driver is among its names, or something cannot be listed.

    Raises:
        ConfigurationError: nothing mentions the driver; offers the nearest name.
    """
    found, unreadable = set(others), []
    looks: list[tuple[Resource, Callable[[], Awaitable[Iterable[str]]]]] = [
        (RESOURCE_SLICES, lambda: _of_slices(client, driver)),
        (DEVICE_CLASSES, lambda: _of_classes(client, driver)),
        (DAEMON_SETS, lambda: _of_daemon_sets(client, driver, namespace)),
    ]
    for resource, look in looks:
        try:
            found.update(await look())
        except Forbidden:
            unreadable.append(resource.plural)
        if driver in found:
            break
    if driver not in found and not unreadable:
        hint = did_you_mean(driver, found) or (f"; there are {', '.join(sorted(found))}" if found else "")
        raise ConfigurationError(
            f"driver {driver} is not in this cluster: no slice, allocated claim, DeviceClass or DaemonSet mentions it; "
            f"correct --driver{hint}",
            code="unknown-driver",
        )
    return Mentions(frozenset(found), tuple(unreadable))


async def _of_slices(client: Client, driver: str) -> Iterable[str]:
    exact = await client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}", keep=_driver_only)
    slices = exact.items or (await client.list(RESOURCE_SLICES, keep=_driver_only)).items
    return {str(item["driver"]) for item in slices}


def _driver_only(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"driver": item["spec"]["driver"]}


async def _of_classes(client: Client, driver: str) -> Iterable[str]:
    names: set[str] = set()
    for item in (await client.list(DEVICE_CLASSES)).items:
        spec = item.get("spec") or {}
        for text in _expressions(spec):
            names.update(_NAMED.findall(text))
            names.update(name for name in _TEXTS.findall(text) if name == driver)
        names.update(
            str(config["opaque"]["driver"]) for config in spec.get("config") or () if (config or {}).get("opaque")
        )
    return names


def _expressions(spec: Mapping[str, Any]) -> Iterator[str]:
    for selector in spec.get("selectors") or ():
        yield str(((selector or {}).get("cel") or {}).get("expression") or "")


async def _of_daemon_sets(client: Client, driver: str, namespace: str | None) -> Iterable[str]:
    items = (await client.list(DAEMON_SETS, namespace, label_selector=DRIVER_LABEL)).items
    names = {str(item["metadata"]["labels"][DRIVER_LABEL]) for item in items if is_of_node_role(item)}
    return {name for name in names if name == driver or "." in name}  # those of most drivers are domain names
