"""The standard attributes of PCI functions."""

from __future__ import annotations

from pathlib import Path

import pytest

import dra_kit as dra


def function(sysfs: Path, place: str, numa: str = "1\n") -> Path:
    """Create a function and the link to it; return the link."""
    folder = sysfs / "devices" / place
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(numa)
    link = sysfs / "bus/pci/devices" / folder.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return link


def test_function_has_address_root_and_numa_node(tmp_path: Path) -> None:
    link = function(tmp_path, "pci0000:37/0000:37:01.0/0000:38:00.0")

    assert dra.pci_attributes(link) == {
        "resource.kubernetes.io/pciBusID": "0000:38:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:37",
        "resource.kubernetes.io/numaNode": 1,
    }
    assert dra.pci_attributes(link.resolve()) == dra.pci_attributes(link)


def test_domain_of_a_root_may_have_more_than_four_digits(tmp_path: Path) -> None:
    found = dra.pci_attributes(function(tmp_path, "pci10000:e0/10000:e0:06.0/0000:e1:00.0"))

    assert found["resource.kubernetes.io/pcieRoot"] == "pci10000:e0"


@pytest.mark.parametrize("numa", ["-1\n", "1024\n", "", "none\n"])
def test_unknown_numa_node_is_missing(tmp_path: Path, numa: str) -> None:
    found = dra.pci_attributes(function(tmp_path, "pci0000:00/0000:00:02.0", numa))

    assert found == {
        "resource.kubernetes.io/pciBusID": "0000:00:02.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
    }


def test_device_without_pci_function_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "devices/platform/amdgpu_xcp_0"
    folder.mkdir(parents=True)

    assert dra.pci_attributes(folder) == {}
    assert dra.pci_attributes(tmp_path / "missing") == {}


def test_attributes_are_those_of_a_device(tmp_path: Path) -> None:
    device = dra.Device(name="nic-0", attributes=dra.pci_attributes(function(tmp_path, "pci0000:00/0000:00:02.0")))

    assert device.attributes["resource.kubernetes.io/numaNode"] == 1
