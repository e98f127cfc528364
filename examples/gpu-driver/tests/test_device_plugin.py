"""NVIDIA's device plugin on the same node: refused, unless it is wanted."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dra_kit as dra
import pytest

from gpu_driver.host.device_plugin import refuse_beside_device_plugin

KUBELET = Path("/kubelet")


@pytest.fixture
def host() -> Iterator[Path]:
    # the path of a socket has 107 bytes at most, a test's own folder may have more
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kubelet/device-plugins").mkdir(parents=True)
        yield Path(folder)


def plugin(host: Path) -> str:
    return str(host / "kubelet/device-plugins/nvidia-gpu.sock")


def test_the_device_plugin_is_told_with_both_ways_out(host: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(plugin(host))
        server.listen()
        with pytest.raises(dra.ConfigurationError, match=r"nodeSelector.*--beside-device-plugin"):
            refuse_beside_device_plugin(host, KUBELET)


def test_what_an_ended_device_plugin_has_left_is_no_hindrance(host: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(plugin(host))
    assert Path(plugin(host)).exists()
    refuse_beside_device_plugin(host, KUBELET)


def test_a_node_without_one_is_served(host: Path) -> None:
    refuse_beside_device_plugin(host, KUBELET)
