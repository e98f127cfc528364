"""Values of attributes: what cannot be read or published is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dra_kit.author.no_code.matching import AttributeUnavailable, DeviceNodeFile, Value, read_attribute
from dra_kit.author.no_code.model import AttributeSource
from dra_kit.kubernetes.values.semver import Version
from tests.unit.author.no_code.machine import Machine

TTY = DeviceNodeFile("/dev/ttyUSB0", "/dev/ttyUSB0", "c", os.makedev(188, 0))
VALUES = {"name": "ttyUSB0", "path": "/dev/ttyUSB0"}


def value(machine: Machine, **source: object) -> Value:
    return read_attribute(AttributeSource.model_validate(source), TTY, VALUES, machine.root)


def absent(machine: Machine, **source: object) -> str:
    with pytest.raises(AttributeUnavailable) as caught:
        value(machine, **source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "source", "expected"),
    [
        ("0403\n", {}, "0403"),
        ("0403\n", {"as": "int"}, 403),
        ("0x0403\n", {"as": "int"}, 0x403),
        ("Y\n", {"as": "bool"}, True),
        ("1.2.3\n", {"as": "version"}, Version("1.2.3")),
        ("DRIVER=ftdi\nPRODUCT=403/6001\n", {"match": "^PRODUCT=([^/]+)"}, "403"),
        ("rev 7\n", {"match": "[0-9]+", "as": "int"}, 7),
        (b"vendor,board\0", {}, "vendor,board"),
    ],
)
def test_the_value_of_a_file_is_converted(
    machine: Machine, content: str | bytes, source: dict[str, str], expected: Value
) -> None:
    machine.says("/sys/class/tty/ttyUSB0/x", content)
    found = value(machine, read="/sys/class/tty/{name}/x", **source)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("content", "source", "reason"),
    [
        ("\n", {}, "it is empty"),
        ("x" * 65, {}, "has more than 64 bytes"),
        ("a\nb", {}, "has characters that cannot be printed"),
        (b"\xff", {}, "is not UTF-8 text"),
        ("many", {"as": "int"}, "'many' is not a valid int"),
        ("9" * 30, {"as": "int"}, "does not fit into 64 bits"),
        ("9" * 9000, {"as": "int"}, "is not a valid int"),
        ("maybe", {"as": "bool"}, "'maybe' is not a valid bool"),
        ("1.2", {"as": "version"}, "'1.2' is not a valid version"),
        ("abc", {"match": "x"}, "'x' does not match 'abc'"),
    ],
)
def test_values_that_cannot_be_published_are_absent(
    machine: Machine, content: str | bytes, source: dict[str, str], reason: str
) -> None:
    machine.says("/sys/x", content)
    assert reason in absent(machine, read="/sys/x", **source)


def test_unreadable_values_are_absent(machine: Machine) -> None:
    assert "cannot be read: No such file" in absent(machine, read="/sys/gone")
    machine.node("/sys/pipe")
    assert "is not a regular file" in absent(machine, read="/sys/pipe")
    machine.link("/sys/loop", "loop")
    assert "cannot be read" in absent(machine, read="/sys/loop")


def test_only_files_of_the_kernel_are_read(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("password")
    machine.says("/etc/secret", "password")
    machine.link("/sys/link", "../etc/secret")
    machine.link("/sys/out", str(tmp_path / "secret"))
    for path in ("/sys/../etc/secret", "/sys/link", "/sys/out", "/sys/../../secret"):
        assert "which is not below /sys/" in absent(machine, read=path)


def test_parent_references_start_at_the_target_of_a_link(machine: Machine) -> None:
    machine.says("/sys/devices/usb1/1-1/idVendor", "0403\n")
    (machine.root / "sys/devices/usb1/1-1/1-1:1.0/ttyUSB0").mkdir(parents=True)
    machine.link("/sys/devices/usb1/1-1/1-1:1.0/ttyUSB0/device", "..")
    machine.link("/sys/class/tty/ttyUSB0", "../../devices/usb1/1-1/1-1:1.0/ttyUSB0")
    assert value(machine, read="/sys/class/tty/{name}/device/../idVendor") == "0403"


def test_udev_properties_are_read(machine: Machine) -> None:
    machine.says("/run/udev/data/c188:0", "I:1234\nE:ID_SERIAL_SHORT=A1B2\nE:ID_VENDOR=FTDI\n")
    assert value(machine, udev="ID_SERIAL_SHORT") == "A1B2"
    assert "has no ID_MODEL" in absent(machine, udev="ID_MODEL")
