"""Whether a driver's devices are published, and a DeviceClass leads to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.resources import DEVICE_CLASSES, RESOURCE_SLICES
from dra_kit.errors import KubeError
from dra_kit.operation.checks.finding import Finding, fail, ok, warn

_WHAT: Final = "driver"


async def check_driver(client: Client, driver: str) -> list[Finding]:
    """Check its slices and classes.

    Args:
        client: of the API server.
        driver: its name.
    """
    try:
        slices = (await client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")).items
        classes = (await client.list(DEVICE_CLASSES)).items
    except KubeError as error:
        return [warn(_WHAT, f"{driver} is not known: {error}", "run this as somebody who may list them")]
    return driver_findings(driver, slices, classes)


def driver_findings(
    driver: str, slices: Sequence[Mapping[str, Any]], classes: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """Return findings about a driver's slices, and all classes."""
    if not slices:
        remedy = f"does its node role run (dra-kit status on the node), and is {driver} its name?"
        return [fail(_WHAT, f"{driver} has published no slice", remedy)]
    devices = sum(len(item["spec"].get("devices") or ()) for item in slices)
    found = [ok(_WHAT, f"{driver}: {_count(devices, 'device')}{_where(slices)}")]
    naming = [item["metadata"]["name"] for item in classes if driver in str((item.get("spec") or {}).get("selectors"))]
    if naming:
        found.append(ok("DeviceClass", f"{', '.join(sorted(naming))} for {driver}"))
    else:
        remedy = "a class may choose by attributes alone; if none does, apply the driver's DeviceClasses"
        found.append(warn("DeviceClass", f"no selector names {driver}", remedy))
    return found


def _where(slices: Sequence[Mapping[str, Any]]) -> str:
    """Return on how many nodes they are, and of how many pools that belong to none."""
    nodes = {item["spec"]["nodeName"] for item in slices if item["spec"].get("nodeName")}
    pools = {item["spec"]["pool"]["name"] for item in slices if not item["spec"].get("nodeName")}
    parts = [f"on {_count(len(nodes), 'node')}"] if nodes else []
    parts += [f"in {_count(len(pools), 'pool')} of no node"] if pools else []
    return f" {' and '.join(parts)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
