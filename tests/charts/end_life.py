"""The end of a driver whose chart says ``node.decommission``, played once in the sandbox: by its service account."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import dra_kit as dra
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import DEVICE_CLASSES, NAMESPACES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.errors import KubeletError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.decommission import decommission_agent
from dra_kit.node.removal_confirmation import PodName, RemovalConfirmation
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.directory import write_kubeconfig
from dra_kit.sandbox.drivers.accounts import RoleAccounts, create_accounts
from dra_kit.sandbox.drivers.node import SandboxNode
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from tests.charts.life import CLASS, INSTALLED, Order, claim_object, pod_object, until, until_event
from tests.charts.rendering import DRIVER, NAMESPACE, RELEASE, Manifests
from tests.charts.rights import Audit

ACCOUNT = f"{RELEASE}-node"


class Heat(dra.Effect[None], id="heat"):
    """What does not hold any more at the end, and cannot be had again."""

    oven: str

    def keys(self) -> list[str]:
        return [self.oven]

    def apply(self, previous: None) -> None:
        if self.hardware.is_cold:
            raise dra.PermanentError("the wood is used up")

    def holds(self, outcome: None) -> bool:
        return not self.hardware.is_cold

    def revert(self, outcome: None) -> None:
        pass


class Hardware:
    is_cold = False


class Oven(dra.DeviceProvider):
    def discover(self) -> Any:
        yield [dra.Device(name="pizza-0")]


class Baker(dra.Preparer[Order]):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Order]) -> dra.Prepared:
        await device.ensure(Heat(oven="left"))
        ready = dra.Condition(type="Ready", status="True", reason="Baked")
        return dra.Prepared(env={"SERVED": device.name}, status=dra.DeviceStatus(conditions=[ready]))


async def play_end(manifests: Manifests) -> Audit:
    """Run a pod, remove the driver while the pod runs, and delete the pod during the removal."""
    audit, hardware = Audit(), Hardware()
    audit.follow(ACCOUNT)
    driver = dra.Driver(DRIVER, provider=Oven(), preparer=Baker(), effects=[Heat], hardware=lambda _: hardware)
    sandbox = Sandbox(SandboxDriver((driver,)), SandboxSettings(time_scale=60))
    sandbox.control_plane.server.api.rbac.audit = audit
    async with sandbox:
        await sandbox.client.create(DEVICE_CLASSES, CLASS)
        await sandbox.client.create(RESOURCE_CLAIMS, claim_object("lunch", {"burn": False}))
        await sandbox.client.create(PODS, pod_object("guest", "lunch", "sleep", "600"))
        await until(lambda: bool(_lunch(sandbox).get("status", {}).get("devices")))
        [node] = sandbox.nodes
        await sandbox.control().on(node).stop()
        lunch = _lunch(sandbox)
        status = {name: value for name, value in lunch["status"].items() if name != "devices"}
        await sandbox.client.update(RESOURCE_CLAIMS, {**lunch, "status": status}, subresource="status")
        hardware.is_cold = True
        # the kubelet deletes the slices of a driver that has gone, in its own time: these are of one that has not yet
        await until(lambda: not sandbox.informers.objects(RESOURCE_SLICES))
        pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node.name, "pool": pool, "devices": [{"name": "pizza-0"}]}
        await sandbox.client.create(RESOURCE_SLICES, {"metadata": {"name": "left"}, "spec": spec})
        await _decommission(sandbox, node, manifests, driver)
    return audit


async def _decommission(
    sandbox: Sandbox, node: SandboxNode, manifests: Manifests, driver: dra.Driver[Any, Any]
) -> None:
    server = sandbox.control_plane.server
    await sandbox.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    objects = [item for item in manifests.objects if item["kind"] in INSTALLED]
    await create_accounts(
        RoleAccounts(namespace=NAMESPACE, node=ACCOUNT, controller="", webhook="", objects=objects),
        server, sandbox.client,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kubeconfig"
        with write_kubeconfig(path, server.kubeconfig(server.token(NAMESPACE, ACCOUNT, node=node.name))):
            settings = replace(node._settings(None), kubeconfig=path)
            client = Client(await load_credentials(path), user_agent="tests/1")
            confirmation = RemovalConfirmation(client, PodName(NAMESPACE, "pizza-node-x"))
            agent = await decommission_agent(DRIVER, settings, driver, keep_running=True, confirmation=confirmation)
    task = asyncio.create_task(agent.run())
    try:
        lunch = _lunch(sandbox)["metadata"]
        # what its record says is written where it is missing
        await until(lambda: bool(_lunch(sandbox).get("status", {}).get("devices")))
        await until(lambda: node.kubelet.plugins.connected(DRIVER))
        await _fail_to_prepare(node, ClaimReference("default", "lunch", lunch["uid"]))
        await until_event(sandbox, "FailedPrepareDevices", repeated=True)
        await sandbox.client.delete(PODS, "guest", "default")
        await until(lambda: agent.nothing_left and not sandbox.informers.objects(RESOURCE_SLICES))
    finally:
        agent.stop()
        await task
        await client.close()


async def _fail_to_prepare(node: SandboxNode, claim: ClaimReference) -> None:
    """Prepare the claim, as a restarted kubelet does, until it has failed twice: the second Event is a repetition.

    While the driver examines the effect by itself, it answers what it knew before: the claim is prepared.
    """
    failures = 0
    async with asyncio.timeout(100):
        while failures < 2:
            try:
                await node.kubelet.plugins.prepare(DRIVER, [claim])
            except KubeletError:
                failures += 1
            else:
                await asyncio.sleep(0.05)


def _lunch(sandbox: Sandbox) -> Any:
    return sandbox.informers.objects(RESOURCE_CLAIMS).get(("default", "lunch"), {})
