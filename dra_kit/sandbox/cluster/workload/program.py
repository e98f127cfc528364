"""Which program of this machine a container's command means, and what a runtime says when there is none."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_IMAGE_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# the layers that a real message comes through: containerd, its shim, runc
_LAYERS: Final = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: "
)


def image_environment(hostname: str, home: Path) -> dict[str, str]:
    """Return the variables that an image without settings of its own gives a process.

    ``PATH`` is that of most images; on a machine that has no shell there it is this machine's.

    Args:
        hostname: of the pod.
        home: a directory that the process may write to.
    """
    path = _IMAGE_PATH if shutil.which("sh", path=_IMAGE_PATH) else os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOSTNAME": hostname, "HOME": str(home)}


def find_program(command: str, environment: Mapping[str, str]) -> str | None:
    """Return the path of a command's program; a name without a slash is looked for in the container's ``PATH``."""
    if "/" in command:
        return command
    return shutil.which(command, path=environment.get("PATH", ""))


def start_error(command: str, number: int | None) -> str:
    """Return the text of containerd for a command that cannot be started.

    Args:
        command: its first word.
        number: the ``errno`` of the attempt; None when the program was not found.
    """
    match number:
        case None:
            return f'{_LAYERS}exec: "{command}": executable file not found in $PATH'
        case errno.ENOENT | errno.ENOTDIR:
            return f'{_LAYERS}exec: "{command}": stat {command}: no such file or directory'
        case errno.EACCES:
            return f'{_LAYERS}exec: "{command}": permission denied'
        case errno.ENOEXEC:
            return f"{_LAYERS}exec {command}: exec format error"
        case _:
            return f'{_LAYERS}exec: "{command}": {os.strerror(number).lower()}'
