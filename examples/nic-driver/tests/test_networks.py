"""Pods in networks of CNI plugins: a script that does what its configuration says, as plugins with several names."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dra_kit as dra
import pytest
from conftest import Namespaces
from dra_kit.testing import BlockingBench, sandbox, unit

from nic_driver.config import API_VERSION
from nic_driver.driver import driver
from nic_driver.hardware import Pci
from nic_driver.inventory import CNI, Host, Inventory
from nic_driver.settings import Settings
from nic_driver.simulated import SimulatedNetwork

PROJECT = Path(__file__).parents[1]
STORY = PROJECT / "stories" / "cni-chain"


@pytest.fixture
def bin_(tmp_path: Path) -> Path:
    """A directory with the CNI plugins ``first``, ``second`` and ``third``."""
    source = (Path(__file__).parent / "cni_plugin.py").read_text(encoding="utf-8")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("first", "second", "third"):
        (folder / name).write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def config(log: Path) -> Callable[..., dict[str, Any]]:
    """Returns a CniConfig of plugins ``first``, ``second`` and so on, each with its own configuration."""

    def make(*plugins: dict[str, Any], **fields: Any) -> dict[str, Any]:
        names = ("first", "second", "third")
        named = [{"type": name, "log": str(log)} | plugin for name, plugin in zip(names, plugins, strict=False)]
        conflist = {"cniVersion": "1.0.0", "name": "blue", "plugins": named, **fields}
        return {"apiVersion": API_VERSION, "kind": "CniConfig", "interface": "net1", "conflist": conflist}

    return make


@contextmanager
def bench(bin_: Path, **given: Any) -> Iterator[BlockingBench]:
    simulated = {"fake": "two-cards", "fake_dir": bin_.parent / "nics"}
    settings = Settings(cni_bin=bin_, **{"cni_plugins": "*", "cni_timeout": 60, **simulated, **given})
    with unit(driver, settings=settings) as made:
        yield made


def calls(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def commands(log: Path) -> list[str]:
    return [f"{call['command']} {call['config']['type']}" for call in calls(log)]


def test_pod_gets_the_interface_that_a_chain_makes(
    namespaces: Namespaces, host: Path, bin_: Path, log: Path, config: Any
) -> None:
    pod = namespaces.new()
    with bench(bin_, fake="", host_netns=host) as b:
        b.prepare("blue", [CNI], config=config({"veth": "10.22.0.2/24"}, {}))
        [facts] = b.pod_starts(b.pod(netns=pod))
        assert namespaces.facts(pod) == {"net1": (1500, ["10.22.0.2"])}
        assert len(namespaces.facts(host)) == 5  # and two veth pairs
        network = facts.status.network_data
        assert (network.interface_name, network.ips) == ("net1", ["10.22.0.2/24"])
        assert re.fullmatch("([0-9a-f]{2}:){5}[0-9a-f]{2}", network.hardware_address)
        assert facts.metadata.network_data == network
        assert facts.status.data["last"] == "second"

        b.pod_stops(b.pod(netns=pod))
        b.unprepare("blue")
    assert namespaces.facts(pod) == {}
    assert len(namespaces.facts(host)) == 4


def test_pods_that_share_a_claim_are_added_and_deleted_separately(bin_: Path, log: Path, config: Any) -> None:
    with bench(bin_) as b:
        b.prepare("blue", [CNI], config=config({}))
        b.pod_starts("one")
        b.pod_starts("two")
        b.pod_stops("one")
        b.unprepare("blue")
    assert [(call["command"], call["containerid"]) for call in calls(log)] == [
        ("ADD", "sandbox-one"),
        ("ADD", "sandbox-two"),
        ("DEL", "sandbox-one"),
        ("DEL", "sandbox-two"),
    ]


def test_pod_does_not_start_if_a_plugin_fails(bin_: Path, log: Path, config: Any) -> None:
    with bench(bin_) as b:
        b.prepare("blue", [CNI], config=config({}, {"fail": {"ADD": "no address left"}}))
        text = "CNI plugin second failed with ADD of interface net1 in network blue: no address left"
        with pytest.raises(dra.TransientError, match=text):
            b.pod_starts()
        b.pod_stops()
    assert commands(log) == ["ADD first", "ADD second", "DEL second", "DEL first"]


def test_failed_del_is_repeated(bin_: Path, log: Path, config: Any, tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"
    with bench(bin_) as b:
        b.prepare("blue", [CNI], config=config({"fail": {"DEL": "busy"}, "repaired": str(repaired)}))
        b.pod_starts()
        for undo in (b.pod_stops, lambda: b.unprepare("blue")):
            with pytest.raises(dra.TransientError, match=r"CNI plugin first failed with DEL of interface net1 .* busy"):
                undo()
        repaired.touch()
        b.unprepare("blue")
    assert commands(log) == ["ADD first", *["DEL first"] * 3]


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ({"type": "bridge"}, "CNI plugin bridge is not in /.*/bin of the node"),
        ({"ipam": {"type": "dhcp"}}, "CNI plugin dhcp is not allowed by the driver"),
    ],
)
def test_claim_of_an_unknown_plugin_is_not_prepared(
    bin_: Path, log: Path, config: Any, plugin: dict[str, Any], message: str
) -> None:
    with bench(bin_, cni_plugins="first, bridge") as b:
        with pytest.raises(dra.TransientError, match=f"network blue cannot be used: {message}"):
            b.prepare("blue", [CNI], config=config(plugin))
    assert commands(log) == []


def test_key_that_plugins_read_in_another_spelling_is_rejected(bin_: Path, config: Any) -> None:
    """JSON in Go ignores the case of keys, so a plugin that is not listed would run."""
    with bench(bin_) as b, pytest.raises(dra.PermanentError, match="'IPAM' is not a key of CNI; write 'ipam'"):
        b.prepare("blue", [CNI], config=config({"IPAM": {"type": "dhcp"}}))


def test_claim_without_network_is_not_prepared(bin_: Path) -> None:
    with (
        bench(bin_) as b,
        pytest.raises(dra.PermanentError, match="request device names no network: it has no CniConfig"),
    ):
        b.prepare("blue", [CNI])


@pytest.mark.parametrize(("plugins", "offered"), [("", []), ("bridge", [CNI])])
def test_networks_are_offered_only_if_plugins_are_listed(
    tmp_path: Path, plugins: str, offered: list[dra.Device]
) -> None:
    class Context:
        settings = Settings(cni_plugins=plugins)

        def prepared(self) -> dict[str, dra.PreparedClaim]:
            return {}

    inventory = Inventory()
    inventory.context = Context()  # type: ignore[assignment]
    inventory.hardware = Host(SimulatedNetwork(tmp_path), Pci(), dra.CniPlugins(tmp_path, ()))
    (tmp_path / "node").mkdir()
    assert list(inventory.discover()) == [offered]


SLOW = """#!/bin/sh
echo "$CNI_CONTAINERID $CNI_COMMAND" >> "$CNI_PATH/log"
cat > /dev/null
[ "$CNI_COMMAND" = ADD ] || exit 0
[ -e "$CNI_PATH/repaired" ] || sleep 1234
echo "{}"
"""


def test_each_add_is_followed_by_del_after_the_driver_was_killed(tmp_path: Path) -> None:
    """It is killed while a plugin runs; that plugin is killed, too, before its DEL."""
    for name in ("bridge", "host-local", "tuning"):
        (tmp_path / name).write_text(SLOW)
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    log.touch()

    def last() -> set[str]:
        """Return the last command for each sandbox."""
        return set(dict(line.split() for line in log.read_text().splitlines()).values())

    with sandbox(str(PROJECT), settings={"cni_bin": str(tmp_path)}) as bed:
        with bed.harness("killed", directory=tmp_path, process=True) as harness:
            harness.apply(STORY / "pod.yaml")
            harness.wait_for(last)
            harness.kill(restart=False)
            (tmp_path / "repaired").touch()
            harness.start()
            harness.wait("client")
            harness.delete("Pod/client")
            harness.wait_gone("Pod/client")
            harness.wait_for(lambda: last() == {"DEL"})
