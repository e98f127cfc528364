"""Who has which device, from claims and pods as the API server has them: for drivers in any language; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.kubelet.device_use import DeviceUse
from dra_kit.kubernetes.resource.config import base_request
from dra_kit.kubernetes.resource.objects import claim_uses, containers, init_containers, is_sidecar, phase, pod_claims
from dra_kit.kubernetes.values.json import ObjectView

_ENDED: Final = frozenset({"Succeeded", "Failed"})


class _PodUse(Struct, frozen=True):
    """What a pod does with one claim.

    Attributes:
        node: where it is.
        ended: it has ended, and the claim is reserved for it for a moment longer.
        containers: those that use the claim, with the request that they name, empty for all.
    """

    node: str
    ended: bool
    containers: list[tuple[str, str]] = field(default_factory=list)


_Uses: TypeAlias = Mapping[tuple[str, str, str], _PodUse]


def device_uses(
    claims: Iterable[ObjectView], pods: Iterable[ObjectView], slices: Iterable[ObjectView] = ()
) -> list[DeviceUse]:
    """Return all devices that are allocated, each with the containers of pods that have not ended.

    A device that no container gets is returned with the pods that its claim is reserved for, or without any.

    Args:
        claims: ResourceClaims.
        pods: those that may be read; the others are known by name only, from what claims are reserved for.
        slices: ResourceSlices, which say on which node a pool is.
    """
    uses = _pod_uses(pods)
    nodes = {(item["spec"]["driver"], item["spec"]["pool"]["name"]): item["spec"].get("nodeName") for item in slices}
    return sorted(
        user
        for claim in claims
        for use in _allocated(claim)
        for user in _with_users(replace(use, node=nodes.get((use.driver, use.pool)) or ""), claim, uses)
    )


def _allocated(claim: ObjectView) -> Iterator[DeviceUse]:
    metadata, status = claim["metadata"], claim.get("status") or {}
    for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
        yield DeviceUse(
            driver=result["driver"],
            pool=result["pool"],
            device=result["device"],
            share=result.get("shareID") or "",
            request=base_request(result["request"]),
            namespace=metadata.get("namespace", ""),
            claim=metadata["name"],
            claim_uid=metadata.get("uid", ""),
        )


def _with_users(use: DeviceUse, claim: ObjectView, uses: _Uses) -> Iterator[DeviceUse]:
    is_used = False
    for consumer in (claim.get("status") or {}).get("reservedFor") or ():
        if consumer.get("resource") != "pods" or consumer.get("apiGroup"):
            continue
        pod = uses.get((use.namespace, use.claim, consumer["name"]), _PodUse(use.node, ended=False))
        if pod.ended:
            continue
        getting = dict.fromkeys(name for name, request in pod.containers if request in {"", use.request})
        for container in getting or ("",):
            is_used = True
            yield replace(use, pod=consumer["name"], container=container, node=pod.node or use.node)
    if not is_used:
        yield use


def _pod_uses(pods: Iterable[ObjectView]) -> _Uses:
    """Return the uses of pods by namespace, claim and pod."""
    found: dict[tuple[str, str, str], _PodUse] = {}
    for pod in pods:
        metadata = pod["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        ended = phase(pod) in _ENDED
        for claim in pod_claims(pod):
            if claim.claim:
                found.setdefault((namespace, claim.claim, name), _PodUse(pod["spec"].get("nodeName") or "", ended))
        for container in _that_run(pod):
            for used in claim_uses(pod, container):
                if use := found.get((namespace, used.claim, name)):
                    use.containers.append((container["name"], used.request))
    return found


def _that_run(pod: ObjectView) -> list[ObjectView]:
    """Return containers and sidecars, as PodResources of the kubelet; init containers while the pod has not begun."""
    begun = phase(pod) != "Pending"
    return [item for item in init_containers(pod) if is_sidecar(item) or not begun] + containers(pod)
