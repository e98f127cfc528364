"""MIG capability nodes: a container opens a partition by two device nodes whose numbers procfs has."""

import re
from pathlib import Path

import dra_kit as dra

PROC = Path("proc/driver/nvidia/capabilities")


def capability_nodes(host: Path, minor: int, gpu_instance: int, compute_instance: int) -> list[dra.DeviceNode]:
    """Nodes below ``/dev/nvidia-caps`` of a GPU instance and of its compute instance.

    Raises:
        NotYet: procfs does not have them (yet).
    """
    gi = host / PROC / f"gpu{minor}/mig/gi{gpu_instance}"
    major = _number(
        host / "proc/devices",
        r"^\s*(\d+) nvidia-caps$",
        "load NVIDIA's driver (nvidia-modprobe -f caps), and set --host-root to where the host's root is seen",
    )
    minors = [
        _number(access, r"^DeviceFileMinor:\s*(\d+)", "the partition is not ready")
        for access in (gi / "access", gi / f"ci{compute_instance}" / "access")
    ]
    return [
        dra.DeviceNode(path=f"/dev/nvidia-caps/nvidia-cap{number}", type="c", major=major, minor=number)
        for number in minors
    ]


def _number(file: Path, line: str, remedy: str) -> int:
    """Return the number on the line of a file of procfs that matches a regular expression."""
    try:
        found = re.search(line, file.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError as error:
        raise dra.NotYet(f"{file}: {error.strerror}; {remedy}") from None
    if found is None:
        raise dra.NotYet(f"{file} has no line like {line}; {remedy}")
    return int(found[1])
