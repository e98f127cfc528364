"""Whether the host has the device files that a claim's CDI spec names."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from dra_kit.cdi.spec import DeviceNode, Spec
from dra_kit.errors import NotYet

_TYPES: Final = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}


def check_device_nodes(spec: Spec | None) -> None:
    """Look for the device files that the container runtime is going to look for.

    It takes type and numbers from the host's file, and does not start the container where there is none; a node whose
    type and numbers the spec gives needs no file (CDI's Go library 1.1.1, ``fillMissingInfo``).

    Raises:
        NotYet: a path is not there, or is no such device (code ``device-node-missing``): it may come up late, and what
            was made for the claim stays until the kubelet asks again.
    """
    for node in _from_host(spec):
        path = node.host_path or node.path
        try:
            mode = os.lstat(path).st_mode  # as the library does: it follows no link
        except OSError as error:
            raise _missing(node, path, f"is not on the node: {error.strerror}") from None
        found = _TYPES.get(stat.S_IFMT(mode), "")
        if stat.S_ISLNK(mode):
            raise _missing(node, path, "is a link, which container runtimes do not follow: name what it leads to")
        if not found or found != (node.type or found):
            wanted = {"b": "block device", "c": "character device", "p": "FIFO"}.get(node.type, "device file")
            raise _missing(node, path, f"is no {wanted}")


def _from_host(spec: Spec | None) -> Iterator[DeviceNode]:
    """Yield the nodes of which something is taken from the host's file."""
    if spec is None:
        return
    for edits in (spec.container_edits, *(device.container_edits for device in spec.devices)):
        for node in edits.device_nodes:
            if not node.type or (not node.major and node.type != "p"):
                yield node


def _missing(node: DeviceNode, path: str, why: str) -> NotYet:
    wanted = f", for {node.path} in the container," if path != node.path else ""
    return NotYet(
        f"device node {path}{wanted} {why}; load the driver that makes it, or where this process does not see the "
        "node's /dev, start it with --no-check-device-nodes",
        code="device-node-missing",
    )
