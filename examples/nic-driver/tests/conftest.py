"""Network namespaces and real interfaces for tests that run as root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


class Namespaces:
    """New network namespaces; each exists until it is closed and nothing is left in it."""

    def __init__(self, pyroute2: Any) -> None:
        self._pyroute2 = pyroute2
        self._open: dict[Path, int] = {}

    def new(self) -> Path:
        """Return the path of a new namespace."""

        def unshare() -> int:
            if _LIBC.unshare(_CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

        with ThreadPoolExecutor(1) as threads:
            descriptor = threads.submit(unshare).result()
        path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        self._open[path] = descriptor
        return path

    def close(self, path: Path) -> None:
        """End a namespace."""
        os.close(self._open.pop(path))

    def ip(self, path: Path, work: Callable[[Any], T]) -> T:
        """Call ``work`` with an ``IPRoute`` in a namespace."""

        def enter() -> T:
            assert _LIBC.setns(self._open[path], _CLONE_NEWNET) == 0
            with self._pyroute2.IPRoute() as ip:
                return work(ip)

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(enter).result()

    def facts(self, path: Path) -> dict[str, tuple[int, list[str]]]:
        """Return MTU and IPv4 addresses of the interfaces in a namespace, by name."""

        def read(ip: Any) -> dict[str, tuple[int, list[str]]]:
            return {
                link.get("IFLA_IFNAME"): (
                    link.get("IFLA_MTU"),
                    [item.get("IFA_ADDRESS") for item in ip.get_addr(family=2, index=link["index"])],
                )
                for link in ip.get_links()
                if link.get("IFLA_IFNAME") != "lo"
            }

        return self.ip(path, read)


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    pyroute2 = pytest.importorskip("pyroute2", reason="pyroute2 is not installed: pip install -e .")
    made = Namespaces(pyroute2)
    try:
        made.new()
    except OSError:
        pytest.skip("only root can create network namespaces")
    yield made
    for path in list(made._open):
        made.close(path)


@pytest.fixture
def host(namespaces: Namespaces) -> Path:
    """A namespace that stands for the node: the veth pairs ``dra0``-``dra1`` and ``up0``-``up1``."""
    path = namespaces.new()

    def create(ip: Any) -> None:
        for name in ("dra", "up"):
            ip.link("add", ifname=f"{name}0", kind="veth", peer={"ifname": f"{name}1"})
        for name in ("dra0", "dra1", "up0", "up1"):
            ip.link("set", index=ip.link_lookup(ifname=name)[0], state="up")

    try:
        namespaces.ip(path, create)
    except Exception as error:  # the kernel lacks the module
        pytest.skip(f"this machine cannot create veth interfaces: {error}")
    return path
