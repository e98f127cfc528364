"""Unix sockets: whether a process serves one."""

import errno
import socket
from pathlib import Path

_NOBODY = {errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED}


def is_served(path: Path) -> bool:
    """Return whether a process has the socket open; one that has ended leaves the file behind.

    A server that hangs, refuses this process, or speaks another type of socket counts as well.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(str(path))
        except OSError as error:
            return error.errno not in _NOBODY
    return True
