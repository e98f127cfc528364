"""The published part of an inventory with unhealthy devices."""

from __future__ import annotations

import datetime as dt

import dra_kit as dra
from dra_kit.author.device import Device
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.kubernetes.resource.validation.devices import LIMITS
from dra_kit.node.health_ledger import HealthVerdict, advertised_inventory

SINCE = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


class Gpu(dra.Device):
    uuid: str


def taint(key: str) -> dra.DeviceTaint:
    return dra.DeviceTaint(key=key, effect="NoSchedule", time_added=SINCE)


def inventory(*devices: Device) -> Inventory[Device]:
    return Inventory(pools=[Pool(name="a", devices=devices), Pool(name="b", devices=[dra.Device(name="gpu-0")])])


def verdict(*taints: dra.DeviceTaint, withdrawn: bool = False) -> HealthVerdict:
    return HealthVerdict(("Unhealthy", ""), taints, withdrawn)


def test_inventory_of_healthy_devices_is_published_unchanged() -> None:
    found = inventory(dra.Device(name="gpu-0"))
    assert advertised_inventory(found, {("a", "gpu-0"): verdict()}) is found


def test_taint_is_added_to_one_device_and_changes_nothing_else() -> None:
    gpu = Gpu(name="gpu-0", uuid="A", attributes={"model": "x"}, capacity={"memory": "80Gi"})
    found = inventory(gpu)
    [first, second] = advertised_inventory(found, {("a", "gpu-0"): verdict(taint("example.com/hot"))}).pools
    assert second is found.pools[1]
    published = first.devices[0].to_v1().to_json()
    assert published.pop("taints") == [
        {"key": "example.com/hot", "effect": "NoSchedule", "timeAdded": "2026-01-02T00:00:00Z"}
    ]
    assert published == gpu.to_v1().to_json()


def test_withdrawn_device_is_omitted_and_its_pool_remains() -> None:
    [first, _] = advertised_inventory(
        inventory(dra.Device(name="gpu-0")), {("a", "gpu-0"): verdict(withdrawn=True)}
    ).pools
    assert (first.name, first.devices) == ("a", ())


def test_taints_are_limited_to_the_api_maximum_with_the_authors_first() -> None:
    own = [taint(f"own.example/{number}") for number in range(10)]
    more = [taint(f"health.example/{number}") for number in range(10)]
    found = advertised_inventory(inventory(dra.Device(name="gpu-0", taints=own)), {("a", "gpu-0"): verdict(*more)})
    taints = found.pools[0].devices[0].taints
    assert len(taints) == LIMITS.taints
    assert list(taints[:10]) == own
