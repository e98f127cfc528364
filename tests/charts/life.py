"""The life of a driver that the chart has installed, played once in the sandbox: its roles are service accounts."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dra_kit as dra
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.controller.agent import lease_name
from dra_kit.controller.cluster_pools import OrphanSliceCollector
from dra_kit.controller.election import LeaderElector, Leadership
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.directory import write_kubeconfig
from dra_kit.sandbox.drivers.accounts import RoleAccounts
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from tests.charts.rendering import DRIVER, NAMESPACE, RELEASE, Manifests
from tests.charts.rights import Audit

ROLES = ("node", "controller", "webhook")
_EVENTS = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)
INSTALLED = {
    "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Lease",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}  # fmt: skip
_BURNT = "burnt"


class Order(dra.OpaqueConfig, api_version=f"{DRIVER}/v1"):
    burn: bool = False


class Oven(dra.DeviceProvider):
    """Two slices of devices; one when the oven gets smaller."""

    def __init__(self) -> None:
        self.smaller = threading.Event()

    async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
        yield [dra.Device(name=f"pizza-{i}") for i in range(129)]
        while not self.smaller.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.05)
        yield [dra.Device(name="pizza-0")]


class Waiter(dra.Preparer[Order]):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Order]) -> dra.Prepared:
        if device.config.burn:
            raise RuntimeError(_BURNT)
        ready = dra.Condition(type="Ready", status="True", reason="Baked")
        return dra.Prepared(env={"SERVED": device.name}, status=dra.DeviceStatus(conditions=[ready]))


@dataclass(frozen=True)
class Life:
    """What was played.

    Attributes:
        audit: what the roles asked for.
        used: directories of the node in which something of the driver was while a pod had a device; the kubelet's is
            ``/kubelet``, that of CDI files ``/cdi``.
    """

    audit: Audit
    used: set[str]


def accounts(manifests: Manifests) -> RoleAccounts:
    """What of a release the roles need; pods run in the sandbox's process."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    objects = [item for item in manifests.objects if item["kind"] in INSTALLED]
    node, controller, webhook = (f"{RELEASE}-{role}" for role in ROLES)
    return RoleAccounts(
        namespace=NAMESPACE, node=node, controller=controller, webhook=webhook, objects=[namespace, *objects]
    )


async def play(manifests: Manifests) -> Life:
    """Install the driver, order, eat twice, order what burns, shrink the oven, lose a node; and end."""
    audit, oven, used = Audit(), Oven(), set[str]()
    for role in ROLES:
        audit.follow(f"{RELEASE}-{role}")
    driver = dra.Driver(DRIVER, provider=oven, preparer=Waiter())
    sandbox = Sandbox(SandboxDriver((driver,)), SandboxSettings(accounts=accounts(manifests), time_scale=60))
    sandbox.control_plane.server.api.rbac.audit = audit
    async with sandbox:
        await sandbox.client.create(DEVICE_CLASSES, CLASS)
        await until(lambda: len(sandbox.informers.objects(RESOURCE_SLICES)) == 2)
        # its parameters are not sorted by name, so its status is written with an update
        await sandbox.client.create(RESOURCE_CLAIMS, claim_object("lunch", {"burn": False}))
        for _ in range(2):  # a repetition updates the same Event
            used |= await _eat(sandbox)
        await sandbox.client.create(RESOURCE_CLAIMS, claim_object("coal", {"burn": True}))
        await sandbox.client.create(PODS, pod_object("sad", "coal"))
        await until_event(sandbox, "FailedPrepareDevices", repeated=True)
        oven.smaller.set()
        await until(lambda: len(sandbox.informers.objects(RESOURCE_SLICES)) == 1)
        await sandbox.client.create(RESOURCE_SLICES, _LEFT)
        await _act_at_length(sandbox)
        await until(lambda: len(sandbox.informers.objects(RESOURCE_SLICES)) == 1)
    return Life(audit, used)


async def _act_at_length(sandbox: Sandbox) -> None:
    """What the controller does only when minutes have passed, or with several replicas; by its account, too."""
    server = sandbox.control_plane.server
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kubeconfig"
        with write_kubeconfig(path, server.kubeconfig(server.token(NAMESPACE, f"{RELEASE}-controller"))):
            credentials = await load_credentials(path)
    async with Client(credentials, user_agent="controller") as client:
        elector = LeaderElector(client, Leadership(), identity="me", namespace=NAMESPACE, lease=lease_name(DRIVER))
        assert [await elector.attempt() for _ in range(2)] == [True, True]
        assert await OrphanSliceCollector(client, DRIVER, sure_after=0).look() == 1
        recorder = EventRecorder(client, controller=DRIVER, instance="me")
        uid = (await sandbox.client.get(RESOURCE_CLAIMS, "lunch", "default"))["metadata"]["uid"]
        for _ in range(2):
            about = ObjectReference(RESOURCE_CLAIMS.api_version, RESOURCE_CLAIMS.kind, "lunch", uid, "default")
            recorder.record(about, "Normal", reason="ClaimReserved", action="Reserve", note="the same again")
            assert await recorder.flush(10)


async def _eat(sandbox: Sandbox) -> set[str]:
    """A pod with a device, from its beginning to its end; the directories that the driver needs meanwhile."""

    def phase() -> str:
        return str(sandbox.informers.objects(PODS).get(("default", "guest"), {}).get("status", {}).get("phase"))

    def devices() -> Any:
        claim = sandbox.informers.objects(RESOURCE_CLAIMS).get(("default", "lunch"), {})
        return claim.get("status", {}).get("devices")

    def allocated() -> Any:
        claim = sandbox.informers.objects(RESOURCE_CLAIMS).get(("default", "lunch"), {})
        return claim.get("status", {}).get("allocation")

    await sandbox.client.create(PODS, pod_object("guest", "lunch", "sleep", "600"))
    await until(lambda: phase() == "Running" and bool(devices()))
    used = _used(sandbox)
    await sandbox.client.delete(PODS, "guest", "default")
    await until(lambda: phase() == "None" and not allocated())
    return used


def _used(sandbox: Sandbox) -> set[str]:
    """Directories of the node with something of the driver in them."""
    (node,) = sandbox.nodes
    places = {f"/kubelet/{path.relative_to(node.directory)}": path for path in node.directory.glob("plugins*")}
    places |= {f"/kubelet/plugins/{path.name}": path for path in (node.directory / "plugins").iterdir()}
    del places["/kubelet/plugins"]  # the driver has one of its own in it
    places["/cdi"] = node.cdi_dir
    return {name for name, path in places.items() if any(DRIVER in str(entry) for entry in path.rglob("*"))}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110 - informers have no notification
            await asyncio.sleep(0.02)


async def until_event(sandbox: Sandbox, reason: str, *, repeated: bool) -> None:
    async with asyncio.timeout(100):
        while True:
            found = (await sandbox.client.list(_EVENTS)).items
            if any(item["reason"] == reason and ("series" in item) is repeated for item in found):
                return
            await asyncio.sleep(0.1)


CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "pizza"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


_LEFT = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "left"},
    "spec": {
        "driver": DRIVER,
        "nodeName": "gone",
        "pool": {"name": "gone", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "pizza-0"}],
    },
}
"""Of a node that is no more."""


def claim_object(name: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    devices: dict[str, Any] = {"requests": [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]}
    if parameters:
        parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "Order", **parameters}
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": devices},
    }


def pod_object(name: str, claim: str, *command: str) -> dict[str, Any]:
    container = {
        "name": "eater",
        "image": "x",
        "command": list(command),
        "resources": {"claims": [{"name": "pizza"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,  # with 0 the pod is gone before the kubelet has released its claim
            "containers": [container],
            "resourceClaims": [{"name": "pizza", "resourceClaimName": claim}],
        },
    }
