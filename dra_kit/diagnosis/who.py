"""Who has which device: hardware, claim, pod, container; from the cluster or on a node.

Drivers of dra-kit name their CDI devices by claim, request, pool and device
(:func:`dra_kit.kubelet.cdi.store.claim_device_name`); those of the Go helper and of its users begin with the claim's
UID.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit import __version__
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.errors import DraKitError, Forbidden, Unavailable
from dra_kit.kubelet.cdi.store import claim_kind
from dra_kit.kubelet.device_use import (
    ContainerDevice,
    DeviceUse,
    device_use_of,
    list_container_devices,
    pod_resources_socket,
    with_users,
)
from dra_kit.kubelet.sockets import operation_links
from dra_kit.kubernetes.resource.config import base_request
from dra_kit.kubernetes.resource.objects import (
    claim_uses,
    containers,
    init_containers,
    is_sidecar,
    is_terminal,
    phase,
    pod_claims,
)
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.node.operation_socket import WHO, ask
from dra_kit.text import align_columns, escape_unprintable


class _PodUse(Struct, frozen=True):
    """A pod's use of a claim: each container with the request that it names, empty for all requests."""

    node: str
    ended: bool
    containers: list[tuple[str, str]] = field(default_factory=list)


_Uses: TypeAlias = Mapping[tuple[str, str, str], _PodUse]


def device_uses(
    claims: Iterable[ObjectView], pods: Iterable[ObjectView], slices: Iterable[ObjectView] = ()
) -> list[DeviceUse]:
    """Return all allocated devices, each with the containers of pods that have not ended.

    A device that no container uses is returned with the pods that its claim is reserved for, if any.

    Args:
        claims: ResourceClaims.
        pods: the readable pods; claims contain only the names of others.
        slices: ResourceSlices, which contain the node of a pool.
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
        node, ended = pod["spec"].get("nodeName") or "", is_terminal(pod)
        for claim in pod_claims(pod):
            if claim.claim:
                found.setdefault((namespace, claim.claim, name), _PodUse(node, ended))
        for container in _that_run(pod):
            for used in claim_uses(pod, container):
                if use := found.get((namespace, used.claim, name)):
                    use.containers.append((container["name"], used.request))
    return found


def _that_run(pod: ObjectView) -> list[ObjectView]:
    """Return containers and sidecars, like PodResources of the kubelet; of pending pods also init containers."""
    begun = phase(pod) != "Pending"
    return [item for item in init_containers(pod) if is_sidecar(item) or not begun] + containers(pod)


_CLAIM_UID: Final = re.compile(r"(?:claim[-_])?(?P<uid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f])")
_BYTES_MAX: Final = 4 * 1024 * 1024


def uses_in_cdi_files(directories: Iterable[Path]) -> dict[str, DeviceUse]:
    """Return the devices of claims by qualified CDI name; ignore corrupt and unreadable files."""
    found: dict[str, DeviceUse] = {}
    for directory in directories:
        for spec in _specs(directory):
            kind = str(spec.get("kind", ""))
            for device in spec.get("devices") or ():
                name = str(device.get("name", "")) if isinstance(device, dict) else ""
                if (use := _device_use(kind, name)) is not None:
                    found[f"{kind}={name}"] = use
    return found


def _device_use(kind: str, name: str) -> DeviceUse | None:
    vendor = kind.rpartition("/")[0]
    driver = vendor.removeprefix("k8s.")
    if kind == claim_kind(driver):
        # request names have no '_', which replaces the slash in pool names
        uid, *rest = name.split(":")
        if len(rest) in {3, 4}:
            request, pool, device, *share = rest
            return DeviceUse(
                driver=driver,
                pool=pool.replace("_", "/"),
                device=device,
                share=share[0] if share else "",
                request=request.partition("_")[0],
                claim_uid=uid,
            )
    match = _CLAIM_UID.match(name)
    return DeviceUse(driver=driver, pool="", device=name, claim_uid=match["uid"]) if match else None


def _specs(directory: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError):
        for path in sorted(directory.glob("*.json")) + sorted(directory.glob("*.y*ml")):
            with suppress(OSError, ValueError, RecursionError):
                if path.name.startswith(".") or path.stat().st_size > _BYTES_MAX:
                    continue
                spec = _parsed(path)
                if isinstance(spec, dict) and isinstance(spec.get("devices"), list):
                    yield spec


def _parsed(path: Path) -> object:
    if path.suffix == ".json":
        return json.loads(path.read_bytes())
    try:
        return yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_CONSEQUENCES: Final = {
    PODS: "containers are not known",
    RESOURCE_SLICES: "nodes are known only where pods may be read",
}


async def in_cluster(credentials: Credentials, namespace: str | None = None) -> DeviceUsesOnNode:
    """Read claims, pods and slices of a namespace, or of all (None).

    Raises:
        Forbidden: claims may not be listed; names the missing rule.
        KubeError: the server does not answer.
    """
    async with Client(credentials, user_agent=f"dra-kit/{__version__} who", timeout=60) as client:
        listed = await client.list(RESOURCE_CLAIMS, namespace)
        gaps: list[str] = []

        async def optional(resource: Resource, where: str | None) -> list[dict[str, Any]]:
            try:
                # possible secrets of pods, such as environments, are never kept in memory
                keep = _reduced_pod if resource is PODS else _reduced_slice
                return list((await client.list(resource, where, keep=keep)).items)
            except Forbidden as error:
                gaps.append(f"{_CONSEQUENCES[resource]}: {error}")
                return []

        pods, slices = await optional(PODS, namespace), await optional(RESOURCE_SLICES, None)
    return DeviceUsesOnNode(device_uses(listed.items, pods, slices), gaps)


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


class DeviceUsesOnNode(Struct, frozen=True):
    """Devices in use, and what is unknown and why; more may be in use if a driver ``is_silent``."""

    uses: Sequence[DeviceUse]
    gaps: Sequence[str] = ()
    is_silent: bool = False


def is_node(kubelet_dir: Path) -> bool:
    """Return whether this machine has a driver of dra-kit, or the kubelet's PodResources."""
    return bool(operation_links(kubelet_dir)) or pod_resources_socket(kubelet_dir).is_socket()


async def on_node(kubelet_dir: Path, cdi_directories: Iterable[Path]) -> DeviceUsesOnNode:
    """Query all sources on this node."""
    gaps: list[str] = []
    answers = await asyncio.gather(*map(_of_driver, operation_links(kubelet_dir)), return_exceptions=True)
    uses: list[DeviceUse] = []
    nodes: set[str] = set()
    for answer in answers:
        if isinstance(answer, DraKitError):
            gaps.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            node, found = answer
            nodes.add(node)
            uses += found
    is_silent = bool(gaps)
    node = nodes.pop() if len(nodes) == 1 else ""
    held: list[ContainerDevice] = []
    try:
        held = await _held(kubelet_dir)
    except Unavailable as error:
        gaps.append(f"containers are not known: {error}")
    joined = with_users(uses, (replace(device_use_of(item), node=node) for item in held))
    covered = {name for item in held for name in item.cdi_devices}
    uids = {use.claim_uid for use in uses}
    joined += [
        replace(use, node=node)
        for name, use in uses_in_cdi_files(cdi_directories).items()
        if name not in covered and use.claim_uid not in uids
    ]
    return DeviceUsesOnNode(sorted(joined), gaps, is_silent)


async def _held(kubelet_dir: Path) -> list[ContainerDevice]:
    socket = pod_resources_socket(kubelet_dir)
    if not socket.is_socket():
        raise Unavailable(
            f"the kubelet's {socket} is not here; in a pod of the chart it is with node.podResources=true",
            code="no-answer",
        )
    return await list_container_devices(socket)


async def _of_driver(link: Path) -> tuple[str, list[DeviceUse]]:
    answer = await ask(link, WHO)
    try:
        return str(answer["node"]), [DeviceUse.from_json(item) for item in answer["devices"]]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"{link} returns devices in an unknown format: {error}", code="no-answer") from error


_HEADINGS: Final = ("DRIVER", "POOL", "DEVICE", "SHARE", "HARDWARE", "CLAIM", "POD", "CONTAINER")


def who_table(uses: Sequence[DeviceUse]) -> str:
    """Return the table of device uses, with a column for nodes if there are several."""
    several = len({use.node for use in uses}) > 1
    rows = [
        [
            *([use.node] if several else []),
            use.driver,
            use.pool,
            use.device,
            use.share,
            ",".join(use.hardware_ids),
            _named(use.namespace, use.claim) or (f"uid {use.claim_uid}" if use.claim_uid else ""),
            _named(use.namespace, use.pod),
            use.container,
        ]
        for use in uses
    ]
    return table([*(["NODE"] if several else []), *_HEADINGS], rows)


def _named(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if name else ""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows, whose cells are made printable here, as aligned columns; empty cells are ``-``."""
    cells = [[escape_unprintable(cell) or "-" for cell in row] for row in rows]
    return "\n".join(align_columns([headings, *cells], gap=3))
