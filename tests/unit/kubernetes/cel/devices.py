"""Devices for the evaluation of test expressions."""

from __future__ import annotations

from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.environment import STORED, DeviceEnvironment
from dra_kit.kubernetes.cel.program import Selector, compile_selector

GPU = Device(
    driver="gpu.example.com",
    attributes={
        "model": "H200",
        "empty": "",
        "name": "gräfß",
        "index": 3,
        "negative": -3,
        "ecc": True,
        "driverVersion": {"version": "550.127.8"},
        "firmware": {"version": "1.10.0-rc.1+build.5"},
        "labels": ["b", "a", "c", "a"],
        "ports": [3, 1, 2],
        "versions": {"versions": ["1.2.3", "1.10.0"]},
        "address": "10.1.2.3",
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
    },
    capacity={"memory": "80Gi", "fraction": "1500m", "other.example.com/slots": 8},
    allow_multiple_allocations=True,
)
BARE = Device(driver="bare.example.com")

ATTRIBUTES = 'device.attributes["gpu.example.com"]'
CAPACITY = 'device.capacity["gpu.example.com"]'


def evaluate(expression: str, device: Device = GPU) -> bool:
    """The verdict; ``a.x`` stands for an attribute and ``c.x`` for a capacity of the GPU."""
    return selector(expression).matches(device)


def selector(expression: str, environment: DeviceEnvironment = STORED) -> Selector:
    return compile_selector(spelled(expression), environment=environment)


def spelled(expression: str) -> str:
    return expression.replace("$a", ATTRIBUTES).replace("$c", CAPACITY)
