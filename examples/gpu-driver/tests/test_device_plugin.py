"""NVIDIA's device plugin on the same node: refused, unless it is wanted."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import dra_kit as dra
import pytest
from dra_kit.testing import unit

from gpu_driver.driver import driver
from gpu_driver.host.device_plugin import refuse_beside_device_plugin
from gpu_driver.settings import Settings
from tests.conftest import Node

KUBELET = Path("/kubelet")


@pytest.fixture
def host() -> Iterator[Path]:
    # the path of a socket has 107 bytes at most, a test's own folder may have more
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kubelet/device-plugins").mkdir(parents=True)
        yield Path(folder)


def plugin(host: Path, resource: str = "gpu") -> str:
    return str(host / f"kubelet/device-plugins/nvidia-{resource}.sock")


@contextmanager
def served(path: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        yield


@pytest.mark.parametrize("resource", ["gpu", "gpu.shared", "mig-1g.5gb"])
def test_the_device_plugin_is_reported_with_both_remedies(host: Path, resource: str) -> None:
    with (
        served(plugin(host, resource)),
        pytest.raises(dra.ConfigurationError, match=rf"nvidia-{resource}\.sock.*nodeSelector.*--beside-device-plugin"),
    ):
        refuse_beside_device_plugin(host, KUBELET)


def test_another_vendors_plugin_is_ignored(host: Path) -> None:
    with served(str(host / "kubelet/device-plugins/amd-gpu.sock")):
        refuse_beside_device_plugin(host, KUBELET)


def test_the_driver_does_not_start_next_to_a_device_plugin_unless_allowed(host: Path, node: Node) -> None:
    hardware = replace(node.hardware, fake=False, host=host)
    settings = Settings(kubelet_root=KUBELET)
    with served(plugin(host)):
        with (
            pytest.raises(dra.ConfigurationError, match="device plugin"),
            unit(driver, hardware=hardware, settings=settings),
        ):
            pass
        with unit(driver, hardware=hardware, settings=Settings(kubelet_root=KUBELET, beside_device_plugin=True)):
            pass


def test_the_stale_socket_of_a_device_plugin_is_ignored(host: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(plugin(host))
    assert Path(plugin(host)).exists()
    refuse_beside_device_plugin(host, KUBELET)


def test_a_node_without_a_device_plugin_is_served(host: Path) -> None:
    refuse_beside_device_plugin(host, KUBELET)
