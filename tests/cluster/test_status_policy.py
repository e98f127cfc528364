"""What a node's token may write to the status of claims, in the oldest and the newest release.

From 1.36 on the API server asks for rights of its own. The accounts here are given all of these as well, so that it is
the chart's policy that refuses.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.claim_writes import write_device_statuses
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.cluster.access import Access, granted
from tests.cluster.plane import Plane
from tests.cluster.pod_rights import PodRights, claim_of
from tests.life.switches import until

DRIVER, ANOTHER = "status.pizza.example", "another.pizza.example"
ONLY_DEVICES = "may change nothing in the status of a claim but status.devices"
ONLY_OWN = "may change only its own entries of status.devices"
ONLY_HERE = "may change status.devices only of claims that are allocated on this node"
DEADLINE_SECONDS = 60


@dataclass(frozen=True)
class Kitchen:
    """A driver's account in a cluster with two nodes.

    Attributes:
        access: the driver's accounts.
        here: the node whose token is asked about.
        there: another node.
    """

    access: Access
    here: str
    there: str

    @property
    def admin(self) -> PodRights:
        """The credentials of an account with all rights."""
        return PodRights(self.access.plane, self.access.plane)

    def rights(self, node: str | None = None) -> PodRights:
        """Those of a token of a node; empty for a token that names none."""
        plane = self.access.plane
        kubeconfig = self.access.kubeconfig("node", node=self.here if node is None else node)
        return PodRights(plane, replace(plane, kubeconfig=kubeconfig))

    @contextmanager
    def claim(self, *nodes: str, says: str = "cold", parameters: str = "") -> Iterator[dict[str, Any]]:
        """A claim with a device of the driver and one of another, of which the other driver says something."""
        plane, namespace, on = self.access.plane, self.access.namespace, list(nodes or [self.here])
        with claim_of(plane, namespace, [DRIVER, ANOTHER], on, parameters=parameters) as claim:
            if says:
                assert self.admin.patch_status(claim, {"devices": [entry(claim, ANOTHER, says)]}) == ""
            yield self.status_of(claim)

    def status_of(self, claim: Mapping[str, Any]) -> dict[str, Any]:
        """The claim as it is now."""
        place = ("--namespace", self.access.namespace)
        found: dict[str, Any] = self.access.plane.get(RESOURCE_CLAIMS.plural, claim["metadata"]["name"], *place)
        return found


def entry(claim: Mapping[str, Any], driver: str, oven: str) -> dict[str, Any]:
    """What a driver says of its device of the claim."""
    [result] = [item for item in claim["status"]["allocation"]["devices"]["results"] if item["driver"] == driver]
    return {name: result[name] for name in ("driver", "pool", "device")} | {"data": {"oven": oven}}


@pytest.fixture(scope="module")
def nodes(plane: Plane) -> Iterator[tuple[str, str]]:
    """Two nodes that take no pods."""
    names = (f"here-{secrets.token_hex(3)}", f"there-{secrets.token_hex(3)}")
    spec = {"unschedulable": True, "taints": [{"key": "example.com/unused", "effect": "NoExecute"}]}
    items = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec} for name in names]
    with plane.holding(*items):
        yield names


@pytest.fixture(scope="module")
def kitchen(plane: Plane, nodes: tuple[str, str]) -> Iterator[Kitchen]:
    """The driver, as soon as the API server judges by its roles and its policy."""
    with granted(plane, release="status-policy", driver=DRIVER) as access, everything_else(access):
        kitchen = Kitchen(access, *nodes)
        end = time.monotonic() + DEADLINE_SECONDS
        with kitchen.claim() as claim:
            rights = kitchen.rights(kitchen.there)
            # only the policy rejects it; repeating the former value is not a change
            while ONLY_HERE not in (
                answer := rights.report_devices(claim, [entry(claim, DRIVER, secrets.token_hex(8))])
            ):
                assert time.monotonic() < end, f"the policy is not in force within {DEADLINE_SECONDS} s: {answer}"
                time.sleep(0.3)
        yield kitchen


@contextmanager
def everything_else(access: Access) -> Iterator[None]:
    """Give the node's account every right that the API server asks for from 1.36 on, and what kubectl patches with."""
    name = f"{access.namespace}-whole-status"
    subresources = ["resourceclaims/driver", "resourceclaims/binding"]
    rules = [
        {"apiGroups": [RESOURCE_CLAIMS.group], "resources": subresources, "verbs": ["*"]},
        {"apiGroups": [RESOURCE_CLAIMS.group], "resources": ["resourceclaims/status"], "verbs": ["get"]},
    ]
    header = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    account = {"kind": "ServiceAccount", "name": f"{access.release}-node", "namespace": access.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    items = [
        {**header, "kind": "ClusterRole", "rules": rules},
        {**header, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [account]},
    ]
    with access.plane.holding(*items):
        yield


def test_the_driver_says_changes_and_takes_back_what_it_knows_of_its_device(kitchen: Kitchen) -> None:
    rights = kitchen.rights()
    with kitchen.claim() as claim:
        told = []
        for own in ([entry(claim, DRIVER, "hot")], [entry(claim, DRIVER, "hotter")], []):
            assert rights.report_devices(claim, own) == ""
            told.append([item["data"]["oven"] for item in kitchen.status_of(claim)["status"]["devices"]])

    assert told == [["cold", "hot"], ["cold", "hotter"], ["cold"]]


@pytest.mark.parametrize("parameters", ['{"b":1,"a":2}', '{ "a": 1 }', '{"a":"salt & oil"}'])
def test_a_status_is_written_where_every_patch_is_rejected(kitchen: Kitchen, parameters: str) -> None:
    rights = kitchen.rights()
    with kitchen.claim(says="", parameters=parameters) as claim:
        metadata = claim["metadata"]
        assert "invalid: status.allocation" in kitchen.admin.report_devices(claim, [entry(claim, ANOTHER, "cold")])
        reference = ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"])

        async def write() -> None:
            async with Client(await load_credentials(rights.pod.kubeconfig), user_agent="tests/1") as client:
                await write_device_statuses(client, reference, [entry(claim, DRIVER, "hot")], DRIVER)

        asyncio.run(write())
        after = kitchen.status_of(claim)

    assert [item["data"]["oven"] for item in after["status"]["devices"]] == ["hot"]
    assert after["status"]["allocation"] == claim["status"]["allocation"]


def test_labels_do_not_come_in_by_the_status(kitchen: Kitchen) -> None:
    rights = kitchen.rights()
    with kitchen.claim() as claim:
        answer = rights.report_devices(claim, [entry(claim, DRIVER, "hot")], labels={"kitchen": "mine"})
        after = kitchen.status_of(claim)

    assert answer == ""
    assert "labels" not in after["metadata"]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_an_allocation_is_not_taken_away(plane: Plane, kitchen: Kitchen, version: str) -> None:
    if version not in plane.versions("resource.k8s.io"):
        pytest.skip(f"resource.k8s.io/{version} is not served")
    with kitchen.claim() as claim:
        answer = kitchen.rights().patch_status(claim, {"allocation": None, "devices": None}, version=version)
        after = kitchen.status_of(claim)

    assert ONLY_DEVICES in answer
    assert after["status"] == claim["status"]


def test_an_allocation_is_not_given(kitchen: Kitchen) -> None:
    with kitchen.claim() as claim:
        assert kitchen.admin.patch_status(claim, {"allocation": None, "devices": None}) == ""

        answer = kitchen.rights().patch_status(claim, {"allocation": claim["status"]["allocation"]})

    assert ONLY_DEVICES in answer


@pytest.mark.parametrize("before", [[], ["others"], ["others", "mine"]], ids=["none", "another", "both"])
def test_reservations_stay_as_they_are(kitchen: Kitchen, before: list[str]) -> None:
    # of a kind that the claim controller does not know, so that it leaves them alone
    reservations = {
        name: {"apiGroup": "example.com", "resource": "tables", "name": name, "uid": name}
        for name in ("others", "mine")
    }
    with kitchen.claim() as claim:
        assert kitchen.admin.patch_status(claim, {"reservedFor": [reservations[name] for name in before]}) == ""

        answer = kitchen.rights().patch_status(claim, {"reservedFor": [reservations["mine"]]})
        assert kitchen.admin.patch_status(claim, {"reservedFor": None}) == ""

    assert ONLY_DEVICES in answer


@pytest.mark.parametrize(
    ("before", "after"), [("cold", "warm"), ("cold", ""), ("", "warm")], ids=["changed", "removed", "added"]
)
def test_what_another_driver_says_stays_as_it_is(kitchen: Kitchen, before: str, after: str) -> None:
    with kitchen.claim(says=before) as claim:
        theirs = [entry(claim, ANOTHER, after)] if after else []
        answer = kitchen.rights().patch_status(claim, {"devices": [*theirs, entry(claim, DRIVER, "hot")]})
        unchanged = kitchen.status_of(claim)

    assert ONLY_OWN in answer
    assert unchanged["status"] == claim["status"]


def test_apply_does_not_take_over_what_another_driver_says(kitchen: Kitchen) -> None:
    with kitchen.claim() as claim:
        answer = kitchen.rights().report_devices(claim, [entry(claim, ANOTHER, "warm")])

    assert ONLY_OWN in answer


def test_nothing_is_said_of_a_claim_of_another_node(kitchen: Kitchen) -> None:
    with kitchen.claim(kitchen.there) as claim:
        answer = kitchen.rights().report_devices(claim, [entry(claim, DRIVER, "hot")])

    assert f"the driver on node {kitchen.here} {ONLY_HERE}" in answer


def test_nothing_is_said_of_a_claim_of_several_nodes(kitchen: Kitchen) -> None:
    with kitchen.claim(kitchen.here, kitchen.there) as claim:
        answer = kitchen.rights().report_devices(claim, [entry(claim, DRIVER, "hot")])

    assert ONLY_HERE in answer


def test_a_token_that_names_no_node_says_nothing(kitchen: Kitchen) -> None:
    with kitchen.claim() as claim:
        answer = kitchen.rights(node="").report_devices(claim, [entry(claim, DRIVER, "hot")])

    assert f"the driver on node (none: its token names no node) {ONLY_HERE}" in answer


def test_what_it_said_is_not_taken_back_from_elsewhere(kitchen: Kitchen) -> None:
    with kitchen.claim() as claim:
        assert kitchen.rights().report_devices(claim, [entry(claim, DRIVER, "hot")]) == ""

        answer = kitchen.rights(kitchen.there).patch_status(claim, {"devices": [entry(claim, ANOTHER, "cold")]})

    assert ONLY_HERE in answer


def test_the_server_finds_no_fault_in_the_types_of_the_policies(kitchen: Kitchen) -> None:
    plane, release = kitchen.access.plane, kitchen.access.release
    for name in (f"{release}-node", f"{release}-node-status"):
        until(f"the types of {name}", lambda name=name: plane.type_errors(name) is not None)  # type: ignore[misc]
        assert plane.type_errors(name) == {}
