"""Who has which device on this node, without the API server: by its drivers, its kubelet and its CDI files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.errors import DraKitError, Unavailable
from dra_kit.kubelet.device_use import DeviceUse, with_users
from dra_kit.kubelet.pod_resources import ContainerDevice, device_use_of, list_container_devices, pod_resources_socket
from dra_kit.kubelet.sockets import operation_links
from dra_kit.node.operation_socket import WHO, ask
from dra_kit.operation.who.cdi_files import devices_in_files


class Found(Struct, frozen=True):
    """What a look has found.

    Attributes:
        uses: devices in use.
        gaps: what is not known and why, a line each.
        is_silent: a driver does not answer, so that more devices may be in use.
    """

    uses: Sequence[DeviceUse]
    gaps: Sequence[str] = ()
    is_silent: bool = False


def is_node(kubelet_dir: Path) -> bool:
    """Return whether there is something to ask: a driver of dra-kit, or the PodResources of the kubelet.

    Args:
        kubelet_dir: the kubelet's root directory.
    """
    return bool(operation_links(kubelet_dir)) or pod_resources_socket(kubelet_dir).is_socket()


async def on_node(kubelet_dir: Path, cdi_directories: Iterable[Path]) -> Found:
    """Ask all that is on this node.

    Args:
        kubelet_dir: the kubelet's root directory.
        cdi_directories: where runtimes look for CDI files.
    """
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
        for name, use in devices_in_files(cdi_directories).items()
        if name not in covered and use.claim_uid not in uids
    ]
    return Found(sorted(joined), gaps, is_silent)


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
        raise Unavailable(f"{link} tells of devices in another form: {error}", code="no-answer") from error
