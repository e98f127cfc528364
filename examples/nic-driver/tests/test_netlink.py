"""The driver on real veth interfaces and network namespaces, as root."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dra_kit as dra
import pytest
from conftest import Namespaces
from dra_kit.testing import sandbox, unit

from nic_driver.config import NicConfig, Route
from nic_driver.driver import driver
from nic_driver.hardware import Link, Pci
from nic_driver.inventory import Host, Nic
from nic_driver.settings import Settings

PROJECT = Path(__file__).parents[1]
CONFIG = NicConfig(
    name="net1", mtu=1400, addresses=["10.1.2.3/24", "fd00::3/64"], routes=[Route(to="10.20.0.0/16", via="10.1.2.1")]
)


@contextmanager
def bench(host: Path, sysfs: Path = Path("/sys"), **settings: Any) -> Iterator[Any]:
    from nic_driver.netlink import Netlink

    known = Settings(interfaces="dra*", host_netns=host, **settings)
    host_ = Host(Netlink(host), Pci(sysfs), dra.CniPlugins(sysfs, ()))
    with unit(driver, hardware=host_, settings=known) as made:
        yield made


def nics(settings: Settings) -> dict[str, Nic]:
    from nic_driver.inventory import Inventory
    from nic_driver.netlink import Netlink

    class Context:
        def __init__(self) -> None:
            self.settings = settings

        def prepared(self) -> dict[str, dra.PreparedClaim]:
            return {}

    inventory = Inventory()
    inventory.hardware = Host(Netlink(settings.host_netns), Pci(), dra.CniPlugins(Path("/nonexistent"), ()))
    inventory.context = Context()  # type: ignore[assignment]
    [found] = inventory.discover()
    return {nic.name: nic for nic in found}


def nic(host: Path, name: str = "dra1", **settings: Any) -> Nic:
    return nics(Settings(interfaces="dra*", host_netns=host, **settings))[name]


def test_pod_gets_the_interface_as_configured(namespaces: Namespaces, host: Path) -> None:
    pod = namespaces.new()
    with bench(host) as b:
        b.prepare("link", [nic(host)], config=CONFIG)
        [facts] = b.pod_starts(b.pod(netns=pod))

        assert namespaces.facts(pod) == {"net1": (1400, ["10.1.2.3"])}
        routes = namespaces.ip(pod, lambda ip: [route.get("RTA_DST") for route in ip.get_routes(table=254, family=2)])
        assert "10.20.0.0" in routes
        network = facts.status.network_data
        assert (network.interface_name, *network.ips) == ("net1", "10.1.2.3/24", "fd00::3/64")
        assert network.hardware_address == facts.metadata.network_data.hardware_address != ""
        assert "dra1" not in namespaces.facts(host)


def test_interface_is_given_back_when_the_pod_stops(namespaces: Namespaces, host: Path) -> None:
    pod = namespaces.new()
    with bench(host) as b:
        b.prepare("link", [nic(host)], config=CONFIG)
        b.pod_starts(b.pod(netns=pod))
        b.pod_stops(b.pod(netns=pod))
        b.unprepare("link")

    assert namespaces.facts(pod) == {}
    assert namespaces.facts(host)["dra1"] == (1500, [])


def test_hooks_can_be_repeated(namespaces: Namespaces, host: Path) -> None:
    pod = namespaces.new()
    with bench(host) as b:
        b.prepare("link", [nic(host)], config=CONFIG)
        assert b.pod_starts(b.pod(netns=pod)) == b.pod_starts(b.pod(netns=pod))
        b.pod_stops(b.pod(netns=pod))
        b.pod_stops(b.pod(netns=pod))
        assert "dra1" in namespaces.facts(host)


def test_interface_that_cannot_be_configured_is_given_back(namespaces: Namespaces, host: Path) -> None:
    pod = namespaces.new()
    unreachable = NicConfig(name="net1", routes=[Route(to="10.20.0.0/16", via="192.0.2.1")])
    with bench(host) as b:
        b.prepare("link", [nic(host)], config=unreachable)
        with pytest.raises(dra.DraKitError, match=r"interface dra1 cannot be moved to .*unreachable"):
            b.pod_starts(b.pod(netns=pod))
        b.pod_stops(b.pod(netns=pod))

    assert "dra1" in namespaces.facts(host)


def test_neither_uplink_nor_what_carries_it_is_offered(namespaces: Namespaces, host: Path) -> None:
    def route(ip: Any) -> None:
        parent = ip.link_lookup(ifname="up0")[0]
        ip.link("add", ifname="uplink", kind="macvlan", link=parent, macvlan_mode="bridge")
        uplink = ip.link_lookup(ifname="uplink")[0]
        ip.link("set", index=uplink, state="up")
        ip.addr("add", index=uplink, address="192.0.2.2", prefixlen=24)
        ip.route("add", dst="default", gateway="192.0.2.1")

    namespaces.ip(host, route)
    assert sorted(nics(Settings(interfaces="*", host_netns=host))) == ["dra0", "dra1"]


def test_peer_of_the_uplink_in_another_namespace_is_not_taken_for_an_interface_of_the_node(
    namespaces: Namespaces, host: Path
) -> None:
    """As in a node that is a container: each namespace counts its interfaces by itself."""
    [same] = namespaces.ip(host, lambda ip: ip.link_lookup(ifname="dra1"))

    def create(ip: Any) -> None:
        with host.open("rb") as node:
            uplink = {"ifname": "uplink", "net_ns_fd": node.fileno()}
            ip.link("add", ifname="peer", index=same, kind="veth", peer=uplink)
        ip.link("set", index=same, state="up")

    def route(ip: Any) -> None:
        [uplink] = ip.link_lookup(ifname="uplink")
        assert ip.get_links(uplink)[0].get("IFLA_LINK") == same
        ip.link("set", index=uplink, state="up")
        ip.addr("add", index=uplink, address="192.0.2.2", prefixlen=24)
        ip.route("add", dst="default", gateway="192.0.2.1")

    namespaces.ip(namespaces.new(), create)
    namespaces.ip(host, route)
    assert sorted(nics(Settings(interfaces="*", host_netns=host))) == ["dra0", "dra1", "up0", "up1"]


def test_interface_with_an_address_on_the_node_is_known(namespaces: Namespaces, host: Path) -> None:
    from nic_driver.netlink import Netlink

    namespaces.ip(
        host, lambda ip: ip.addr("add", index=ip.link_lookup(ifname="dra1")[0], address="192.0.2.2", prefixlen=24)
    )
    assert [link.name for link in Netlink(host).links() if link.has_address] == ["dra1"]


def test_interface_that_became_the_uplink_is_not_moved(namespaces: Namespaces, host: Path) -> None:
    offered, pod = nic(host), namespaces.new()

    def route(ip: Any) -> None:
        ip.addr("add", index=ip.link_lookup(ifname="dra1")[0], address="192.0.2.2", prefixlen=24)
        ip.route("add", dst="default", gateway="192.0.2.1")

    namespaces.ip(host, route)
    with bench(host) as b:
        b.prepare("link", [offered])
        with pytest.raises(dra.DraKitError, match="interface dra1 is in use by the node"):
            b.pod_starts(b.pod(netns=pod))


def test_interface_that_returned_with_its_name_in_the_pod_gets_its_name_back(
    namespaces: Namespaces, host: Path
) -> None:
    """As the kernel returns hardware when the namespace of its pod ends."""

    def rename(ip: Any) -> None:
        index = ip.link_lookup(ifname="dra1")[0]
        ip.link("set", index=index, state="down")
        ip.link("set", index=index, ifname="net1")

    with bench(host) as b:
        b.prepare("link", [nic(host)], config=CONFIG)
        namespaces.ip(host, rename)
        b.unprepare("link")

    assert sorted(namespaces.facts(host)) == ["dra0", "dra1", "up0", "up1"]


def test_claim_is_released_after_the_namespace_has_ended(namespaces: Namespaces, host: Path) -> None:
    pod = namespaces.new()
    with bench(host) as b:
        b.prepare("link", [nic(host)], config=CONFIG)
        b.pod_starts(b.pod(netns=pod))
        namespaces.close(pod)
        b.pod_stops(b.pod(netns=pod))
        b.unprepare("link")  # the kernel deletes a veth interface with its namespace


def test_hardware_that_has_not_returned_is_waited_for(namespaces: Namespaces, host: Path, tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices/0000:02:00.1").mkdir(parents=True)
    there = Nic(name="nic-0000-02-00-1", link=Link(name="ens1v0", mac="02:00:00:00:00:01", pci="0000:02:00.1"))
    with bench(host, sysfs=tmp_path) as b:
        b.prepare("link", [there])
        with pytest.raises(dra.TransientError, match="interface ens1v0 is not on the node"):
            b.unprepare("link")
        (tmp_path / "bus/pci/devices/0000:02:00.1").rmdir()  # the function was removed
        b.unprepare("link")


def test_each_share_of_an_interface_has_its_own_network_data(namespaces: Namespaces, host: Path) -> None:
    shared = nic(host, shared="dra1")
    with bench(host, shared="dra1") as b:
        found = []
        for name in ("first", "second"):
            b.prepare(name, [shared], config=NicConfig(addresses=[f"10.1.2.{len(found) + 1}/24"]))
            pod = namespaces.new()
            found += b.pod_starts(b.pod(name, claims=[name], netns=pod))
            assert namespaces.facts(pod) == {
                found[-1].status.network_data.interface_name: (1500, [f"10.1.2.{len(found)}"])
            }
        first, second = (item.status.network_data for item in found)
        assert first.hardware_address != second.hardware_address
        assert found[0].device.share_id != found[1].device.share_id
        assert "dra1" in namespaces.facts(host)
        b.pod_stops(b.pod("second", claims=["second"], netns=pod))
        assert namespaces.facts(pod) == {}


def test_story_with_a_veth_pair(namespaces: Namespaces, host: Path, tmp_path: Path) -> None:
    settings = {"fake": "", "interfaces": "dra1", "host_netns": str(host)}
    with sandbox(str(PROJECT), network_namespaces=True, settings=settings) as bed:
        with bed.harness("veth", directory=tmp_path, process=True) as harness:
            harness.apply(PROJECT / "stories" / "veth-pair" / "pod.yaml")
            server = harness.wait("server")
            assert server.interfaces == ("net1",)
            harness.wait_for(lambda: "net1:" in harness.wait("server").containers["main"].output)
            assert "dra1" in harness.devices()
            harness.kill()
            harness.delete("Pod/server")
            harness.wait_gone("Pod/server")
            harness.wait_for(lambda: namespaces.facts(host)["dra1"] == (1500, []))
