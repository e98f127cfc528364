"""Paths of a DRA driver's sockets, detection of stale sockets, and the file of a listening socket."""

from __future__ import annotations

import base64
import errno
import glob
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from dra_kit.errors import ConfigurationError

SOCKET_PATH_MAX = 107
"""Bytes of a usable path: Linux' ``sun_path`` has 108, and the last one is a NUL."""
_SERVICES = "dra*.sock"
_OPERATIONS = "ops-*.sock"  # never the name of a service socket, and no longer than one
_SERVICE_HASH_BYTES = 6
_UID_HASH_BYTES = 8
_REGISTRAR_HASH_BYTES = 16


def plugin_socket(kubelet_dir: Path, driver: str, pod_uid: str | None) -> Path:
    """Return the path of the service socket: ``plugins/<driver>/dra-<uid>.sock``, with a hash of a long UID.

    Args:
        kubelet_dir: the kubelet's root directory, the same path in the container and on the host.
        driver: the driver's name.
        pod_uid: UID of the driver's pod, or None for the fixed name ``dra.sock`` (no overlap of two instances).

    Raises:
        ConfigurationError: no form of the path is short enough for a socket.
    """
    names = ["dra.sock"]
    if pod_uid is not None:
        names = [f"dra-{pod_uid}.sock", f"dra-{_hash(pod_uid, _SERVICE_HASH_BYTES)}.sock"]
    directory = _service_directory(kubelet_dir, driver)
    return _first_that_fits([directory / name for name in names], "service socket")


def registration_socket(kubelet_dir: Path, driver: str, pod_uid: str | None) -> Path:
    """Return the path of the registration socket: ``plugins_registry/<driver>-<uid>-reg.sock``, or a shorter one.

    The arguments are those of :func:`plugin_socket`; without a UID the name is ``<driver>-reg.sock``.

    Raises:
        ConfigurationError: no form of the path is short enough for a socket.
    """
    names = [f"{driver}-reg.sock"]
    if pod_uid is not None:
        names = [f"{driver}-{pod_uid}-reg.sock", f"{driver}-{_hash(pod_uid, _UID_HASH_BYTES)}-reg.sock"]
    both = "\0".join((driver, pod_uid or ""))
    names.append(f"dra-{_hash(both, _REGISTRAR_HASH_BYTES)}-reg.sock")
    directory = _registry_directory(kubelet_dir)
    return _first_that_fits([directory / name for name in names], "registration socket")


def operation_socket(kubelet_dir: Path, driver: str, pod_uid: str | None) -> Path:
    """Return the path of an instance's operation socket: ``plugins/<driver>/ops-<uid>.sock``, or a hash of the UID.

    The arguments are those of :func:`plugin_socket`; without a UID the name is ``ops-node.sock``.

    Raises:
        ConfigurationError: no form of the path is short enough for a socket.
    """
    names = ["ops-node.sock"]
    if pod_uid is not None:
        names = [f"ops-{pod_uid}.sock", f"ops-{_hash(pod_uid, _SERVICE_HASH_BYTES)}.sock"]
    directory = _service_directory(kubelet_dir, driver)
    return _first_that_fits([directory / name for name in names], "operation socket")


def operation_link(kubelet_dir: Path, driver: str) -> Path:
    """Return the link to the operation socket of the instance that the kubelet calls: ``plugins/<driver>/ops.sock``."""
    return _service_directory(kubelet_dir, driver) / "ops.sock"


def hidden_link(socket: Path) -> Path:
    """Return where an instance with this operation socket creates the link before it is renamed."""
    return socket.with_name(f".{socket.name}.link")


def operation_links(kubelet_dir: Path) -> list[Path]:
    """Return the links of all drivers of a node that have one."""
    return sorted((kubelet_dir / "plugins").glob("*/ops.sock"))


def operation_sockets(kubelet_dir: Path, driver: str) -> list[Path]:
    """Return the operation sockets of all instances of a driver, except those left by dead instances."""
    found = _listed(_service_directory(kubelet_dir, driver), _OPERATIONS)
    return [path for path in found if is_listening(path) is not False]


def hidden_path(path: Path) -> Path:
    """Return where a socket is bound before it is renamed to ``path``: a hidden name that is no longer, so it fits too.

    The kubelet's watcher skips names that begin with a dot (1.37). The last letter, which is the same for all sockets,
    is dropped, so that the names of two drivers still differ.
    """
    return path.with_name(f".{path.name[:-1]}")


def remove_stale_sockets(kubelet_dir: Path, driver: str, *, alone: bool) -> list[Path]:
    """Remove the sockets left by dead instances of this driver, and return their paths.

    A socket is dead if it refuses a connection. The directory of a service socket identifies its driver. A registration
    socket is this driver's if its name follows from a dead service socket or is the one without a UID. Others stay,
    because names alone do not distinguish drivers (``a-b-reg.sock``), and a dead one costs the kubelet a log line.

    Unless this instance is ``alone``, sockets without their final names stay: a socket that is being created also
    refuses connections, between bind(2) and listen(2).
    """
    directory, fixed = _service_directory(kubelet_dir, driver), _registry_directory(kubelet_dir) / f"{driver}-reg.sock"
    stale = [fixed]
    if alone:
        stale += [hidden_path(fixed)]
        for names in (_SERVICES, _OPERATIONS):
            stale += _listed(directory, hidden_path(Path(names)).name)
    for service in filter(_is_dead, _listed(directory, _SERVICES)):
        registrars = list(filter(_is_dead, _registrars_beside(service, kubelet_dir, driver)))
        if alone or not any(path.name.startswith(".") for path in registrars):
            # registration sockets first: as long as the service socket exists, it leads to them
            stale += [*registrars, service]
    stale += _listed(directory, _OPERATIONS)
    removed = [path for path in stale if _remove_if_dead(path)]
    for link in _listed(directory, hidden_link(Path(_OPERATIONS)).name) if alone else ():
        link.unlink(missing_ok=True)
        removed.append(link)
    return removed


def is_listening(path: Path) -> bool | None:
    """Return whether a process listens at a socket: True, False for a leftover, None if that is unknown."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its connection queue is full
        except OSError as error:
            return False if error.errno == errno.ECONNREFUSED else None
    return True


def _is_dead(path: Path) -> bool:
    return path.is_socket() and is_listening(path) is False


def _remove_if_dead(path: Path) -> bool:
    if not _is_dead(path):
        return False
    path.unlink(missing_ok=True)
    return True


def _registrars_beside(service: Path, kubelet_dir: Path, driver: str) -> Iterator[Path]:
    """Yield registration sockets of the instance that had a service socket of this name."""
    uid = service.stem.removeprefix("dra").removeprefix("-")
    if not uid:
        return
    try:
        path = registration_socket(kubelet_dir, driver, uid)
    except ConfigurationError:
        return  # that instance cannot have had one in this directory
    yield from (path, hidden_path(path))
    if len(uid) == len(_hash("", _SERVICE_HASH_BYTES)):
        # the hash of a UID in a service socket's name is a prefix of the hash in the registration socket's name
        rest = "?" * (len(_hash("", _UID_HASH_BYTES)) - len(uid))
        names = Path(f"{driver}-{glob.escape(uid)}{rest}-reg.sock")
        for name in (names, hidden_path(names)):
            yield from _listed(_registry_directory(kubelet_dir), name.name)


def _service_directory(kubelet_dir: Path, driver: str) -> Path:
    return kubelet_dir / "plugins" / driver


def _registry_directory(kubelet_dir: Path) -> Path:
    return kubelet_dir / "plugins_registry"


def _listed(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.glob(pattern)) if directory.is_dir() else []


def check_length(path: Path, what: str) -> None:
    """Reject a path that is too long for a socket.

    Raises:
        ConfigurationError: it has more than ``SOCKET_PATH_MAX`` bytes.
    """
    if (length := len(bytes(path))) > SOCKET_PATH_MAX:
        raise ConfigurationError(
            f"the path of the {what} {path} has {length} bytes, and Linux allows {SOCKET_PATH_MAX}: "
            "give a shorter --kubelet-dir or a shorter driver name",
            code="socket-path-too-long",
        )


def _first_that_fits(paths: Sequence[Path], what: str) -> Path:
    fitting = (path for path in paths if len(bytes(path)) <= SOCKET_PATH_MAX)
    selected = next(fitting, paths[-1])
    check_length(selected, what)
    return selected


def _hash(text: str, size: int) -> str:
    """Return the first ``size`` bytes of SHA-256 in base64url without padding, as the Go helper writes them."""
    digest = hashlib.sha256(text.encode()).digest()[:size]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


_MODE: Final = 0o600  # the kubelet is root, like this process, or runs as the same user


class SocketFile:
    """One listening socket of this process at ``path``, with mode 0600 regardless of the umask.

    Args:
        path: where clients find it; missing parent directories are created with mode 0750.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hidden = hidden_path(path)
        self._identity: tuple[int, int] | None = None

    def bind(self, listen: Callable[[str], object]) -> None:
        """Remove a leftover and have the server bind; call ``publish`` once the server serves.

        ``listen`` binds an address ``unix:PATH``, whose path is quoted as in a URL: ``add_insecure_port`` of a gRPC
        server.

        Raises:
            ConfigurationError: the path is too long, holds something other than a leftover socket, or its directory
                is not writable.
        """
        check_length(self.path, "socket")
        try:
            _make_directory(self.path.parent)
            self._reject_files_in_use()
            self._hidden.unlink(missing_ok=True)
            if not os.access(self.path.parent, os.W_OK | os.X_OK):
                raise PermissionError(f"no permission to write to {self.path.parent}")
            listen(f"unix:{quote(str(self._hidden))}")
            # gRPC leaves the mode to the umask; nothing is served yet, and the umask affects all threads
            self._hidden.chmod(_MODE)
        except (OSError, RuntimeError) as error:  # gRPC raises RuntimeError when it cannot bind
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ConfigurationError(
                f"the socket {self.path} cannot be created: {reason}: mount the kubelet's directory writable at this "
                "path, or give the right --kubelet-dir",
                code="socket-directory",
            ) from error

    def publish(self) -> None:
        """Make the bound socket appear at ``path``, atomically and in place of a leftover."""
        status = self._hidden.stat()
        self._hidden.rename(self.path)
        self._identity = (status.st_dev, status.st_ino)

    def remove(self) -> None:
        """Remove the file, unless a successor's file has replaced it; a no-op the second time."""
        if self._identity is not None and self._identity == _identity(self.path):
            self.path.unlink(missing_ok=True)
        self._identity = None

    def _reject_files_in_use(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self.path.is_socket():
            raise ConfigurationError(
                f"{self.path} is at the path of the driver's socket and is not a socket: remove it",
                code="socket-path-taken",
            )
        if is_listening(self.path) is not False:
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
