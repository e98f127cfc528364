"""The configuration of kubelets, by their configz: what stands in the way of drivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from dra_kit.client.api import Client
from dra_kit.errors import Forbidden, KubeError
from dra_kit.operation.checks.finding import Finding, fail, ok, warn

_WHAT: Final = "kubelet configuration"


async def check_kubelets(client: Client, nodes: Sequence[str]) -> list[Finding]:
    """Check the kubelets of some nodes; who may not ask the first may ask none.

    Args:
        client: of the API server, which asks the kubelets.
        nodes: names of their Node objects.
    """
    found: list[Finding] = []
    for node in nodes:
        try:
            answer = await client.get_path(f"/api/v1/nodes/{quote(node, safe='')}/proxy/configz")
        except Forbidden:
            remedy = "run this as somebody who may get nodes/proxy, or look for cpuManagerPolicy in the kubelet's file"
            return [*found, warn(_WHAT, f"that of node {node} may not be read", remedy)]
        except KubeError as error:
            found.append(warn(_WHAT, f"that of node {node} cannot be read: {error}", "look at the kubelet"))
        else:
            found += kubelet_findings(node, answer.get("kubeletconfig") or {})
    return found


def kubelet_findings(node: str, config: Mapping[str, Any]) -> list[Finding]:
    """Return findings about a kubelet's configuration.

    Args:
        node: whose.
        config: a KubeletConfiguration.
    """
    found: list[Finding] = []
    gates = config.get("featureGates") or {}
    if gates.get("DynamicResourceAllocation") is False:
        found.append(
            fail(_WHAT, f"node {node} has DynamicResourceAllocation=false", "remove that from its featureGates")
        )
    policy = config.get("cpuManagerPolicy") or "none"
    if policy == "static":
        found.append(
            warn(
                _WHAT, f"node {node} has cpuManagerPolicy: static",
                "a driver that gives CPUs to containers does not go with it: the kubelet gives the same ones away; "
                "others are not concerned",
            )
        )  # fmt: skip
    if gates.get("KubeletPodResourcesDynamicResources") is False:
        found.append(
            warn(
                _WHAT, f"node {node} has KubeletPodResourcesDynamicResources=false",
                "dra-kit who and exporters do not learn there which container has a device; remove it",
            )
        )  # fmt: skip
    return found or [ok(_WHAT, f"node {node}: cpuManagerPolicy {policy}")]
