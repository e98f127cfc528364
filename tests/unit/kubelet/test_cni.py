"""CNI plugins, called for pods: a script plays plugins of several names, and logs how it is called."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

import dra_kit as dra
from tests.support.processes import processes

PLUGIN = """
import json, os, subprocess, sys
config = json.load(sys.stdin)
call = {name.removeprefix("CNI_").lower(): text for name, text in os.environ.items() if name.startswith("CNI_")}
with open(os.path.join(os.path.dirname(sys.argv[0]), "..", "log"), "a") as log:
    log.write(json.dumps(call | {"config": config}) + "\\n")
if call["command"] in config.get("fail", {}):
    print(config["fail"][call["command"]], file=sys.stderr if config.get("stderr") else sys.stdout)
    sys.exit(1)
if call["command"] == config.get("hang"):
    subprocess.run(["sleep", "1234"])
if call["command"] == "ADD":
    print(json.dumps({**config.get("prevResult", {}), **config.get("print", {}), "last": config["type"]}))
"""
CLAIM = dra.ClaimReference("default", "blue", "uid-blue")


def a_pod(name: str = "pod", netns: Path | None = Path("/nonexistent/netns")) -> dra.RuntimePod:
    return dra.RuntimePod(id=f"sandbox-{name}", name=name, namespace="default", uid=f"uid-{name}", netns=netns)


class Node:
    """A directory with the plugins ``first``, ``second`` and ``third``, and their calls."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "log"
        self.attachments = directory / "attachments"
        self.bin = directory / "bin"
        self.bin.mkdir()
        for name in ("first", "second", "third"):
            (self.bin / name).write_text(f"#!{sys.executable}{PLUGIN}")
            (self.bin / name).chmod(0o755)

    def plugins(self, *allowed: str, timeout: float = 60) -> dra.CniPlugins:
        return dra.CniPlugins(self.attachments, allowed or ("*",), path=self.bin, timeout=timeout)

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    def commands(self) -> list[str]:
        return [f"{call['command']} {call['config']['type']}" for call in self.calls()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def network(*plugins: dict[str, Any]) -> dra.CniNetwork:
    """A network of the plugins ``first``, ``second`` and so on, each with its own configuration."""
    named = [{"type": name} | plugin for name, plugin in zip(("first", "second", "third"), plugins, strict=False)]
    return dra.CniNetwork(cniVersion="1.0.0", name="blue", plugins=named)


@pytest.mark.processes
def test_plugins_get_the_parameters_of_the_specification(node: Node, tmp_path: Path) -> None:
    netns = tmp_path / "netns"
    netns.touch()
    pod, plugins = a_pod(netns=netns), node.plugins()
    plugins.attach(network({"capabilities": {"mac": True}, "mtu": 9000}, {}), "net1", CLAIM, pod)
    plugins.detach(CLAIM, pod)

    assert node.commands() == ["ADD first", "ADD second", "DEL second", "DEL first"]
    first, second, *deleted = node.calls()
    parameters = {name: text for name, text in first.items() if name not in {"command", "config"}}
    assert parameters == {
        "containerid": "sandbox-pod",
        "netns": str(netns),
        "ifname": "net1",
        "path": str(node.bin),
        "args": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod;K8S_POD_UID=uid-pod;"
        "K8S_POD_INFRA_CONTAINER_ID=sandbox-pod",
    }
    assert all(call.items() >= parameters.items() for call in (second, *deleted))
    assert first["config"] == {"type": "first", "mtu": 9000, "cniVersion": "1.0.0", "name": "blue"}
    assert second["config"]["prevResult"]["last"] == "first"
    assert [call["config"]["prevResult"]["last"] for call in deleted] == ["second", "second"]


@pytest.mark.processes
def test_result_is_that_of_the_last_plugin(node: Node) -> None:
    found = {"interfaces": [{"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/netns"}]}
    result = node.plugins().attach(network({"print": found}, {}), "net1", CLAIM, a_pod())
    assert result.model_dump() == {**found, "ips": [], "last": "second"}


@pytest.mark.processes
def test_interface_is_added_once_also_by_another_process(node: Node) -> None:
    first = node.plugins().attach(network({}), "net1", CLAIM, a_pod())
    assert node.plugins().attach(network({}), "net1", CLAIM, a_pod()) == first
    for _ in range(2):
        node.plugins().detach(CLAIM)
    assert node.commands() == ["ADD first", "DEL first"]


@pytest.mark.processes
def test_pods_that_share_a_claim_are_detached_separately(node: Node) -> None:
    plugins = node.plugins()
    for name in ("one", "two"):
        plugins.attach(network({}), "net1", CLAIM, a_pod(name))
    plugins.detach(CLAIM, a_pod("one"))
    plugins.detach(CLAIM)
    assert [call["containerid"] for call in node.calls() if call["command"] == "DEL"] == ["sandbox-one", "sandbox-two"]


@pytest.mark.processes
def test_namespace_that_has_ended_is_empty_in_del(node: Node, tmp_path: Path) -> None:
    netns = tmp_path / "netns"
    netns.touch()
    node.plugins().attach(network({}), "net1", CLAIM, a_pod(netns=netns))
    netns.unlink()
    node.plugins().detach(CLAIM)
    assert [(call["command"], call["netns"]) for call in node.calls()] == [("ADD", str(netns)), ("DEL", "")]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("printed", "more", "message"),
    [
        ('{"cniVersion": "1.0.0", "code": 11, "msg": "no address left", "details": "in 10.22.0.0/24"}', {},
         "no address left in 10.22.0.0/24"),
        ("Segmentation fault", {}, "Segmentation fault"),
        ("no such device", {"stderr": True}, "no such device"),
        ("", {}, "exit status 1"),
    ],
)  # fmt: skip
def test_error_has_the_message_of_the_plugin(node: Node, printed: str, more: dict[str, Any], message: str) -> None:
    text = f"CNI plugin second failed with ADD of interface net1 in network blue: {message}; change the configuration"
    with pytest.raises(dra.TransientError, match=re.escape(text)) as caught:
        node.plugins().attach(network({}, {"fail": {"ADD": printed}, **more}, {}), "net1", CLAIM, a_pod())
    assert caught.value.code == "cni-failed"


@pytest.mark.processes
def test_del_follows_a_failed_add_without_its_result_and_before_the_next_add(node: Node) -> None:
    chain = network({}, {"fail": {"ADD": "busy"}}, {})
    for _ in range(2):
        with pytest.raises(dra.TransientError, match="busy"):
            node.plugins().attach(chain, "net1", CLAIM, a_pod())
    added, deleted = ["ADD first", "ADD second"], ["DEL third", "DEL second", "DEL first"]
    assert node.commands() == [*added, *deleted, *added]
    assert "prevResult" not in node.calls()[2]["config"]


@pytest.mark.processes
def test_failed_del_is_repeated(node: Node) -> None:
    node.plugins().attach(network({"fail": {"DEL": "busy"}}), "net1", CLAIM, a_pod())
    for _ in range(2):
        with pytest.raises(dra.TransientError, match=r"CNI plugin first failed with DEL of interface net1 .* busy"):
            node.plugins().detach(CLAIM)
    assert node.commands() == ["ADD first", "DEL first", "DEL first"]


@pytest.mark.processes
def test_file_that_another_call_has_removed_is_ignored(node: Node) -> None:
    for name in ("one", "two"):
        node.plugins().attach(network({}), "net1", CLAIM, a_pod(name))
    (node.bin / "first").write_text(f"#!/bin/sh\nrm {node.attachments}/*\n")
    node.plugins().detach(CLAIM)
    assert list(node.attachments.iterdir()) == []


@pytest.mark.processes
def test_corrupt_file_of_an_attachment_is_named(node: Node) -> None:
    node.plugins().attach(network({}), "net1", CLAIM, a_pod())
    file = node.attachments / "uid-blue.sandbox-pod.net1"
    file.write_text("{")
    with pytest.raises(dra.TransientError, match=f"{file} is corrupt"):
        node.plugins().detach(CLAIM)


@pytest.mark.parametrize("name", ["", ".", "..", "../../etc/passwd", "a/b", "a:b", "a b", "x" * 16])
def test_name_that_no_interface_can_have_is_rejected(node: Node, name: str) -> None:
    with pytest.raises(dra.PermanentError, match="of its interface is invalid"):
        node.plugins().attach(network({}), name, CLAIM, a_pod())
    assert not node.attachments.exists()


@pytest.mark.processes
def test_attachments_after_one_that_cannot_be_deleted_are_deleted(node: Node) -> None:
    plugins = node.plugins()
    for name in ("one", "two", "three"):
        plugins.attach(network({}), "net1", CLAIM, a_pod(name))
    first = min(node.attachments.iterdir())
    first.write_text("{")

    with pytest.raises(dra.TransientError, match="is corrupt"):
        plugins.detach(CLAIM)

    assert list(node.attachments.iterdir()) == [first]


@pytest.mark.processes
def test_add_before_a_reboot_delays_del_for_one_timeout_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a boot starts again, so that the stored time is far away."""
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(slept), sleep=slept.append)
    monkeypatch.setattr("dra_kit.kubelet.cni.time", clock)
    plugins = node.plugins(timeout=60)
    plugins.attach(network({}), "net1", CLAIM, a_pod())
    [file] = node.attachments.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"until": 1e9}))

    plugins.detach(CLAIM)

    assert 0 < sum(slept) < 62
    assert node.commands() == ["ADD first", "DEL first"]
    assert not file.exists()


@pytest.mark.processes
def test_plugin_that_hangs_is_killed_with_its_processes(node: Node) -> None:
    with pytest.raises(dra.TransientError, match="it has not finished after 3 s, the limit of the driver"):
        node.plugins(timeout=3).attach(network({"hang": "ADD"}), "net1", CLAIM, a_pod())
    node.plugins().detach(CLAIM)
    assert node.commands()[-1] == "DEL first"
    assert not [process for process in processes() if f"CNI_PATH={node.bin}" in process.environment]


@pytest.mark.processes
def test_invalid_output_is_an_error(node: Node) -> None:
    (node.bin / "first").write_text("#!/bin/sh\necho done\n")
    with pytest.raises(dra.TransientError, match=r"CNI plugin first failed with ADD .* Invalid JSON"):
        node.plugins().attach(network({}), "net1", CLAIM, a_pod())


def test_pod_in_the_network_of_the_host_joins_no_other(node: Node) -> None:
    with pytest.raises(dra.PermanentError, match=r"pod default/pod cannot join network blue: .* remove hostNetwork"):
        node.plugins().attach(network({}), "net1", CLAIM, a_pod(netns=None))
    assert not node.attachments.exists()


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ({"type": "bridge"}, "CNI plugin bridge is not in /.*/bin of the node; add it, or change the configuration"),
        ({"ipam": {"type": "dhcp"}}, "CNI plugin dhcp is not allowed by the driver; allow it in the settings"),
        ({"type": "../first"}, "CNI plugin ../first is not allowed"),
        ({"type": None}, "CNI plugin None is not allowed"),
    ],
)
def test_network_of_an_unknown_plugin_is_rejected(node: Node, plugin: dict[str, Any], message: str) -> None:
    with pytest.raises(dra.TransientError, match=f"network blue cannot be used: {message}"):
        node.plugins("f*", "bridge").check(network(plugin))


def test_plugin_outside_of_the_directory_is_rejected_even_if_all_are_allowed(node: Node) -> None:
    with pytest.raises(dra.TransientError, match=r"CNI plugin \.\./bin/first is not in "):
        node.plugins().check(network({"type": "../bin/first"}))


def test_network_whose_plugins_are_there_is_accepted(node: Node) -> None:
    node.plugins("first", "second").check(network({"ipam": {"type": "second"}}, {"ipam": {}}))


@pytest.mark.parametrize(
    ("plugin", "key"),
    [
        ({"IPAM": {"type": "dhcp"}}, "IPAM"),
        ({"Name": "../../etc"}, "Name"),
        ({"prevRe\u017fult": {}}, "prevRe\u017fult"),
        ({"ipam": {"type": "second", "Type": "dhcp"}}, "Type"),
    ],
)
def test_key_that_plugins_read_in_another_spelling_is_rejected(plugin: dict[str, Any], key: str) -> None:
    """JSON in Go ignores the case of keys, so a plugin that is not allowed would run."""
    with pytest.raises(ValidationError, match=f"'{key}' is not a key of CNI; write "):
        network(plugin)


def test_keys_of_the_runtime_are_rejected() -> None:
    with pytest.raises(ValidationError, match="'runtimeConfig' is reserved for the runtime"):
        network({"runtimeConfig": {"portMappings": []}})


@pytest.mark.parametrize(
    ("change", "data"),
    [
        (lambda result: None, ("net1", ["10.1.2.3/24", "fd00::3/64"], "02:00:00:00:00:02")),
        (lambda result: result["interfaces"][1].pop("sandbox"), ("net1", ["fd00::3/64"], "")),
        (lambda result: result["interfaces"][1].pop("mac"), ("net1", ["10.1.2.3/24", "fd00::3/64"], "")),
    ],
    ids=["complete", "on-the-node", "without-mac"],
)
def test_network_data_are_those_of_the_interface_in_the_pod(
    change: Callable[[Any], object], data: tuple[str, list[str], str]
) -> None:
    result: dict[str, Any] = {
        "interfaces": [
            {"name": "net1", "mac": "02:00:00:00:00:01"},
            {"name": "net1", "mac": "02:00:00:00:00:02", "sandbox": "/netns"},
        ],
        "ips": [
            {"address": "192.0.2.1/24", "interface": 0},
            {"address": "10.1.2.3/24", "interface": 1},
            {"address": "fd00::3/64"},
        ],
    }
    change(result)
    found = dra.CniResult.model_validate(result).network_data("net1")
    assert (found.interface_name, list(found.ips), found.hardware_address) == data
