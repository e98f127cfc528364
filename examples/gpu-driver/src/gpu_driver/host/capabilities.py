"""MIG capability nodes: a container opens a partition by two device nodes that procfs tells of."""

import re
from pathlib import Path

import dra_kit as dra

PROC = Path("proc/driver/nvidia/capabilities")


def capability_nodes(host: Path, minor: int, gpu_instance: int, compute_instance: int) -> list[dra.DeviceNode]:
    """Nodes below ``/dev/nvidia-caps`` of a GPU instance and of its compute instance.

    Raises:
        NotYet: procfs does not tell of them (yet).
    """
    gi = host / PROC / f"gpu{minor}/mig/gi{gpu_instance}"
    major = _major(host)
    return [_node(access, major) for access in (gi / "access", gi / f"ci{compute_instance}" / "access")]


def _node(access: Path, major: int) -> dra.DeviceNode:
    try:
        text = access.read_text(encoding="utf-8")
    except OSError as error:
        raise dra.NotYet(f"{access}: {error.strerror}; the partition is not ready") from None
    found = re.search(r"^DeviceFileMinor:\s*(\d+)", text, re.MULTILINE)
    if found is None:
        raise dra.NotYet(f"{access} names no DeviceFileMinor; the partition is not ready")
    return dra.DeviceNode(path=f"/dev/nvidia-caps/nvidia-cap{found[1]}", type="c", major=major, minor=int(found[1]))


def _major(host: Path) -> int:
    path = host / "proc/devices"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise dra.NotYet(f"{path}: {error.strerror}; set --host-root to where the host's root is seen") from None
    found = re.search(r"^\s*(\d+) nvidia-caps$", text, re.MULTILINE)
    if found is None:
        raise dra.NotYet(f"{path} lists no nvidia-caps; load NVIDIA's driver (nvidia-modprobe -f caps)")
    return int(found[1])
