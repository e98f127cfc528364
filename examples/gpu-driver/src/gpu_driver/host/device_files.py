"""Device files of the host, as a CDI spec names them."""

import os
import stat
from pathlib import Path

import dra_kit as dra


def device_node(host: Path, path: str, *, fake: bool = False) -> dra.DeviceNode:
    """Return a device file with its numbers, which are those of the host's file.

    Args:
        host: root of the host's file system as this process sees it.
        path: on the host, and in the container.
        fake: the file holds its type and numbers as text, since only root can make real ones.

    Raises:
        NotYet: it is missing or not a character device, because the driver's modules may create it later.
    """
    file = host / path.lstrip("/")
    try:
        if fake:
            _, major, minor = file.read_text(encoding="utf-8").split()
            return dra.DeviceNode(path=path, type="c", major=int(major), minor=int(minor))
        found = file.stat()
    except OSError as error:
        raise dra.NotYet(
            f"{path} is not on the node: {error.strerror}; load NVIDIA's driver there (nvidia-modprobe -c 0 -u)"
        ) from None
    if not stat.S_ISCHR(found.st_mode):
        raise dra.NotYet(f"{path} is not a character device on the node; remove it and load NVIDIA's driver")
    return dra.DeviceNode(path=path, type="c", major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))
