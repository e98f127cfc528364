"""``discover_once``: a provider runs outside a node as it does on a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.node.first_inventory import discover_once


class Bus:
    names = ("a", "b")


class Finder(dra.DeviceProvider[dra.Device, Bus]):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name=f"{name}-{self.context.driver.partition('.')[0]}") for name in self.hardware.names]


class Waiter(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared()


def finding(hardware: Any) -> dra.Driver[Any, Any]:
    return dra.Driver("bus.example", provider=Finder(), preparer=Waiter(), hardware=hardware)


def test_provider_has_hardware_and_context() -> None:
    [pool] = discover_once(finding(lambda _: Bus()), None, 60).pools
    assert [device.name for device in pool.devices] == ["a-bus", "b-bus"]


def test_missing_hardware_is_reported() -> None:
    def broken(context: dra.Context[Any]) -> Bus:
        raise OSError("no such bus")

    with pytest.raises(dra.ConfigurationError, match=r"Driver\(hardware=…\) raised OSError: no such bus"):
        discover_once(finding(broken), None, 60)
