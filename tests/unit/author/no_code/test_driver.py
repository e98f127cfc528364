"""A file of globs as the driver of a node."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kit.author.no_code.driver import GlobSettings
from dra_kit.author.target import load_driver
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.support.api import eventually
from tests.unit.author.no_code.machine import Machine
from tests.unit.node import role
from tests.unit.node.role import Node

DRIVER = "serial.example.com"
SERIAL = """
driver: serial.example.com
devices:
- paths: /dev/ttyUSB*
  pattern: 'USB(?P<number>[0-9]+)$'
  attributes:
    kind: usb-serial
    number: {value: "{number}", as: int}
    vendor: {read: "/sys/class/tty/{name}/idVendor"}
    model: {read: "/sys/class/tty/{name}/model", default: unknown}
  with: /dev/lock{number}
  gid: 20
  env: {"{env}_PORT": "{path}"}
  mounts: [{hostPath: /etc/serial, containerPath: "/etc/{name}"}]
- paths: /dev/fuse
  allowMultipleAllocations: true
  capacity: {users: {value: 10, requestPolicy: {default: 1}}}
"""


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with role.node() as made:
        yield made


@pytest.fixture
def serial(machine: Machine) -> Machine:
    machine.globs(SERIAL)
    machine.node("/dev/ttyUSB0", "/dev/lock0", "/dev/lock1")
    machine.says("/sys/class/tty/ttyUSB0/idVendor", "0403\n")
    return machine


def running(node: Node, machine: Machine) -> Any:
    settings = GlobSettings(root=machine.root)
    return node.running(load_driver(str(machine.file)), author=settings, check_device_nodes=False)


def devices(node: Node) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for spec in node.slices() for item in spec.get("devices", [])}


def claim(node: Node, device: str = "ttyusb0", **options: Any) -> ClaimReference:
    return node.claim(devices=[{"device": device, "driver": DRIVER, "request": "port"}], **options)


async def test_devices_are_published(node: Node, serial: Machine) -> None:
    serial.node("/dev/fuse")
    async with running(node, serial):
        await eventually(lambda: list(devices(node)) == ["ttyusb0", "fuse"])
        tty, fuse = devices(node).values()
        assert tty["attributes"] == {
            "kind": {"string": "usb-serial"},
            "number": {"int": 0},
            "vendor": {"string": "0403"},
            "model": {"string": "unknown"},
        }
        assert fuse["allowMultipleAllocations"] is True
        assert fuse["capacity"] == {"users": {"value": "10", "requestPolicy": {"default": "1"}}}


async def test_a_container_gets_its_device_nodes(node: Node, serial: Machine) -> None:
    async with running(node, serial):
        await eventually(lambda: node.published() == ["ttyusb0"])
        reference = claim(node)
        await node.kubelet.prepare(DRIVER, [reference])
        [device] = node.spec(reference)["devices"]
        assert device["containerEdits"] == {
            "env": ["TTYUSB0_PORT=/dev/ttyUSB0"],
            "deviceNodes": [
                {"path": "/dev/ttyUSB0", "permissions": "rw", "gid": 20},
                {"path": "/dev/lock0", "permissions": "rw", "gid": 20},
            ],
            "mounts": [{"hostPath": "/etc/serial", "containerPath": "/etc/ttyUSB0", "options": ["rbind", "ro"]}],
        }
        await node.kubelet.unprepare(DRIVER, [reference])
        assert node.is_clean()


@pytest.mark.processes
async def test_appearing_and_disappearing_devices_update_the_pool(node: Node, serial: Machine) -> None:
    async with running(node, serial):
        await eventually(lambda: node.published() == ["ttyusb0"])
        serial.node("/dev/ttyUSB1")
        await eventually(lambda: node.published() == ["ttyusb0", "ttyusb1"])
        (serial.root / "dev" / "ttyUSB0").unlink()
        await eventually(lambda: node.published() == ["ttyusb1"])
        (serial.root / "dev" / "ttyUSB1").unlink()
        await eventually(lambda: node.published() == [])


async def test_globs_that_match_nothing_are_an_empty_pool(node: Node, machine: Machine) -> None:
    machine.globs(SERIAL)
    async with running(node, machine):
        await eventually(lambda: len(node.slices()) == 1)
        assert node.published() == []


async def test_an_attribute_follows_the_file_that_it_is_read_from(
    node: Node, serial: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    vendor = serial.root / "sys/class/tty/ttyUSB0/idVendor"
    vendor.unlink()
    async with running(node, serial):
        await eventually(lambda: node.published() == ["ttyusb0"])
        assert "vendor" not in devices(node)["ttyusb0"]["attributes"]
        logged = [record for record in caplog.records if record.message == "device has no value for an attribute"]
        assert [(vars(record)["device"], vars(record)["attribute"]) for record in logged] == [("ttyusb0", "vendor")]
        vendor.write_text("0403\n")  # as udev does, a moment after the node is there
        await eventually(lambda: "vendor" in devices(node)["ttyusb0"]["attributes"])


async def test_opaque_configuration_is_rejected(node: Node, serial: Machine) -> None:
    parameters = {"apiVersion": "serial.example.com/v1", "kind": "SerialConfig", "baud": 9600}
    entry = {
        "source": "FromClaim",
        "requests": [],
        "opaque": {"driver": DRIVER, "parameters": parameters},
    }
    async with running(node, serial):
        await eventually(lambda: node.published() == ["ttyusb0"])
        reference = claim(node, config=[entry])
        answers = await node.kubelet.plugin(DRIVER).prepare([reference])
        assert "takes no" in answers[reference.uid].error


async def test_too_many_devices_are_reported_with_the_line(
    node: Node, serial: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    serial.globs("driver: serial.example.com\ndevices:\n- paths: /dev/*\n")
    serial.node(*(f"/dev/x{number}" for number in range(1100)))
    async with running(node, serial):
        logged = f"{serial.file}:3: devices[0].paths: /dev/* matches so much"
        await eventually(lambda: any(logged in str(vars(record)) for record in caplog.records))
