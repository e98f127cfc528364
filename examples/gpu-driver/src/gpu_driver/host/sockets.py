"""Unix sockets: whether a process serves one."""

import errno
import os
import socket
import stat
from pathlib import Path

_NOT_LISTENING = {errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED}


def is_served(path: Path) -> bool:
    """Return whether a process has the socket open; one that has ended leaves the file behind.

    A server that hangs, refuses this process, or speaks another type of socket counts as well. What is in its place, a
    link for example, does not.
    """
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISSOCK(os.fstat(place).st_mode) and _answers(f"/proc/self/fd/{place}")
    finally:
        os.close(place)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(path)
        except OSError as error:
            return error.errno not in _NOT_LISTENING
    return True
