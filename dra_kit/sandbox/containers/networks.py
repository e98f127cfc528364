"""Network namespaces of pods: real ones, or files that stand for them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, TypeVar

from dra_kit.errors import SandboxError

CLONE_NEWNET: Final = 0x40000000
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_LOOPBACK: Final = "lo"
T = TypeVar("T")


class PodNetwork(Protocol):
    """The network of a pod; ``path`` is what hooks get as its network namespace, ``is_real`` whether it is one."""

    path: Path
    is_real: bool

    def interfaces(self) -> tuple[str, ...]:
        """Return the names of the interfaces that hooks moved into it."""
        ...

    def close(self) -> None:
        """Remove it."""
        ...


class NetworkFile:
    """A file that stands for a network namespace: a driver with simulated hardware writes interfaces, a line each."""

    is_real = False

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        self.path = path

    def interfaces(self) -> tuple[str, ...]:
        """See :class:`PodNetwork`."""
        try:
            return tuple(self.path.read_text(encoding="utf-8", errors="replace").split())
        except OSError:  # a driver has removed it
            return ()

    def close(self) -> None:
        """See :class:`PodNetwork`."""
        self.path.unlink(missing_ok=True)


class NetworkNamespace:
    """A new network namespace; it ends with this process, and the physical interfaces in it return to the machine.

    Raises:
        SandboxError: this user may not create network namespaces.
    """

    is_real = True

    def __init__(self) -> None:
        try:
            self._descriptor = _in_thread(_unshare)
        except OSError as error:
            raise SandboxError(
                f"network namespaces cannot be created: {error.strerror}; run the sandbox as root, or without "
                "--network-namespaces: then a file stands for each"
            ) from None
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")

    def interfaces(self) -> tuple[str, ...]:
        """See :class:`PodNetwork`."""

        def enter() -> tuple[str, ...]:
            _check(_LIBC.setns(self._descriptor, CLONE_NEWNET))
            return tuple(name for _, name in socket.if_nameindex() if name != _LOOPBACK)

        return _in_thread(enter)

    def close(self) -> None:
        """See :class:`PodNetwork`."""
        os.close(self._descriptor)


_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _unshare() -> int:
    """Return a descriptor of a new namespace, in which the loopback interface is up, as in a pod."""
    _check(_LIBC.unshare(CLONE_NEWNET))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", _LOOPBACK.encode(), 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", _LOOPBACK.encode(), flags | _IFF_UP))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _in_thread(work: Callable[[], T]) -> T:
    """Do something that changes the namespaces of its thread, in a thread that ends then."""
    with ThreadPoolExecutor(1, "network-namespace") as threads:
        return threads.submit(work).result()


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
