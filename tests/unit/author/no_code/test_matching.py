"""Which device nodes are devices."""

from __future__ import annotations

import pytest

from dra_kit.author.no_code.matching import MOST, find_devices
from dra_kit.author.no_code.reader import read_globs
from dra_kit.errors import ConfigurationError
from tests.unit.author.no_code.machine import Machine


def test_each_node_is_a_device_in_natural_order(machine: Machine) -> None:
    machine.node("/dev/ttyUSB10", "/dev/ttyUSB2", "/dev/ttyACM0", "/dev/sda")
    assert machine.found("paths: [/dev/ttyUSB*, /dev/ttyACM*]") == ["/dev/ttyUSB2", "/dev/ttyUSB10", "/dev/ttyACM0"]


def test_a_glob_without_a_match_finds_no_devices(machine: Machine) -> None:
    assert machine.found("paths: /dev/nothing*", "paths: /dev/folder/*/none") == []


def test_files_and_folders_are_not_devices(machine: Machine) -> None:
    machine.says("/dev/notes", "")
    (machine.root / "dev" / "folder").mkdir()
    assert machine.found("paths: /dev/*") == []


def test_a_pattern_selects_paths(machine: Machine) -> None:
    machine.node("/dev/video0", "/dev/video1", "/dev/video10")
    assert machine.found("{paths: /dev/video*, pattern: 'video[0-9]$'}") == ["/dev/video0", "/dev/video1"]


def test_a_link_is_resolved_to_its_node(machine: Machine) -> None:
    machine.node("/dev/ttyUSB0")
    machine.link("/dev/serial/by-id/usb-one", "../../ttyUSB0")
    machine.found("paths: /dev/serial/by-id/*")
    [match] = find_devices(read_globs(machine.file).devices, machine.root)
    assert (match.file.path, match.file.host_path) == ("/dev/serial/by-id/usb-one", "/dev/ttyUSB0")


def test_a_node_with_two_names_belongs_to_the_first_entry(machine: Machine) -> None:
    machine.node("/dev/ttyUSB0", "/dev/ttyUSB1")
    machine.link("/dev/serial/by-id/usb-one", "../../ttyUSB0")
    found = machine.found("paths: /dev/serial/by-id/*", "paths: /dev/ttyUSB*")
    assert found == ["/dev/serial/by-id/usb-one", "/dev/ttyUSB1"]


@pytest.mark.parametrize("target", ["../run/pipe", "/etc/passwd", "../../../../../../etc/passwd", "nowhere", "loop"])
def test_a_link_out_of_dev_is_ignored(machine: Machine, target: str) -> None:
    machine.node("/run/pipe")
    machine.link("/dev/loop", target)
    assert machine.found("paths: /dev/loop") == []


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o757])
@pytest.mark.parametrize("folder", ["shm", "shared", "shared/deeper"])
@pytest.mark.parametrize(
    ("link", "target"),
    [("ttyUSB0", "/dev/sda"), ("ttyUSB0", "../sda"), ("ttyUSB0", "other"), ("folder", "..")],
)
def test_a_link_in_a_world_writable_folder_is_ignored(
    machine: Machine, folder: str, mode: int, link: str, target: str
) -> None:
    machine.node("/dev/sda", "/dev/usb/ttyUSB0", "/dev/ttyUSB1")
    machine.link(f"/dev/{folder}/{link}", target.replace("/dev", str(machine.root / "dev"), 1))
    machine.link(f"/dev/{folder}/other", "../" * (folder.count("/") + 1) + "sda")
    (machine.root / "dev" / folder.partition("/")[0]).chmod(mode)
    depths = "[/dev/*/ttyUSB*, /dev/*/*/ttyUSB*, /dev/*/*/sda, /dev/*/*/*/sda]"
    assert machine.found(f"paths: {depths}") == ["/dev/usb/ttyUSB0"]


def test_a_link_through_a_world_writable_folder_is_ignored(machine: Machine) -> None:
    machine.node("/dev/sda")
    machine.link("/dev/shared/next", "../sda")
    machine.link("/dev/ttyUSB0", "shared/next")
    assert machine.found("paths: /dev/ttyUSB*") == ["/dev/ttyUSB0"]
    (machine.root / "dev" / "shared").chmod(0o1777)
    assert machine.found("paths: /dev/ttyUSB*") == []


@pytest.mark.parametrize("folder", ["shm", "mqueue"])
def test_nodes_in_shared_memory_are_ignored(machine: Machine, folder: str) -> None:
    machine.node(f"/dev/{folder}/ttyUSB0", "/dev/usb/ttyUSB1")
    assert machine.found("paths: /dev/*/ttyUSB*") == ["/dev/usb/ttyUSB1"]


def test_a_companion_in_a_world_writable_folder_is_ignored(machine: Machine) -> None:
    machine.node("/dev/ttyUSB0", "/dev/sda")
    machine.link("/dev/shm/extra", "../sda")
    assert machine.found("{paths: /dev/ttyUSB*, with: /dev/*/extra}") == []


def test_an_absolute_link_is_resolved_inside_the_host_root(machine: Machine) -> None:
    machine.node("/dev/ttyUSB0")
    machine.link("/dev/by-name/one", str(machine.root / "dev" / "ttyUSB0"))
    assert machine.found("paths: /dev/by-name/*") == ["/dev/by-name/one"]


def test_a_device_of_several_nodes_exists_when_all_nodes_exist(machine: Machine) -> None:
    machine.node("/dev/snd/controlC0", "/dev/snd/pcmC0D0p", "/dev/snd/pcmC0D0c", "/dev/snd/controlC1")
    entry = "{paths: /dev/snd/controlC*, pattern: 'C(?P<card>[0-9]+)$', with: '/dev/snd/pcmC{card}D*'}"
    assert machine.found(entry) == ["/dev/snd/controlC0"]
    [match] = find_devices(read_globs(machine.file).devices, machine.root)
    assert [file.path for file in match.companions] == ["/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0p"]


def test_the_value_of_a_placeholder_is_not_a_glob(machine: Machine) -> None:
    machine.node("/dev/a*", "/dev/with-ab")
    assert machine.found("{paths: '/dev/a[*]', with: '/dev/with-{name}'}") == []


def test_an_implausible_number_of_devices_is_rejected(machine: Machine) -> None:
    machine.node(*(f"/dev/x{number}" for number in range(MOST)))
    assert len(machine.found("paths: /dev/x*")) == MOST
    machine.node("/dev/y")
    with pytest.raises(
        ConfigurationError, match=r"devices\[0\]\.paths: /dev/\* matches so much that there are more than"
    ):
        machine.found("paths: /dev/*")
