"""The file of a listening unix socket, from the moment it appears to the moment it goes.

gRPC binds a socket's path by replacing whatever socket is there, and unlinks that path when it stops, whoever owns it
by then: two servers with one path end with neither reachable (grpcio 1.85). So it is given a hidden name to bind,
and the file is renamed once the server serves. The path then appears with somebody listening behind it, which the
kubelet's watcher never misreads, and removing it is left to this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from dra_kit.errors import ConfigurationError
from dra_kit.plugin.sockets import answers, check_length, unpublished

_MODE: Final = 0o600  # the kubelet is root, as this process is, or of the same user


class SocketFile:
    """One listening socket of this process at ``path``, of mode 0600 whatever the umask.

    Args:
        path: where clients find it; missing parent directories are created with mode 0750.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hidden = unpublished(path)
        self._identity: tuple[int, int] | None = None

    def bind(self, listen: Callable[[str], object]) -> None:
        """Clear the way and have the server bind; ``publish`` comes when the server serves.

        Args:
            listen: binds an address ``unix:PATH``, whose path is quoted as in a URL: ``add_insecure_port`` of a gRPC
                server.

        Raises:
            ConfigurationError: the path is too long, holds something that is no leftover socket, or its directory
                cannot be written.
        """
        check_length(self.path, "socket")
        try:
            _make_directory(self.path.parent)
            self._refuse_what_is_no_leftover()
            self._hidden.unlink(missing_ok=True)
            if not os.access(self.path.parent, os.W_OK | os.X_OK):
                raise PermissionError(f"no permission to write to {self.path.parent}")
            listen(f"unix:{quote(str(self._hidden))}")
            # gRPC leaves the mode to the umask; nothing is served yet, and the umask of a whole process is no tool
            self._hidden.chmod(_MODE)
        except (OSError, RuntimeError) as error:  # gRPC raises RuntimeError when it cannot bind
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ConfigurationError(
                f"the socket {self.path} cannot be created: {reason}: mount the kubelet's directory writable at this "
                "path, or give the right --kubelet-dir",
                code="socket-directory",
            ) from error

    def publish(self) -> None:
        """Make the bound socket appear at ``path``, in one step and in place of a leftover."""
        status = self._hidden.stat()
        self._hidden.rename(self.path)
        self._identity = (status.st_dev, status.st_ino)

    def remove(self) -> None:
        """Remove the file, unless a successor's has taken its place; do nothing the second time."""
        if self._identity is not None and self._identity == _identity(self.path):
            self.path.unlink(missing_ok=True)
        self._identity = None

    def _refuse_what_is_no_leftover(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self.path.is_socket():
            raise ConfigurationError(
                f"{self.path} is in the way of the driver's socket and is no socket: remove it",
                code="socket-path-taken",
            )
        if answers(self.path) is not False:
            raise ConfigurationError(
                f"another process uses the socket {self.path}: stop it, or give both instances the UIDs of their pods",
                code="socket-path-taken",
            )


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir(mode=0o750, exist_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
