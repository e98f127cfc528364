"""The API server's release and its kubelets'."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dra_kit.client.api import Client
from dra_kit.client.server_version import ServerFeatures, discover_release
from dra_kit.errors import ConfigurationError, KubeError
from dra_kit.kubernetes.release import NEWEST, OLDEST
from dra_kit.operation.checks.finding import Finding, fail, ok, warn


async def check_server(client: Client) -> Finding:
    """Check the API server: a release that is supported, and one that serves resource.k8s.io/v1."""
    what = "API server"
    try:
        features = await discover_release(client)
    except ConfigurationError as error:
        return fail(what, error.problem, error.remedy)
    except KubeError as error:
        return fail(what, str(error), "give the right --kubeconfig or --context, and look at the network")
    return server_finding(features)


def server_finding(features: ServerFeatures) -> Finding:
    """Return the finding about a release that serves resource.k8s.io/v1."""
    if (features.major, features.minor) > NEWEST:
        return warn(
            "API server", f"Kubernetes {features} is newer than this release of dra-kit knows ({NEWEST})",
            "fields that it adds are left alone; look for a newer dra-kit",
        )  # fmt: skip
    return ok("API server", f"Kubernetes {features}, resource.k8s.io/v1")


def kubelet_findings(nodes: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Check the kubelets of nodes; return one line for all that are well.

    Args:
        nodes: Node objects.
    """
    found: list[Finding] = []
    versions: dict[str, int] = {}
    for node in nodes:
        name, version = node["metadata"]["name"], node["status"]["nodeInfo"].get("kubeletVersion", "")
        number = _number(version.removeprefix("v"))
        if number < OLDEST:
            found.append(
                fail(
                    "kubelet", f"node {name} has kubelet {version}",
                    f"upgrade it to Kubernetes {OLDEST} or newer: an older one asks drivers in another way",
                )
            )  # fmt: skip
        else:
            versions[version] = versions.get(version, 0) + 1
    if versions:
        found.append(ok("kubelet", ", ".join(f"{count} x {version}" for version, count in sorted(versions.items()))))
    return found


def _number(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
