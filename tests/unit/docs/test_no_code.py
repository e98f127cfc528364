"""The files of docs/how-to/no-code.md: each is a driver, and the first serves the page's pod."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dra_kit.author.no_code.matching import MOST, find_devices
from dra_kit.author.no_code.model import GlobEntry
from dra_kit.author.no_code.reader import read_globs
from tests.unit.author.no_code.machine import Machine
from tests.unit.cli.kitchen import Kitchen
from tests.unit.docs.pages import Command, run

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "how-to" / "no-code.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "globs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
FILES = {yaml.safe_load(text)["driver"].partition(".")[0]: text for text in BLOCKS if text.startswith("driver:")}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def kitchen() -> Iterator[Kitchen]:
    # a short path: sockets lie below it
    with tempfile.TemporaryDirectory(prefix="k-") as directory:
        yield Kitchen(Path(directory))


@pytest.mark.parametrize(
    ("driver", "nodes", "devices"),
    [
        ("serial", ["/dev/ttyUSB0", "/dev/ttyS0"], ["/dev/ttyUSB0"]),
        ("kvm", ["/dev/kvm", "/dev/vhost-net"], ["/dev/kvm"]),
        ("fuse", ["/dev/fuse"], ["/dev/fuse"]),
        (
            "video",
            ["/dev/v4l/by-id/usb-Acme_Cam-video-index0", "/dev/v4l/by-id/usb-Acme_Cam-video-index1"],
            ["/dev/v4l/by-id/usb-Acme_Cam-video-index0"],
        ),
        ("sound", ["/dev/snd/controlC1", "/dev/snd/pcmC1D0p", "/dev/snd/seq"], ["/dev/snd/controlC1"]),
        (
            "board",
            ["/dev/watchdog", "/dev/watchdog0", "/dev/tpm0", "/dev/tpmrm0", "/dev/i2c-1"],
            ["/dev/watchdog0", "/dev/tpmrm0", "/dev/i2c-1"],
        ),
    ],
)
def test_each_file_finds_its_hardware(machine: Machine, driver: str, nodes: list[str], devices: list[str]) -> None:
    machine.globs(FILES[driver])
    machine.node(*nodes)
    assert [match.file.path for match in find_devices(read_globs(machine.file).devices, machine.root)] == devices


@pytest.mark.processes
def test_the_pod_of_the_page_gets_its_adapter(kitchen: Kitchen) -> None:
    machine = Machine(kitchen.directory)
    for number, vendor in enumerate(("10c4", "0403")):
        machine.node(f"/dev/ttyUSB{number}")
        # as Linux has it: USB device, interface, port of the serial driver, tty
        usb, port = f"/sys/devices/usb1/1-{number}", f"1-{number}:1.0/ttyUSB{number}"
        machine.says(f"{usb}/idVendor", f"{vendor}\n")
        machine.link(f"{usb}/{port}/tty/ttyUSB{number}/device", f"../../../ttyUSB{number}")
        machine.link(f"/sys/class/tty/ttyUSB{number}", f"../../devices/usb1/1-{number}/{port}/tty/ttyUSB{number}")
    machine.globs(FILES["serial"])
    (kitchen.directory / "order.yaml").write_text(next(text for text in BLOCKS if "kind: Pod" in text))

    told = kitchen.call("serial.yaml", "--root", "root", "-f", "order.yaml")

    assert "ttyusb1  usb-serial  unknown  0403" in told
    assert "device node /dev/ttyUSB1 (not applied here)" in told
    assert "| reading from /dev/ttyUSB1" in told
    lint = Command(("dra-kit", "lint", "--driver", "serial.yaml", "--root", "root", "order.yaml"), ())
    assert run(lint, kitchen.directory) == "no findings in 3 objects of 1 file\n"


def test_every_key_is_in_the_table() -> None:
    keys = {field.alias or name for name, field in GlobEntry.model_fields.items()}
    table = REFERENCE.partition("| key | default | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| ([^|]*) \|", table)))) == keys
    assert f"At most {MOST} devices" in REFERENCE
