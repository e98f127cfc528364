"""The driver in the sandbox, with simulated interfaces and the manifests of the stories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dra_kit
import pytest
from dra_kit.testing import Harness, Invalid, unit

from nic_driver.config import NicConfig
from nic_driver.driver import driver
from nic_driver.hardware import Link, Move, Pci
from nic_driver.inventory import PLAN, Host, Nic, is_offered
from nic_driver.settings import Settings
from nic_driver.simulated import SimulatedNetwork, make_tree

CONFIG: dict[str, Any] = {"apiVersion": f"{driver.name}/v1", "kind": "NicConfig"}
STORIES = Path(__file__).parents[1] / "stories"


def test_pod_gets_interface_and_claim_its_network_data(dra: Harness) -> None:
    dra.apply(STORIES / "veth-pair" / "pod.yaml")
    server = dra.wait("server")
    assert server.interfaces == ("net1",)
    dra.wait_for(lambda: dra.claim("link")["status"]["devices"])
    [device] = dra.claim("link")["status"]["devices"]
    network = device["networkData"]
    assert network == {"interfaceName": "net1", "ips": ["10.1.2.3/24"], "hardwareAddress": "02:00:00:00:00:02"}
    assert device["conditions"][0]["reason"] == "NetworkDeviceReady"


def test_neither_uplink_nor_cards_with_functions_are_offered(dra: Harness) -> None:
    dra.wait_for(lambda: len(dra.devices()) == 7)
    offered = {device.attributes["interface"] for name, device in dra.devices().items() if name != "cni"}
    assert offered == {*(f"ens1f0v{number}" for number in range(4)), "ens2f0v0", "ens2f0v1"}


def test_interface_stays_published_while_it_is_in_a_pod(dra: Harness) -> None:
    before = dra.devices()
    dra.apply(STORIES / "veth-pair" / "pod.yaml")
    dra.wait("server")
    dra.restart()
    assert dra.devices() == before


def test_interfaces_of_one_claim_need_different_names(dra: Harness) -> None:
    text = (STORIES / "veth-pair" / "pod.yaml").read_text()
    dra.apply(text.replace("exactly:\n", "exactly:\n          count: 2\n"))
    dra.wait("server", phase="Pending", message="2 interfaces would be named net1 in the pod")


def test_pod_in_the_network_of_the_host_does_not_start(dra: Harness) -> None:
    text = (STORIES / "veth-pair" / "pod.yaml").read_text()
    dra.apply(text.replace("restartPolicy: Never", "restartPolicy: Never\n  hostNetwork: true"))
    dra.wait("server", phase="Pending", message="remove hostNetwork: true")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [("eth0", "'eth0' is not a valid interface name"), ("net1\n            mut: 1", 'did you mean "mtu"')],
)
def test_wrong_config_is_rejected(dra: Harness, wrong: str, message: str) -> None:
    text = (STORIES / "veth-pair" / "pod.yaml").read_text()
    with pytest.raises(Invalid, match=message):
        dra.apply(text.replace("name: net1", f"name: {wrong}"))


@pytest.mark.parametrize("name", ["", ".", "lo", "a/b", "a:b", "a b", "net%d", "net\0", "x" * 16, "\u00e4" * 8])
def test_name_that_the_kernel_does_not_accept_or_changes_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid interface name"):
        NicConfig(name=name)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('cniVersion: "1.0.0"', 'cniVersion: "2.0.0"', "conflist.cniVersion"),
        ("interface: blue0", "interface: lo", "'lo' is not a valid interface name"),
        ("name: blue\n              plugins", "name: ../blue\n              plugins", "conflist.name"),
    ],
)
def test_wrong_network_is_rejected(dra: Harness, right: str, wrong: str, message: str) -> None:
    text = (STORIES / "cni-chain" / "pod.yaml").read_text()
    with pytest.raises(Invalid, match=message):
        dra.apply(text.replace(right, wrong))


def test_claim_of_interfaces_never_gets_the_device_of_networks(dra: Harness) -> None:
    text = (STORIES / "veth-pair" / "pod.yaml").read_text()
    dra.apply(text.replace("exactly:\n", "exactly:\n          count: 7\n"))
    dra.wait("server", phase="Pending", message="cannot allocate all claims")


def test_hardware_returns_with_its_name_in_the_pod_and_gets_its_own_back(tmp_path: Path) -> None:
    make_tree("two-cards", tmp_path)
    network = SimulatedNetwork(tmp_path)
    [link] = [link for link in network.links() if link.name == "ens2f0v1"]
    netns = tmp_path / "netns"
    netns.touch()
    host = Host(network, Pci(tmp_path / "sys", tmp_path / "dev"), dra_kit.CniPlugins(tmp_path, ()))
    nic = Nic(name="nic-0000-42-00-2", attributes={"linkType": "ethernet"}, link=link)
    with unit(driver, hardware=host, settings=Settings()) as bench:
        bench.prepare("link", [nic], config={**CONFIG, "name": "net1"})
        bench.pod_starts(bench.pod(netns=netns))
        assert netns.read_text() == "net1\n"
        netns.unlink()  # the runtime stopped the pod while the driver did not run
        assert "net1" in {item.name for item in network.links()}
        bench.unprepare("link")
    assert link in network.links()


def test_claim_keeps_what_its_class_sets(tmp_path: Path) -> None:
    nic = Nic(name="dra1", attributes={"linkType": "ethernet"}, link=Link(name="dra1"))
    of_class: Any = {**CONFIG, "mtu": 9000, "name": "net1"}
    of_claim: Any = {**CONFIG, "name": "net2"}
    entries = [dra_kit.ConfigEntry(of_class, "class"), dra_kit.ConfigEntry(of_claim)]
    host = Host(SimulatedNetwork(tmp_path), Pci(), dra_kit.CniPlugins(tmp_path, ()))
    with unit(driver, hardware=host, settings=Settings()) as bench:
        bench.prepare("link", [nic], configs=entries)
        [held] = bench.pod().devices
    move = PLAN.validate_python(held.state)
    assert isinstance(move, Move)
    assert (move.mtu, move.interface) == (9000, "net2")


def test_hardware_with_an_address_is_offered_only_if_it_is_listed() -> None:
    used = Link(name="ens1", pci="0000:02:00.0", has_address=True)
    offered = [is_offered(used, Settings(interfaces=names), Pci()) for names in ("", "ens1", "other, ens*")]
    assert offered == [False, True, True]


def test_unknown_facts_are_not_published(tmp_path: Path) -> None:
    """An empty pcieRoot would align two devices of unknown roots."""
    (tmp_path / "bus/pci/devices/0000:02:00.1").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:02:00.1/numa_node").write_text("-1\n")
    known = Pci(tmp_path, tmp_path).attributes("0000:02:00.1")
    assert known == {"resource.kubernetes.io/pciBusID": "0000:02:00.1"}


@pytest.mark.dra_killed
def test_crash_of_the_driver_loses_no_interface(dra: Harness) -> None:
    dra.apply(STORIES / "given-back" / "first.yaml")
    assert dra.wait("first").interfaces == ("first",)
    dra.delete("Pod/first")
    dra.wait_gone("Pod/first")
    dra.delete("ResourceClaim/first")
    dra.apply(STORIES / "given-back" / "second.yaml")
    assert dra.wait("second").interfaces == ("second",)
