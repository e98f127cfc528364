"""Claims that hold devices of a driver, as the command prints them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dra_kit.cli.app import cli
from dra_kit.diagnosis.drain import drain_status
from dra_kit.errors import ConfigurationError
from tests.support.api import Api

DRIVER = "dra.pizza"


def claim(
    name: str,
    *,
    node: str = "node-1",
    driver: str = DRIVER,
    users: tuple[dict[str, Any], ...] = ({"resource": "pods", "name": "guest", "uid": "1"},),
) -> dict[str, Any]:
    """A claim with one device."""
    result = {"request": "pizza", "driver": driver, "pool": node or "shop", "device": "pizza-0"}
    allocation: dict[str, Any] = {"devices": {"results": [result]}}
    if node:
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "status": {"allocation": allocation, "reservedFor": list(users)},
    }


def node_slice(node: str, driver: str = DRIVER) -> dict[str, Any]:
    """A slice with a device of one node."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "pizza-0"}]}
    return {"metadata": {"name": f"{driver}-{node}"}, "spec": spec}


def drain(kubeconfig: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["drain", "--driver", DRIVER, "--kubeconfig", str(kubeconfig), *arguments])


def drain_while(change: Callable[[], None], kubeconfig: Path, *arguments: str) -> Result:
    """Let the command wait while the cluster changes in another thread."""
    with ThreadPoolExecutor() as pool:
        changed = pool.submit(change)
        found = drain(kubeconfig, *arguments, "--wait", "600")
        changed.result()
    return found


def test_pods_that_use_devices_are_reported(kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    api.put("resourceclaims", claim("lunch"))
    api.put("resourceclaims", claim("other", driver="dra.pasta"))
    found = drain(path)
    assert found.exit_code == 3
    assert found.output == (
        "NODE    POD            CLAIM          DEVICES\n"
        "node-1  default/guest  default/lunch  node-1/pizza-0\n"
        "driver dra.pizza: 1 claim in use; delete the pods, or wait until they terminate, before you "
        "remove the driver\n"
    )


def test_a_driver_whose_devices_are_not_in_use(kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    api.put("resourceslices", node_slice("node-1"))
    found = drain(path)
    assert (found.exit_code, found.output) == (0, "driver dra.pizza: no claim is in use\n")


def test_a_claim_that_keeps_its_devices_delays_nothing(kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    api.put("resourceclaims", claim("lunch", users=()))
    found = drain(path)
    assert found.exit_code == 0
    assert "allocated but not in use: default/lunch; pods that use them later will wait" in found.output


def test_drain_of_one_node(kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    for name, node in (("lunch", "node-1"), ("dinner", "node-2"), ("snack", "")):
        api.put("resourceclaims", claim(name, node=node))
    held = json.loads(drain(path, "--node", "node-2", "-o", "json").output)["held"]
    assert [(item["claim"], item["node"]) for item in held] == [("snack", ""), ("dinner", "node-2")]


def test_it_waits_until_no_claim_holds_devices(kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    api.put("resourceclaims", claim("lunch"))

    def release() -> None:
        while not api.asked("GET", "/apis/resource.k8s.io/v1/resourceclaims"):
            time.sleep(0.01)
        api.put("resourceclaims", claim("lunch", users=()))

    found = drain_while(release, path)
    assert found.exit_code == 0
    assert "waiting for 1 claim\n" in found.stderr


@pytest.mark.processes
def test_it_keeps_waiting_while_the_api_server_does_not_answer(kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    claims = "/apis/resource.k8s.io/v1/resourceclaims"
    api.put("resourceclaims", claim("lunch"))

    def asked_again(times: int) -> None:
        while api.asked("GET", claims) < times:
            time.sleep(0.01)

    def restart() -> None:
        asked_again(1)
        with api.failing(503, "GET", below=claims):
            asked_again(2)
            api.put("resourceclaims", claim("lunch", users=()))

    found = drain_while(restart, path)
    assert found.exit_code == 0, found.output
    with api.failing(503, "GET", below=claims):
        assert drain(path, "--wait", "600").exit_code == 1, "who it is was never known"


def test_users_that_are_not_pods_are_named_with_their_kind() -> None:
    job = {"apiGroup": "batch.example", "resource": "jobs", "name": "bake", "uid": "1"}
    [holder] = drain_status([claim("lunch", users=(job,))], DRIVER).held
    assert holder.users == ("jobs.batch.example/bake",)


def test_an_unreadable_claim_is_not_ignored() -> None:
    strange = claim("lunch")
    strange["status"]["allocation"]["devices"]["results"] = "all"
    with pytest.raises(ConfigurationError, match=r"claim default/lunch cannot be read: .*; use a newer release"):
        drain_status([strange], DRIVER)
