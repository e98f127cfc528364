"""A ResourceClaim as the scheduler would have allocated it, for tests without one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dra_kit.author.config import OpaqueConfig
from dra_kit.author.device import Device
from dra_kit.author.device_fields import CounterSet
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.values.quantity import Quantity


def allocated_claim(
    reference: ClaimReference,
    driver: str,
    pool: str,
    devices: Sequence[Device],
    config: OpaqueConfig | Mapping[str, Any] | None,
    *,
    admin_access: bool,
) -> dict[str, Any]:
    """Return the claim object; a device that may be shared has a share, with the defaults of the request policies.

    Args:
        reference: of the claim.
        driver: the driver's name.
        pool: that the devices are in.
        devices: all for one request, ``device``.
        config: of the claim, for all devices.
        admin_access: of the request.
    """
    results = []
    for device in devices:
        result: dict[str, Any] = {"request": "device", "driver": driver, "pool": pool, "device": device.name}
        if admin_access:
            result["adminAccess"] = True
        if device.allow_multiple_allocations:
            result |= {"shareID": f"share-{reference.name}", "consumedCapacity": _consumed(device)}
        results.append(result)
    entries = []
    if config is not None:
        opaque = {"driver": driver, "parameters": _parameters(config)}
        entries.append({"source": "FromClaim", "requests": [], "opaque": opaque})
    return {
        "metadata": {"name": reference.name, "namespace": reference.namespace, "uid": reference.uid},
        "status": {"allocation": {"devices": {"results": results, "config": entries}}},
    }


def _consumed(device: Device) -> dict[str, str]:
    return {
        name: str(offer.value if offer.request_policy is None else offer.request_policy.default or offer.value)
        for name, offer in device.to_v1().capacity.items()
    }


def _parameters(config: OpaqueConfig | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    kind = type(config)
    fields: dict[str, Any] = json.loads(config.model_dump_json(by_alias=True))
    return {"apiVersion": kind.api_version_, "kind": kind.kind_} | fields


def counter_sets(devices: Sequence[Device]) -> list[CounterSet]:
    """Return counter sets for all these devices at once; the real ones are in the pool of ``discover``."""
    found: dict[str, dict[str, Quantity]] = {}
    for taken in (taken for device in devices for taken in device.consumes_counters):
        counters = found.setdefault(taken.counter_set, {})
        for name, amount in taken.counters.items():
            counters[name] = counters.get(name, Quantity(0)) + Quantity(amount)
    return [CounterSet(name=name, counters=counters) for name, counters in found.items()]
