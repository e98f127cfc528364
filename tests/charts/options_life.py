"""What each option of the chart that gives rights is for, done by the accounts of a release with that option alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dra_kit as dra
from dra_kit.admission.certificates import AuthorityTrust, SelfManagedCertificate, SelfManagedSettings, delete_bindings
from dra_kit.apiserver.authorization import AuthorizationAttributes
from dra_kit.author.driver import effect_rights, node_rights, rbac_values
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.events import EventRecorder
from dra_kit.client.resources import DEVICE_TAINT_RULES, NAMESPACES, RESOURCE_SLICES, SECRETS
from dra_kit.controller.binding import DeviceBinding
from dra_kit.diagnosis.drain import DrainQuery, wait_drained
from dra_kit.node.context import ClusterFacts, DeclaredReads
from dra_kit.node.effects.cluster_objects import ClusterObjects
from dra_kit.node.followers import NodeFollower, watched_object_follower
from dra_kit.sandbox.drivers.accounts import RoleAccounts, create_accounts
from tests.charts.clients import serving
from tests.charts.rendering import NAMESPACE, Manifests
from tests.charts.rights import Audit, Right
from tests.unit.controller.cluster import DRIVER, allocate, conditions_of, following, made_claim, running
from tests.unit.controller.test_pools import Warehouse, disks, pool
from tests.unit.controller.test_pools import part as pools_part
from tests.unit.controller.test_taint_rules import Recall, rule
from tests.unit.controller.test_taint_rules import part as taints_part

_NODE = "node-1"
_WATCHED = dra.WatchedObject(group="scheduling.k8s.io", version="v1", plural="priorityclasses")
_INSTALLED = {
    "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Secret",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """What work is done in.

    Attributes:
        admin: may do everything.
        client: of the account that works.
        credentials: of the same.
        name: of the release.
        asked: what the account has asked for until now.
    """

    admin: Client
    client: Client
    credentials: Credentials
    name: str
    asked: Mapping[AuthorizationAttributes, bool]

    async def until(self, resource: Any, check: Callable[[Sequence[Any]], bool]) -> None:
        """Wait for what the API server has."""
        async with asyncio.timeout(60):
            while not check((await self.admin.list(resource)).items):  # noqa: ASYNC110 - it sets no Event
                await asyncio.sleep(0.02)


class Menu(dra.ClusterObject, id="menu", api_version="v1", kind="ConfigMap", plural="configmaps"):
    """An object that an effect of the driver makes, in whatever namespace the claim is."""

    def body(self) -> dict[str, Any]:
        return {"data": {"dish": "pizza"}}


class Recipe(Menu, id="recipe", api_version="v1", kind="ConfigMap", plural="configmaps"):
    """The same in one namespace."""

    @classmethod
    def namespaces(cls, settings: Any) -> tuple[str, ...]:
        return ("default",)


async def pools(world: World) -> None:
    """Publish devices of no node, other ones, none."""
    warehouse = Warehouse(pool())
    async with running(pools_part(world.client, warehouse, f"{world.name}-controller")):
        await world.until(RESOURCE_SLICES, lambda found: len(found) == 1)
        warehouse.pools = [pool(devices=disks("disk-0", "disk-1"))]
        warehouse.context.rescan()
        await world.until(RESOURCE_SLICES, lambda found: [len(item["spec"]["devices"]) for item in found] == [2])
        warehouse.pools = []
        warehouse.context.rescan()
        await world.until(RESOURCE_SLICES, lambda found: not found)


class Crane(dra.DeviceBinder):
    def bind(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        """It is attached at once."""


async def binding(world: World) -> None:
    """Say of an allocated device that it is attached."""
    await made_claim(world.admin, unsorted=True)
    recorder = EventRecorder(world.client, controller=DRIVER, instance="me")
    async with following(world.client) as follower:
        part = DeviceBinding(DRIVER, Crane(), world.client, follower, recorder, retry=(0.02, 0.05))
        async with running(part), asyncio.timeout(60):
            await allocate(world.admin)
            while not await conditions_of(world.admin):  # noqa: ASYNC110 - what the server has sets no Event
                await asyncio.sleep(0.02)


async def taints(world: World) -> None:
    """Make a rule, change it, take it away."""
    recall = Recall(rule("a"))
    async with running(taints_part(world.client, recall, f"{world.name}-controller")):
        recall.rules_now = [rule("a", device="disk-1")]
        recall.context.rescan()
        await world.until(DEVICE_TAINT_RULES, lambda found: [_device(item) for item in found] == ["disk-1"])
        recall.rules_now = []
        recall.context.rescan()
        await world.until(DEVICE_TAINT_RULES, lambda found: not found)


def _device(taint_rule: Any) -> str:
    return str(taint_rule["spec"]["deviceSelector"]["device"])


async def certificate(world: World) -> None:
    """Create one, and create it again after it was deleted."""
    name = f"{world.name}-webhook"
    certificates = SelfManagedCertificate(world.client, SelfManagedSettings(namespace=NAMESPACE, service=name))
    await certificates.look()
    await world.admin.delete(SECRETS, f"{name}-self-made", NAMESPACE)
    await certificates.look()


async def trust(world: World) -> None:
    """Establish trust in the certificate, also after it was deleted; then give up all rights."""
    place = SelfManagedSettings(namespace=NAMESPACE, service=f"{world.name}-webhook")
    await world.admin.delete(SECRETS, place.secret, NAMESPACE)
    await AuthorityTrust(world.client, place, f"opaque-config.{world.name}.example").establish()
    await delete_bindings(world.client, f"{world.name}-webhook-certificate", NAMESPACE)


async def guard(world: World) -> None:
    """Ask who holds devices."""
    query = DrainQuery(driver=DRIVER, until_removed=False, may_be_unknown=True)
    await wait_drained(world.credentials, query, changed=lambda _: None)


async def _objects(world: World, kind: type[Menu]) -> ClusterObjects:
    facts = ClusterFacts(world.client, _NODE, lambda _: None)
    keeper = ClusterObjects(world.client, DRIVER, facts)
    effect = kind(claim_uid="6c1a0a52-52f1-4bb0-9a93-3f1c2f4f6d10", namespace="default")
    await keeper.apply(effect.address(), effect.body())
    await keeper.apply(effect.address(), effect.body())
    await keeper.delete(effect.address())
    return keeper


async def objects(world: World) -> None:
    """Make an object for a claim, and delete it."""
    await _objects(world, Menu)


async def recipes(world: World) -> None:
    """The same in one namespace, in which those without a record are looked for."""
    keeper = await _objects(world, Recipe)
    assert await keeper.found(Recipe, "default") == []


async def reads(world: World) -> None:
    """Read declared objects as the code of a driver does."""
    api = DeclaredReads(READER, None, world.client, asyncio.get_running_loop())
    assert await api.get("v1", "configmaps", "menu", "default") is None
    assert await api.list("v1", "configmaps", "default") == []
    assert await api.get("v1", "secrets", "key", "default") is None


async def watched(world: World) -> None:
    """Follow the object that has the node's name."""
    known = asyncio.Event()
    follower = watched_object_follower(world.client, _WATCHED, lambda: dra.NodeInfo(_NODE), known.set)
    task = asyncio.create_task(follower.follow())
    try:
        async with asyncio.timeout(60):
            await known.wait()
            while all(one.verb != "watch" for one in world.asked):  # noqa: ASYNC110 - the audit has no notification
                await asyncio.sleep(0.02)
    finally:
        task.cancel()


class _Nothing(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield []


class _Waiter(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared()


FOLLOWER = dra.Driver(DRIVER, provider=_Nothing(), preparer=_Waiter(), follow_node=True)
READER = dra.Driver(
    DRIVER,
    provider=_Nothing(),
    preparer=_Waiter(),
    reads=[
        dra.Reads("v1", "configmaps", namespace="default"),
        dra.Reads("v1", "secrets", namespace="default", names=["key"]),
    ],
)


async def follow(world: World) -> None:
    """Follow the labels of the Node."""
    async with running(NodeFollower(world.client, _NODE, lambda _: None)), asyncio.timeout(60):
        while all(one.verb != "watch" for one in world.asked):  # noqa: ASYNC110 - the audit has no notification
            await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Option:
    """One that gives rights.

    Attributes:
        role: that gets them.
        work: what they are for.
        given: the values that choose it.
        beside: roles that get rights by the same values, and the option that these rights are of.
    """

    role: str
    work: Callable[[World], Awaitable[None]]
    given: Mapping[str, Any]
    beside: Mapping[str, str] = field(default_factory=dict)

    def account(self, name: str) -> str:
        """The account of the role, in a release with this name."""
        return f"{name}-{self.role}"

    def values(self, name: str) -> dict[str, Any]:
        """Of a release of this name with nothing but the option."""
        image = {"repository": "images.example/disk-driver", "tag": "1"}
        plain = {"driverName": DRIVER, "target": "disks:driver", "image": image, "drainGuard": {"enabled": False}}
        return {**plain, "fullnameOverride": name, **self.given}


OPTIONS: Mapping[str, Option] = {
    "pools": Option("controller", pools, {"controller": {"clusterPools": True}}),
    "binding": Option("controller", binding, {"controller": {"binding": True}}),
    "taints": Option("controller", taints, {"controller": {"taintRules": True}}),
    "objects": Option("node", objects, {"node": rbac_values(effect_rights([Menu], None))}),
    "recipes": Option("node", recipes, {"node": rbac_values(effect_rights([Recipe], None))}),
    "reads": Option("node", reads, {"node": rbac_values(node_rights(READER, None))}),
    "follow": Option("node", follow, {"node": rbac_values(node_rights(FOLLOWER, None))}),
    "watched": Option("node", watched, {"node": {"extraRules": _WATCHED.rules()}}),
    "certificate": Option(
        "webhook", certificate, {"webhook": {"certificate": {"selfMade": True}}}, {"webhook-certificate": "trust"}
    ),
    "trust": Option(
        "webhook-certificate",
        trust,
        {"driverName": "trust.example", "webhook": {"certificate": {"selfMade": True}}},
        {"webhook": "certificate"},
    ),
    "guard": Option("drain-guard", guard, {"drainGuard": {"enabled": True}}),
}
_OBJECTS: list[Right] = [("", "configmaps", verb) for verb in ("get", "create", "patch", "delete")]
_OWNER: Right = ("rbac.authorization.k8s.io", "clusterroles", "get")
_SECRET: list[Right] = [("", "secrets", verb) for verb in ("get", "update", "create", "patch")]
ALLOWED: Mapping[str, list[Right]] = {
    "pools": [*(("resource.k8s.io", "resourceslices", verb) for verb in ("watch", "create", "update")), _OWNER],
    "binding": [
        ("resource.k8s.io", "resourceclaims", "get"),
        *(("resource.k8s.io", "resourceclaims/status", verb) for verb in ("patch", "update")),
        *(("resource.k8s.io", "resourceclaims/driver", f"arbitrary-node:{verb}") for verb in ("patch", "update")),
    ],
    "taints": [
        *(("resource.k8s.io", "devicetaintrules", verb) for verb in ("list", "watch", "create", "update", "delete")),
        _OWNER,
    ],
    "objects": _OBJECTS,
    "recipes": [*_OBJECTS, ("", "configmaps", "list")],
    "reads": [("", "configmaps", "get"), ("", "configmaps", "list"), ("", "secrets", "get")],
    "follow": [("", "nodes", "list"), ("", "nodes", "watch")],
    "watched": [("scheduling.k8s.io", "priorityclasses", verb) for verb in ("list", "watch")],
    "certificate": _SECRET,
    "trust": [
        *_SECRET,
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "get"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "patch"),
        ("rbac.authorization.k8s.io", "rolebindings", "delete"),
        ("rbac.authorization.k8s.io", "clusterrolebindings", "delete"),
    ],
    "guard": [("resource.k8s.io", "resourceclaims", "list")],
}
"""What each option adds to the rights of its role; it adds none to those of the others."""


async def play_options(manifests: Mapping[str, Manifests]) -> Audit:
    """Do the work of each option with the rights of its own release, at one API server."""
    audit = Audit()
    async with serving(_NODE) as served:
        server, admin = served.server, served.admin
        await admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        server.api.rbac.audit = audit
        for name, option in OPTIONS.items():
            account = option.account(name)
            audit.follow(account)
            objects = [item for item in manifests[name].objects if item["kind"] in _INSTALLED]
            accounts = RoleAccounts(namespace=NAMESPACE, node="", controller="", webhook="", objects=objects)
            await create_accounts(accounts, server, admin)
            token = server.token(NAMESPACE, account, node=_NODE if option.role == "node" else "")
            credentials = Credentials(server.connection(token))
            world = World(admin, await served.client(token), credentials, name, audit.asked[account])
            await option.work(world)
    return audit
