"""What is published of an inventory with unhealthy devices."""

from __future__ import annotations

import datetime as dt

import dra_kit as dra
from dra_kit.author.device import Device
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.node.health_ledger import TAINTS_MAX, HealthVerdict, advertised_inventory

SINCE = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


class Gpu(dra.Device):
    uuid: str


def taint(key: str) -> dra.DeviceTaint:
    return dra.DeviceTaint(key=key, effect="NoSchedule", time_added=SINCE)


def inventory(*devices: Device) -> Inventory[Device]:
    return Inventory(pools=[Pool(name="a", devices=devices), Pool(name="b", devices=[dra.Device(name="gpu-0")])])


def verdict(*taints: dra.DeviceTaint, withdrawn: bool = False) -> HealthVerdict:
    return HealthVerdict(("Unhealthy", ""), taints, withdrawn)


def test_an_inventory_whose_devices_are_well_is_published_as_it_is() -> None:
    found = inventory(dra.Device(name="gpu-0"))
    assert advertised_inventory(found, {("a", "gpu-0"): verdict()}) is found


def test_only_the_device_of_the_pool_is_tainted_and_nothing_else_of_it_is_different() -> None:
    gpu = Gpu(name="gpu-0", uuid="A", attributes={"model": "x"}, capacity={"memory": "80Gi"})
    found = inventory(gpu)
    [first, second] = advertised_inventory(found, {("a", "gpu-0"): verdict(taint("example.com/hot"))}).pools
    assert second is found.pools[1]
    published = first.devices[0].to_v1().to_json()
    assert published.pop("taints") == [
        {"key": "example.com/hot", "effect": "NoSchedule", "timeAdded": "2026-01-02T00:00:00Z"}
    ]
    assert published == gpu.to_v1().to_json()


def test_a_withdrawn_device_is_left_out_and_its_pool_stays() -> None:
    [first, _] = advertised_inventory(
        inventory(dra.Device(name="gpu-0")), {("a", "gpu-0"): verdict(withdrawn=True)}
    ).pools
    assert (first.name, first.devices) == ("a", ())


def test_a_device_has_no_more_taints_than_the_api_takes_and_the_authors_come_first() -> None:
    own = [taint(f"own.example/{number}") for number in range(10)]
    more = [taint(f"health.example/{number}") for number in range(10)]
    found = advertised_inventory(inventory(dra.Device(name="gpu-0", taints=own)), {("a", "gpu-0"): verdict(*more)})
    taints = found.pools[0].devices[0].taints
    assert len(taints) == TAINTS_MAX
    assert list(taints[:10]) == own
