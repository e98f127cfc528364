"""``pci_attributes``: the standard attributes of a device that is a PCI function."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_ADDRESS: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_NUMA_NODE_MAX: Final = 1023
_DOMAIN: Final = "resource.kubernetes.io"


def pci_attributes(function: Path) -> dict[str, str | int]:
    """Return the standard attributes of a PCI function: ``pciBusID``, ``pcieRoot`` and ``numaNode``.

    Drivers of different vendors publish them in the same form, so that one claim can require a GPU and a network
    interface of one PCIe root (``matchAttribute: resource.kubernetes.io/pcieRoot``). An attribute that is unknown is
    missing: an equal value for two unknown roots would align them::

        dra.Device(name="gpu-0", attributes={"model": model, **dra.pci_attributes(link)})

    Source: k8s.io/dynamic-resource-allocation/deviceattribute, Kubernetes 1.37.

    Args:
        function: the function's folder in sysfs, or a link to it, such as ``/sys/bus/pci/devices/0000:3b:00.0`` or
            ``/sys/class/drm/card0/device``.
    """
    folder = function.resolve()
    roots = [part for part in folder.parts if _ROOT.fullmatch(part)]
    found: dict[str, str | int] = {}
    if _ADDRESS.fullmatch(folder.name):
        found["pciBusID"] = folder.name
    if roots:
        found["pcieRoot"] = roots[-1]
    try:
        node = int((folder / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        node = -1
    if 0 <= node <= _NUMA_NODE_MAX:  # -1: the machine has no NUMA nodes
        found["numaNode"] = node
    return {f"{_DOMAIN}/{name}": value for name, value in found.items()}
