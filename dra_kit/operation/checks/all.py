"""All checks that make sense where they are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from pydantic import BaseModel

from dra_kit import __version__
from dra_kit.author.driver import Driver
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import NODES
from dra_kit.client.server_version import ServerFeatures
from dra_kit.errors import KubeError
from dra_kit.operation.checks.cri import check_runtime
from dra_kit.operation.checks.driver import check_driver
from dra_kit.operation.checks.finding import Finding, has_failed, warn
from dra_kit.operation.checks.gates import check_gates
from dra_kit.operation.checks.kubelet import check_kubelets
from dra_kit.operation.checks.needed import Account, Driven, needed
from dra_kit.operation.checks.node import node_findings
from dra_kit.operation.checks.rights import check_rights
from dra_kit.operation.checks.runtime import containerd_findings, is_of_sandbox, runtime_findings
from dra_kit.operation.checks.versions import check_server, kubelet_findings

_KUBELETS_ASKED = 5


class Wanted(Struct, frozen=True, kw_only=True):
    """What is to be checked.

    Attributes:
        driver: its name; None for no driver in particular.
        code: the driver itself; None where it is not at hand.
        settings: of its own, already filled; None where it has none, or they are not needed.
        account: what the account of the credentials is for.
        certificate: name of the Secret of a certificate that the webhook makes itself; empty where it is given one.
        nodes: names of the nodes whose kubelets are asked; none for the first few.
        kubelet_dir: the kubelet's root directory on this machine; None where it is no node.
        cdi_dir: where CDI files are on this machine.
        cri_socket: of this machine's container runtime; None for where it usually is.
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


async def findings(wanted: Wanted, credentials: Credentials | None, why: str = "") -> list[Finding]:
    """Return all findings, in the order in which people should read them.

    Args:
        wanted: what is to be checked.
        credentials: of a cluster; None where there are none.
        why: there are none.
    """
    found: list[Finding] = []
    if credentials is None:
        found.append(warn("API server", f"not asked: {why}", "give --kubeconfig"))
    else:
        async with Client(credentials, user_agent=f"dra-kit/{__version__} check") as client:
            found += await _of_cluster(client, wanted, credentials.namespace or "default")
    if wanted.kubelet_dir is not None:
        found += node_findings(wanted.kubelet_dir, wanted.cdi_dir, wanted.driver)
        # its own word where it can be asked, else its file
        found += await check_runtime(wanted.cri_socket, wanted.cdi_dir) or containerd_findings(wanted.cdi_dir)
    return found


async def _of_cluster(client: Client, wanted: Wanted, namespace: str) -> list[Finding]:
    server = await check_server(client)
    if has_failed([server]):
        return [server]  # nothing else would be answered, or mean anything
    features = ServerFeatures.from_version(await client.get_path("/version"))
    driven = Driven(
        name=wanted.driver or "",
        code=wanted.code,
        settings=wanted.settings,
        namespace=namespace,
        release=(features.major, features.minor),
        certificate=wanted.certificate,
    )
    found = [server, *await check_rights(client, wanted.account, driven)]
    nodes: list[Mapping[str, Any]] = []
    if wanted.account == "user":
        found.append(await check_gates(client, separate_counters=features.separate_counter_slices))
    if _may_read_nodes(wanted, driven):
        nodes, gap = await _nodes(client, wanted)
        found += gap if wanted.account == "user" else []  # a role's missing right is among the rights
    if nodes:
        found += [*kubelet_findings(nodes), *runtime_findings(nodes)]
    if wanted.account != "user":
        return found  # a role may ask nothing else, and should not: what is missing for that is no right to give it
    kubelets = [node["metadata"]["name"] for node in nodes if not is_of_sandbox(node)]
    found += await check_kubelets(client, kubelets if wanted.nodes else kubelets[:_KUBELETS_ASKED])
    if wanted.driver is not None:
        found += await check_driver(client, wanted.driver)
    return found


def _may_read_nodes(wanted: Wanted, driven: Driven) -> bool:
    """Whether a user asks, or a role that reads nodes for its own work."""
    verb = "get" if wanted.nodes else "list"
    return wanted.account == "user" or any(
        (right.verb, right.group, right.resource) == (verb, "", "nodes") for right in needed(wanted.account, driven)
    )


async def _nodes(client: Client, wanted: Wanted) -> tuple[list[Mapping[str, Any]], list[Finding]]:
    """Return nodes that may be read, and a finding where they may not."""
    try:
        if wanted.nodes:
            return [await client.get(NODES, name) for name in wanted.nodes], []
        return list((await client.list(NODES)).items), []
    except KubeError as error:
        return [], [warn("nodes", f"not known: {error}", "run this as somebody who may list nodes")]
