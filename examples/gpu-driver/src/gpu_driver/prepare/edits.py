"""Device nodes: the control nodes once for a claim, and those of each device."""

import dra_kit as dra

from gpu_driver.devices.gpu import Gpu
from gpu_driver.hardware import Hardware
from gpu_driver.host import pci
from gpu_driver.host.capabilities import capability_nodes
from gpu_driver.host.device_files import device_node

_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_IF_THERE = ("/dev/nvidia-modeset",)


def control_nodes(hardware: Hardware) -> list[dra.DeviceNode]:
    """Return the nodes that every container with a GPU needs.

    Raises:
        NotYet: one is not on the host.
    """
    optional = [path for path in _IF_THERE if (hardware.host / path.lstrip("/")).exists()]
    return [device_node(hardware.host, path, fake=hardware.fake) for path in (*_CONTROL, *optional)]


def gpu(hardware: Hardware, minor: int) -> list[dra.DeviceNode]:
    """Return the node by which programs compute on a GPU; a MIG device needs it too.

    Raises:
        NotYet: it is not on the host.
    """
    return [device_node(hardware.host, f"/dev/nvidia{minor}", fake=hardware.fake)]


def whole(hardware: Hardware, device: Gpu) -> list[dra.DeviceNode]:
    """Return the nodes of a whole GPU: to compute, and to render where the host can.

    Raises:
        NotYet: one is not on the host.
    """
    rendering = pci.rendering_files(hardware.host, device.pci_bus_id)
    return [
        *gpu(hardware, device.minor),
        *(device_node(hardware.host, path, fake=hardware.fake) for path in rendering),
    ]


def partition(hardware: Hardware, device: Gpu, gpu_instance: int, compute_instance: int) -> list[dra.DeviceNode]:
    """Return the nodes of a MIG device: its GPU's and two capabilities.

    Raises:
        NotYet: one is not on the host.
    """
    return [
        *gpu(hardware, device.minor),
        *capability_nodes(hardware.host, device.minor, gpu_instance, compute_instance),
    ]
