"""``dra-kit who``: its sources, and its message if nothing is found."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dra_kit.cli.app import cli
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import PODS, RESOURCE_CLAIMS
from tests.unit.diagnosis.operation.parts import api_server

CLAIM: dict[str, Any] = {
    "metadata": {"name": "lunch", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]}},
}
CONTAINER = {"name": "eater", "image": "i", "resources": {"claims": [{"name": "l"}]}}
POD = {
    "metadata": {"name": "guest", "namespace": "default"},
    "spec": {
        "nodeName": "node-1",
        "resourceClaims": [{"name": "l", "resourceClaimName": "lunch"}],
        "containers": [CONTAINER],
    },
}


async def filled(kubeconfig: Path) -> None:
    async with Client(await load_credentials(kubeconfig), user_agent="test") as client:
        pod = await client.create(PODS, POD, "default")
        await client.create(RESOURCE_CLAIMS, CLAIM, "default")
        result = {"request": "pizza", "driver": "dra.pizza", "pool": "node-1", "device": "pizza-0"}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "guest", "uid": pod["metadata"]["uid"]}],
        }
        await client.patch(RESOURCE_CLAIMS, "lunch", {"status": status}, "default", subresource="status")


def who(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["who", *map(str, arguments)])


@pytest.mark.parametrize("wanted", ["guest", "default/guest", "lunch", "pizza-0", "node-1"])
async def test_claims_and_pods_are_read_where_a_cluster_is_named(tmp_path: Path, wanted: str) -> None:
    with api_server(tmp_path) as kubeconfig:
        await filled(kubeconfig)
        found = await asyncio.to_thread(who, "--kubeconfig", kubeconfig, "-o", "json", wanted)
        nothing = await asyncio.to_thread(who, "--kubeconfig", kubeconfig, "GPU-1")
        elsewhere = await asyncio.to_thread(who, "--kubeconfig", kubeconfig, "-n", "other")
    [use] = json.loads(found.stdout)["devices"]
    assert (use["claim"], use["pod"], use["container"], use["node"]) == ("lunch", "guest", "eater", "node-1")
    assert found.exit_code == 0
    assert nothing.exit_code == 3
    assert nothing.stderr == ("no device of GPU-1 is in use; hardware ids are only known on the device's node\n")
    assert elsewhere.exit_code == 3


async def test_cluster_of_the_environment_is_asked_on_a_node_with_other_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "kubelet/plugins/dra.pasta/ops.sock"
    link.parent.mkdir(parents=True)
    link.with_name("ops-1.sock").touch()
    link.symlink_to("ops-1.sock")
    with api_server(tmp_path) as kubeconfig:
        await filled(kubeconfig)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        answer = await asyncio.to_thread(who, "--kubelet-dir", tmp_path / "kubelet", "-o", "json")
    assert answer.exit_code == 0, answer.output
    [use] = json.loads(answer.stdout)["devices"]
    assert use["driver"] == "dra.pizza"
    assert answer.stderr == "note: KUBECONFIG is set, so the API server is asked; --source node asks this node\n"


def test_missing_sources_on_a_node_are_named(tmp_path: Path) -> None:
    answer = who("--source", "node", "--kubelet-dir", tmp_path, "--cdi-dir", tmp_path)
    assert answer.exit_code == 3
    assert "containers are not known: the kubelet's" in answer.stderr
    assert answer.stderr.endswith("no device is in use on this node; --source cluster asks the API server\n")


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_driver_that_does_not_answer_is_not_reported_as_unused(tmp_path: Path, output: str) -> None:
    (tmp_path / "plugins/dra.pizza").mkdir(parents=True)
    link = tmp_path / "plugins/dra.pizza/ops.sock"
    with closing(socket.socket(socket.AF_UNIX)) as killed:
        killed.bind(str(link.with_name("ops-1.sock")))
    link.symlink_to("ops-1.sock")
    asked = ["--kubelet-dir", tmp_path, "--cdi-dir", tmp_path, "-o", output]
    answer = who("GPU-1", *asked)
    assert answer.exit_code == 1
    assert f"no driver answers at {link}" in (answer.stderr if output == "text" else answer.stdout)
    if output == "text":
        assert answer.stderr.endswith(
            "cannot check whether a device of GPU-1 is in use: a driver does not answer; see dra-kit status\n"
        )
    uid = "5d4ba5a2-7b5c-4a54-9c0e-3b4f1f0d9a11"
    spec = {"cdiVersion": "0.6.0", "kind": "gpu.example/gpu", "devices": [{"name": f"{uid}-0"}]}
    (tmp_path / "foreign.json").write_text(json.dumps(spec))
    assert who(*asked).exit_code == 0
