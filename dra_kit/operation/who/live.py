"""Who has which device in a cluster, read from its API server."""

from __future__ import annotations

from typing import Any, Final

from dra_kit import __version__
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.errors import Forbidden
from dra_kit.operation.who.in_cluster import device_uses
from dra_kit.operation.who.on_node import Found

_CONSEQUENCES: Final = {
    PODS: "containers are not known",
    RESOURCE_SLICES: "nodes are known only where pods may be read",
}


async def in_cluster(credentials: Credentials, namespace: str | None = None) -> Found:
    """Read claims, pods and slices.

    Args:
        credentials: of the API server.
        namespace: whose claims; None for all.

    Raises:
        Forbidden: claims may not be listed; names the rule that is missing.
        KubeError: the server does not answer.
    """
    async with Client(credentials, user_agent=f"dra-kit/{__version__} who", timeout=60) as client:
        listed = await client.list(RESOURCE_CLAIMS, namespace)
        gaps: list[str] = []

        async def optional(resource: Resource, where: str | None) -> list[dict[str, Any]]:
            try:
                # what of a pod may be secret, its environment above all, is never kept
                keep = _reduced_pod if resource is PODS else _reduced_slice
                return list((await client.list(resource, where, keep=keep)).items)
            except Forbidden as error:
                gaps.append(f"{_CONSEQUENCES[resource]}: {error}")
                return []

        pods, slices = await optional(PODS, namespace), await optional(RESOURCE_SLICES, None)
    return Found(device_uses(listed.items, pods, slices), gaps)


def _reduced_pod(pod: dict[str, Any]) -> dict[str, Any]:
    spec, status = pod["spec"], pod.get("status") or {}
    fields = ("name", "resources", "restartPolicy")
    lists = {
        key: [{field: item[field] for field in fields if field in item} for item in spec.get(key) or ()]
        for key in ("initContainers", "containers")
    }
    return {
        "metadata": {key: pod["metadata"].get(key, "") for key in ("namespace", "name", "uid")},
        "spec": {"nodeName": spec.get("nodeName"), "resourceClaims": spec.get("resourceClaims"), **lists},
        "status": {key: status.get(key) for key in ("phase", "resourceClaimStatuses", "extendedResourceClaimStatus")},
    }


def _reduced_slice(item: dict[str, Any]) -> dict[str, Any]:
    spec = item["spec"]
    return {"spec": {key: spec.get(key) for key in ("driver", "pool", "nodeName")}}
