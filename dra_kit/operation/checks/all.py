"""All checks that make sense where they are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_kit import __version__
from dra_kit.errors import KubeError
from dra_kit.kube.client import Client
from dra_kit.kube.connection.credentials import Credentials
from dra_kit.kube.resources import NODES
from dra_kit.kube.versions import ServerFeatures
from dra_kit.operation.checks.driver import check_driver
from dra_kit.operation.checks.finding import Finding, has_failed, warn
from dra_kit.operation.checks.gates import check_gates
from dra_kit.operation.checks.kubelet import check_kubelet
from dra_kit.operation.checks.node import node_findings
from dra_kit.operation.checks.rights import Account, check_rights
from dra_kit.operation.checks.runtime import containerd_findings, runtime_findings
from dra_kit.operation.checks.versions import check_server, kubelet_findings

_KUBELETS_ASKED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be checked.

    Attributes:
        driver: its name; None for no driver in particular.
        account: what the account of the credentials is for.
        nodes: names of the nodes whose kubelets are asked; none for the first few.
        kubelet_dir: the kubelet's root directory on this machine; None where it is no node.
        cdi_dir: where CDI files are on this machine.
    """

    driver: str | None = None
    account: Account = "user"
    nodes: Sequence[str] = ()
    kubelet_dir: Path | None = None
    cdi_dir: Path = Path("/var/run/cdi")


async def findings(wanted: Wanted, credentials: Credentials | None, why: str = "") -> list[Finding]:
    """All findings, in the order in which people should read them.

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
            found += await _of_cluster(client, wanted)
    if wanted.kubelet_dir is not None:
        found += node_findings(wanted.kubelet_dir, wanted.cdi_dir, wanted.driver)
        found += containerd_findings(wanted.cdi_dir)
    return found


async def _of_cluster(client: Client, wanted: Wanted) -> list[Finding]:
    server = await check_server(client)
    if has_failed([server]):
        return [server]  # nothing else would be answered, or mean anything
    found = [server, *await check_rights(client, wanted.account)]
    features = ServerFeatures.from_version(await client.get_path("/version"))
    found.append(await check_gates(client, separate_counters=features.separate_counter_slices))
    nodes, gap = await _nodes(client, wanted)
    found += gap
    if nodes:
        found += [*kubelet_findings(nodes), *runtime_findings(nodes)]
    for node in nodes[:_KUBELETS_ASKED] if not wanted.nodes else nodes:
        found += await check_kubelet(client, node["metadata"]["name"])
    if wanted.driver is not None:
        found += await check_driver(client, wanted.driver)
    return found


async def _nodes(client: Client, wanted: Wanted) -> tuple[list[Mapping[str, Any]], list[Finding]]:
    """Nodes that may be read, and a finding where they may not."""
    try:
        if wanted.nodes:
            return [await client.get(NODES, name) for name in wanted.nodes], []
        return list((await client.list(NODES)).items), []
    except KubeError as error:
        return [], [warn("nodes", f"not known: {error}", "run this as somebody who may list nodes")]
