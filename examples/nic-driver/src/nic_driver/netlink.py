"""The interfaces of the kernel, by netlink."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import dra_kit as dra
from pyroute2 import IPRoute, NetlinkError
from pyroute2.netns import setns

from nic_driver.hardware import Link, Move, Network

T = TypeVar("T")
_INFINIBAND, _LOOPBACK = 32, 8  # ARPHRD_INFINIBAND, IFF_LOOPBACK


class Netlink(Network):
    """The interfaces in the network namespace of the node.

    Args:
        host: that namespace. It need not be the one of this process.
    """

    def __init__(self, host: Path) -> None:
        self._host = host

    def links(self) -> list[Link]:
        return list(_in(self._host, _links).values())

    def attach(self, move: Move, netns: Path) -> dra.NetworkDeviceData:
        with _errors(f"interface {move.link.name} cannot be moved to {netns}"), netns.open("rb") as pod:
            if _in(netns, lambda ip: _find(ip, move, shared=move.shared)) is None:
                _in(self._host, lambda ip: _send(ip, move, pod.fileno()))
            return _in(netns, lambda ip: _configure(ip, move))

    def detach(self, move: Move, netns: Path) -> None:
        if not netns.exists():
            return
        with _errors(f"interface {move.link.name} cannot be moved back from {netns}"), self._host.open("rb") as host:
            _in(netns, lambda ip: _take(ip, move, host.fileno()))
        if not move.shared:
            self.restore(move)

    def restore(self, move: Move) -> bool:
        with _errors(f"interface {move.link.name} cannot be restored"):
            return _in(self._host, lambda ip: _restore(ip, move))


def _links(ip: Any) -> dict[int, Link]:
    found = {message["index"]: message for message in ip.get_links()}
    routes = [*ip.get_default_routes(socket.AF_INET), *ip.get_default_routes(socket.AF_INET6)]
    uplinks = {route.get("RTA_OIF") for route in routes}
    uplinks |= {hop["oif"] for route in routes for hop in route.get("RTA_MULTIPATH") or ()}
    addresses = {address["index"] for address in ip.get_addr() if address["scope"] == 0}  # RT_SCOPE_UNIVERSE
    carrying: set[int | None] = set()
    while uplinks - carrying:  # below an uplink: the parent of a VLAN or macvlan, the peer of a veth
        carrying |= uplinks
        below = [found[index] for index in carrying if index in found]
        # an index in another namespace is that of a different interface here
        uplinks = {link.get("IFLA_LINK") for link in below if link.get("IFLA_LINK_NETNSID") is None}
    return {
        index: Link(
            name=message.get("IFLA_IFNAME"),
            mac=message.get("IFLA_ADDRESS") or "",
            mtu=message.get("IFLA_MTU"),
            up=message["state"] == "up",
            kind=message.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or "",
            infiniband=message["ifi_type"] == _INFINIBAND,
            pci=message.get("IFLA_PARENT_DEV_NAME") if message.get("IFLA_PARENT_DEV_BUS_NAME") == "pci" else "",
            in_use=bool(index in carrying or message.get("IFLA_MASTER") or message["flags"] & _LOOPBACK),
            has_address=index in addresses,
        )
        for index, message in found.items()
    }


def _find(ip: Any, move: Move, *, shared: bool = False) -> tuple[int, Link] | None:
    """Return the interface in a namespace, or the one that a pod has instead of a shared one."""
    for index, link in _links(ip).items():
        if link.name == move.interface and link.kind == "macvlan" if shared else link.is_same(move.link):
            return index, link
    return None


def _send(ip: Any, move: Move, pod: int) -> None:
    found = _find(ip, move)
    if found is None:
        raise dra.TransientError(
            f"interface {move.link.name} is not on the node: it is in another pod, or was deleted; wait until that pod "
            "has ended, or create it again"
        )
    if found[1].in_use:
        raise dra.TransientError(f"interface {found[1].name} is in use by the node; remove its route, bridge or bond")
    if move.shared:
        ip.link("add", ifname=move.interface, net_ns_fd=pod, kind="macvlan", link=found[0], macvlan_mode="bridge")
    else:
        _rename(ip, found[0], move.interface, net_ns_fd=pod)  # one step: it never has a third name


def _configure(ip: Any, move: Move) -> dra.NetworkDeviceData:
    found = _find(ip, move, shared=move.shared)
    if found is None:
        raise dra.TransientError(f"interface {move.interface} was removed from the pod; the kubelet tries again")
    index, link = found
    if link.name != move.interface:
        _rename(ip, index, move.interface)
    ip.link("set", index=index, mtu=move.mtu, state="up")
    for address in move.addresses:
        host, _, length = address.partition("/")
        ip.addr("replace", index=index, address=host, prefixlen=int(length))
    for route in move.routes:
        ip.route("replace", dst=route.to, oif=index, **({"gateway": route.via} if route.via else {}))
    return move.network_data(link.mac)


def _take(ip: Any, move: Move, host: int) -> None:
    found = _find(ip, move, shared=move.shared)
    if found and move.shared:
        ip.link("del", index=found[0])
    elif found:
        _rename(ip, found[0], move.link.name, net_ns_fd=host)


def _restore(ip: Any, move: Move) -> bool:
    found = _find(ip, move)
    if found and found[1].name != move.link.name:
        _rename(ip, found[0], move.link.name)
    if found:
        ip.link("set", index=found[0], mtu=move.link.mtu, state="up" if move.link.up else "down")
    return found is not None


def _rename(ip: Any, index: int, name: str, **moved: int) -> None:
    ip.link("set", index=index, state="down")
    ip.link("set", index=index, ifname=name, **moved)


def _in(netns: Path, work: Callable[[Any], T]) -> T:
    """Call ``work`` with a netlink socket in a network namespace, in a thread that ends then."""

    def enter() -> T:
        setns(str(netns), flags=0)  # IPRoute(netns=…) would fork this process
        with IPRoute() as ip:
            return work(ip)

    with ThreadPoolExecutor(1, "netns") as threads:
        return threads.submit(enter).result()


@contextmanager
def _errors(problem: str) -> Iterator[None]:
    try:
        yield
    except (NetlinkError, OSError) as error:
        raise dra.TransientError(f"{problem}: {error}; the kubelet tries again") from error
