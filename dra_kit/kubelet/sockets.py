"""Where the sockets of a DRA driver lie, and which of those found there are leftovers.

Two directories below the kubelet's root directory count: ``plugins/<driver>``, the driver's own, and
``plugins_registry``, which the kubelet watches and all plugins share. The operation socket, where people and exporters
ask what is prepared for whom, lies in the first. With the UID of the driver's pod in the names, two instances run side
by side during a rolling update (kubelet 1.33 and newer). Names are shortened in the forms of the Go helper
(``k8s.io/dynamic-resource-allocation/kubeletplugin`` 0.37), so that both are known to those who look.
"""

from __future__ import annotations

import base64
import errno
import glob
import hashlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from dra_kit.errors import ConfigurationError

SOCKET_PATH_MAX = 107
"""Bytes of a usable path: Linux' ``sun_path`` holds 108, and the last one is a NUL."""

_SERVICES = "dra*.sock"
_OPERATIONS = "ops-*.sock"  # no name of a service socket, and no longer than one
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

    Args:
        kubelet_dir: the kubelet's root directory.
        driver: the driver's name.
        pod_uid: UID of the driver's pod, or None for ``<driver>-reg.sock``.

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

    Args:
        kubelet_dir: the kubelet's root directory.
        driver: the driver's name.
        pod_uid: UID of the driver's pod; None for ``ops-node.sock``.

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


def unpublished_link(socket: Path) -> Path:
    """Return where an instance with this operation socket makes the link before it is renamed."""
    return socket.with_name(f".{socket.name}.link")


def operation_links(kubelet_dir: Path) -> list[Path]:
    """Return the links of all drivers of a node that have one."""
    return sorted((kubelet_dir / "plugins").glob("*/ops.sock"))


def operation_sockets(kubelet_dir: Path, driver: str) -> list[Path]:
    """Return the operation sockets of all instances of a driver, without those that dead ones left behind."""
    found = _listed(_service_directory(kubelet_dir, driver), _OPERATIONS)
    return [path for path in found if answers(path) is not False]


def unpublished(path: Path) -> Path:
    """Return where a socket is bound before it is renamed to ``path``: hidden, and no longer, so that it fits, too.

    The kubelet's watcher skips names that begin with a dot (1.37). The last letter goes, which all sockets share, so
    that those of two drivers differ.
    """
    return path.with_name(f".{path.name[:-1]}")


def remove_stale_sockets(kubelet_dir: Path, driver: str, *, alone: bool) -> list[Path]:
    """Remove the sockets that dead instances of this driver left behind, and return their paths.

    A socket is dead when it refuses a connection. Whose a service socket is, its directory tells. A registration
    socket is this driver's when its name follows from a dead service socket or is the one without a UID; others stay,
    for their names alone do not distinguish drivers (``a-b-reg.sock``), and a dead one costs the kubelet a log line.

    Args:
        kubelet_dir: the kubelet's root directory.
        driver: the driver's name.
        alone: no other instance is there. Else sockets without their names stay: one that is just being made refuses
            connections too, between bind(2) and listen(2).
    """
    directory, fixed = _service_directory(kubelet_dir, driver), _registry_directory(kubelet_dir) / f"{driver}-reg.sock"
    stale = [fixed]
    if alone:
        stale += [unpublished(fixed)]
        for names in (_SERVICES, _OPERATIONS):
            stale += _listed(directory, unpublished(Path(names)).name)
    for service in filter(_is_dead, _listed(directory, _SERVICES)):
        registrars = list(filter(_is_dead, _registrars_beside(service, kubelet_dir, driver)))
        if alone or not any(path.name.startswith(".") for path in registrars):
            # registration sockets first: as long as the service socket is there, it leads to them
            stale += [*registrars, service]
    stale += _listed(directory, _OPERATIONS)
    removed = [path for path in stale if _remove_if_dead(path)]
    for link in _listed(directory, unpublished_link(Path(_OPERATIONS)).name) if alone else ():
        link.unlink(missing_ok=True)
        removed.append(link)
    return removed


def answers(path: Path) -> bool | None:
    """Return whether somebody listens at a socket: True, False for a leftover, None when that is unknown."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue of connections is full
        except OSError as error:
            return False if error.errno == errno.ECONNREFUSED else None
    return True


def _is_dead(path: Path) -> bool:
    return path.is_socket() and answers(path) is False


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
        return  # that instance cannot have had one here
    yield from (path, unpublished(path))
    if len(uid) == len(_hash("", _SERVICE_HASH_BYTES)):
        # the hash of a UID in a service socket's name is the beginning of that in the registration socket's
        rest = "?" * (len(_hash("", _UID_HASH_BYTES)) - len(uid))
        names = Path(f"{driver}-{glob.escape(uid)}{rest}-reg.sock")
        for name in (names, unpublished(names)):
            yield from _listed(_registry_directory(kubelet_dir), name.name)


def _service_directory(kubelet_dir: Path, driver: str) -> Path:
    return kubelet_dir / "plugins" / driver


def _registry_directory(kubelet_dir: Path) -> Path:
    return kubelet_dir / "plugins_registry"


def _listed(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.glob(pattern)) if directory.is_dir() else []


def check_length(path: Path, what: str) -> None:
    """Refuse a path that no socket can have.

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
