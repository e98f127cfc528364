"""Run the checks of ``dra-kit check``; list the rights that each role needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel

from dra_kit import __version__
from dra_kit.author.driver import DeclaredRight, Driver, node_rights, release_rights
from dra_kit.client.api import Client, server_version
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import NODES, Resource
from dra_kit.diagnosis.cluster_checks import (
    CheckResult,
    check_driver,
    check_gates,
    check_kubelets,
    check_server,
    fail,
    has_failed,
    kubelet_version_findings,
    ok,
    warn,
)
from dra_kit.diagnosis.node_checks import (
    NRI_SOCKET,
    check_runtime,
    containerd_findings,
    is_of_sandbox,
    node_findings,
    nri_finding,
    runtime_findings,
)
from dra_kit.errors import KubeError
from dra_kit.slices.planning import separates_counters

Account: TypeAlias = Literal["node", "decommission", "controller", "webhook", "user"]
_RESOURCE: Final = "resource.k8s.io"
_OWN_ENTRIES: Final = (1, 36)
"""Since this release, writing status.devices also needs a right for the driver's name (KEP-4817)."""


class RequiredRight(Struct, frozen=True):
    """A required right, in terms of RBAC rules.

    Attributes:
        verb: such as ``get``.
        group: API group; empty for the core group.
        resource: may include a subresource: ``resourceclaims/status``.
        needed_for: the purpose.
        name: the name of the only object; empty for all.
        namespace: the only namespace; empty for all.
    """

    verb: str
    group: str
    resource: str
    needed_for: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        text = f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"
        return f"{text}{f' {self.name}' if self.name else ''}{f' in {self.namespace}' if self.namespace else ''}"


class DriverAccount(Struct, frozen=True, kw_only=True):
    """The driver that uses an account.

    Attributes:
        name: its name; empty if unknown.
        code: the driver itself; None checks only the rights that every driver needs.
        settings: its own settings, already filled.
        namespace: the namespace of its processes.
        release: major and minor release of the API server.
        certificate: the Secret of a certificate that the webhook creates itself; empty without one.
    """

    name: str = ""
    code: Driver[Any, Any] | None = None
    settings: Any = None
    namespace: str = "default"
    release: tuple[int, int] = _OWN_ENTRIES
    certificate: str = ""


def required_rights(account: Account, driven: DriverAccount) -> list[RequiredRight]:
    """Return the rights that an account needs, without duplicates, grouped by purpose."""
    of = {
        "node": _of_node,
        "decommission": _of_decommission,
        "controller": _of_controller,
        "webhook": _of_webhook,
        "user": _of_user,
    }
    first: dict[RequiredRight, RequiredRight] = {}
    for right in of[account](driven):
        first.setdefault(replace(right, needed_for=""), right)
    return list(first.values())


def _rights(
    group: str, resource: str, verbs: str, needed_for: str, *, name: str = "", namespace: str = ""
) -> list[RequiredRight]:
    return [RequiredRight(verb, group, resource, needed_for, name, namespace) for verb in verbs.split()]


def _of_node(driven: DriverAccount) -> Iterator[RequiredRight]:
    yield from _rights(_RESOURCE, "resourceclaims", "get", "preparing claims")
    yield from _rights(_RESOURCE, "resourceslices", "list watch create update delete", "publishing devices")
    yield from _rights("", "nodes", "get", "publishing devices")
    yield from _status("associated-node", "the status of devices", driven)
    yield from _events()
    if driven.code is not None:
        yield from _declared(node_rights(driven.code, driven.settings))


def _of_decommission(driven: DriverAccount) -> Iterator[RequiredRight]:
    yield from _rights(_RESOURCE, "resourceclaims", "get", "finding claims that are over")
    yield from _rights(_RESOURCE, "resourceslices", "list delete", "withdrawing devices")
    yield from _rights("", "nodes", "get", "withdrawing devices")
    yield from _status("associated-node", "the status of devices", driven)
    yield from _events()
    yield from _rights("", "pods/status", "patch", "confirming that nothing is left", namespace=driven.namespace)
    if driven.code is not None:
        yield from _declared(release_rights(driven.code, driven.settings))


def _of_controller(driven: DriverAccount) -> Iterator[RequiredRight]:
    yield from _rights(_RESOURCE, "resourceclaims", "list watch", "following claims")
    yield from _events()
    yield from _rights(_RESOURCE, "resourceslices", "list delete", "removing slices of nodes that are gone")
    yield from _rights("", "nodes", "list", "removing slices of nodes that are gone")
    if driven.name:
        # not create: the chart creates it
        election, lease = "the election of the active replica", f"{driven.name}-controller"
        group, namespace = "coordination.k8s.io", driven.namespace
        yield from _rights(group, "leases", "get update", election, name=lease, namespace=namespace)
    code = driven.code
    if code is None:
        return
    if code.cluster_provider is not None:
        what = f"cluster provider {type(code.cluster_provider).__name__}"
        yield from _rights(_RESOURCE, "resourceslices", "list watch create update delete", what)
    if code.binder is not None:
        what = f"binder {type(code.binder).__name__}"
        yield from _rights(_RESOURCE, "resourceclaims", "get", what)
        yield from _status("arbitrary-node", what, driven)
    if code.taint_rules is not None:
        what = f"taint rules {type(code.taint_rules).__name__}"
        yield from _rights(_RESOURCE, "devicetaintrules", "list watch create update delete", what)


def _of_webhook(driven: DriverAccount) -> Iterator[RequiredRight]:
    if not driven.certificate:
        return
    # never its ValidatingWebhookConfiguration: changing that allows reading all objects of the cluster
    verbs, what = "get update create patch", "its own certificate"
    yield from _rights("", "secrets", verbs, what, name=driven.certificate, namespace=driven.namespace)


def _of_user(driven: DriverAccount) -> Iterator[RequiredRight]:
    del driven
    yield from _rights(_RESOURCE, "resourceslices", "list", "dra-kit explain")
    yield from _rights(_RESOURCE, "deviceclasses", "list", "dra-kit explain")
    yield from _rights(_RESOURCE, "resourceclaims", "list", "dra-kit explain and who")
    yield from _rights("", "pods", "list", "dra-kit explain and who")
    yield from _rights("", "nodes", "list", "dra-kit explain and check")


def _events() -> list[RequiredRight]:
    return _rights("events.k8s.io", "events", "create patch", "Events")


def _status(nodes: str, what: str, driven: DriverAccount) -> Iterator[RequiredRight]:
    """Yield the right to write a driver's entries of ``status.devices``."""
    yield from _rights(_RESOURCE, "resourceclaims/status", "patch update", what)
    if driven.name and driven.release >= _OWN_ENTRIES:
        yield from _rights(_RESOURCE, "resourceclaims/driver", f"{nodes}:patch {nodes}:update", what, name=driven.name)


def _declared(rights: Iterable[DeclaredRight]) -> Iterator[RequiredRight]:
    for right in rights:
        for rule in right.rules:
            kinds = product(rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames") or ("",))
            for group, resource, verb, name in kinds:
                yield RequiredRight(verb, group, resource, right.needed_for, name, right.namespace or "")


_KUBELETS_ASKED = 5


class CheckOptions(Struct, frozen=True, kw_only=True):
    """What to check.

    Attributes:
        driver: the name of the driver; None for no particular driver.
        code: the driver itself; None if its code is not available.
        settings: the driver's own settings, already filled; None if it has none, or they are not needed.
        account: what the account of the credentials is used for.
        certificate: the name of the Secret with the certificate that the webhook creates itself; empty if the webhook
            gets a certificate from elsewhere.
        nodes: names of the nodes whose kubelets are queried; empty for the first few nodes.
        kubelet_dir: the kubelet's root directory on this machine; None if this machine is not a node.
        cdi_dir: the directory of CDI files on this machine.
        cri_socket: the socket of this machine's container runtime; None for the usual one.
        nri_socket: its socket for NRI; None for the usual one, which is checked if ``code`` has pod hooks.
    """

    driver: str | None = None
    code: Driver[Any, Any] | None = None
    settings: BaseModel | None = None
    account: Account = "user"
    certificate: str = ""
    nodes: Sequence[str] = ()
    kubelet_dir: Path | None = None
    cdi_dir: Path = Path("/var/run/cdi")
    cri_socket: Path | None = None
    nri_socket: Path | None = None


async def run_checks(wanted: CheckOptions, credentials: Credentials | None, why: str = "") -> list[CheckResult]:
    """Run all checks; return the results in reading order. ``why`` says why credentials are missing."""
    found: list[CheckResult] = []
    if credentials is None:
        found.append(warn("API server", f"not checked: {why}", "use --kubeconfig"))
    else:
        async with Client(credentials, user_agent=f"dra-kit/{__version__} check") as client:
            found += await _of_cluster(client, wanted, credentials.connection.namespace or "default")
    if wanted.kubelet_dir is not None:
        found += node_findings(wanted.kubelet_dir, wanted.cdi_dir, wanted.driver)
        # its own answer, or else its file
        found += await check_runtime(wanted.cri_socket, wanted.cdi_dir) or containerd_findings(wanted.cdi_dir)
        if wanted.nri_socket is not None or (wanted.code is not None and wanted.code.pod_hooks is not None):
            found.append(nri_finding(wanted.nri_socket or NRI_SOCKET))
    return found


async def _of_cluster(client: Client, wanted: CheckOptions, namespace: str) -> list[CheckResult]:
    server = await check_server(client)
    if has_failed([server]):
        return [server]  # further checks would fail or mean nothing
    version = server_version(await client.get_path("/version"))
    driven = DriverAccount(
        name=wanted.driver or "",
        code=wanted.code,
        settings=wanted.settings,
        namespace=namespace,
        release=version,
        certificate=wanted.certificate,
    )
    found = [server, *await check_rights(client, wanted.account, driven)]
    nodes: list[Mapping[str, Any]] = []
    if wanted.account == "user":
        found.append(await check_gates(client, separate_counters=separates_counters(version)))
    if _may_read_nodes(wanted, driven):
        nodes, gap = await _nodes(client, wanted)
        found += gap if wanted.account == "user" else []  # a role's missing right is among the rights
    if nodes:
        found += [*kubelet_version_findings(nodes), *runtime_findings(nodes)]
    if wanted.account != "user":
        return found  # a role's account should not have the rights that the other checks need
    kubelets = [node["metadata"]["name"] for node in nodes if not is_of_sandbox(node)]
    found += await check_kubelets(client, kubelets if wanted.nodes else kubelets[:_KUBELETS_ASKED])
    if wanted.driver is not None:
        found += await check_driver(client, wanted.driver)
    return found


def _may_read_nodes(wanted: CheckOptions, driven: DriverAccount) -> bool:
    """Return whether the account belongs to a user, or to a role that reads nodes."""
    verb = "get" if wanted.nodes else "list"
    return wanted.account == "user" or any(
        (right.verb, right.group, right.resource) == (verb, "", "nodes")
        for right in required_rights(wanted.account, driven)
    )


async def _nodes(client: Client, wanted: CheckOptions) -> tuple[list[Mapping[str, Any]], list[CheckResult]]:
    """Return the nodes, or a finding if they may not be read."""
    try:
        if wanted.nodes:
            return [await client.get(NODES, name) for name in wanted.nodes], []
        return list((await client.list(NODES)).items), []
    except KubeError as error:
        return [], [warn("nodes", f"not known: {error}", "run this with an account that may list nodes")]


_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
_SUBJECT_REVIEWS: Final = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)


async def check_rights(client: Client, account: Account, driven: DriverAccount) -> list[CheckResult]:
    """Return a result for each missing right, or one if none is missing."""
    rights = required_rights(account, driven)
    try:
        name = await _name(client)
        answers = await asyncio.gather(*(_may(client, right) for right in rights))
    except KubeError as error:
        return [warn("rights", f"not known: {error}", "check the API server")]
    missing = [right for right, may in zip(rights, answers, strict=True) if not may]
    if not missing:
        whose, but = "a user of dra-kit", ""
        if account != "user":
            whose = f"the {account}{f' of {driven.name}' if driven.name else ''}"
            but = "" if driven.code is not None else "; add a TARGET to check the rights that its code needs"
        return [ok("rights", f"{name} may do all that {whose} needs{but}")]
    make = warn if account == "user" else fail
    return [
        make("rights", f"{name} may not {right}, which {right.needed_for} needs", _remedy(account, right))
        for right in missing
    ]


_DECLARED: Final = ("policy", "Driver(", "effect", "cluster provider", "binder", "taint rules")


def _remedy(account: Account, right: RequiredRight) -> str:
    if account == "user":
        return "let a ClusterRole allow it"
    if right.needed_for.startswith(_DECLARED):
        return "install the chart with the values from dra-kit chart TARGET --values FILE"
    return "install the chart's roles, or that rule"


async def _name(client: Client) -> str:
    review = await _review(client, _SUBJECT_REVIEWS, {})
    return str(((review.get("status") or {}).get("userInfo") or {}).get("username") or "this account")


async def _may(client: Client, right: RequiredRight) -> bool:
    resource, _, subresource = right.resource.partition("/")
    given = {"subresource": subresource, "name": right.name, "namespace": right.namespace}
    attributes: dict[str, Any] = {"verb": right.verb, "group": right.group, "resource": resource}
    attributes |= {key: value for key, value in given.items() if value}
    review = await _review(client, _ACCESS_REVIEWS, {"spec": {"resourceAttributes": attributes}})
    return bool((review.get("status") or {}).get("allowed"))


async def _review(client: Client, resource: Resource, content: Mapping[str, Any]) -> Mapping[str, Any]:
    return await client.create(resource, {"apiVersion": resource.api_version, "kind": resource.kind, **content})


_COMMANDS: Final[Mapping[str, tuple[Account, int]]] = {
    "node": ("node", 1),
    "controller": ("controller", 1),
    "webhook": ("webhook", 1),
    "decommission": ("decommission", 2),
}
"""Commands of roles, with the account and the position of TARGET after the command."""


class RoleProcess(Struct, frozen=True):
    """The first process of a role's container; ``target`` is empty if options precede it."""

    role: Account
    target: str


def role_process(processes: Path = Path("/proc")) -> RoleProcess | None:
    """Return the role whose container this is; None if the first process is not a role."""
    try:
        words = (processes / "1" / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return None
    for number, word in enumerate(words[:3]):  # an interpreter may come before it
        if Path(word).name == "dra-kit" and number + 1 < len(words):
            command, options = words[number + 1], words[number + 2 :]
            if command in _COMMANDS:
                role, place = _COMMANDS[command]
                before = options[:place]
                named = len(before) == place and not any(option.startswith("-") for option in before)
                return RoleProcess(role, before[-1] if named else "")
    return None
