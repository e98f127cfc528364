"""Which container has which device, as reported by the kubelet's PodResources service on the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc.aio
from msgspec import Struct

from dra_kit.errors import Unavailable
from dra_kit.kubelet.device_use import DeviceUse
from dra_kit.kubelet.proto import podresources_v1_pb2 as pb
from dra_kit.kubelet.proto import podresources_v1_pb2_grpc as pb_grpc

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Maximum message size of the kubelet's own client (k8s.io/kubernetes, pkg/kubelet/apis/podresources/constants.go)."""


class ContainerDevice(Struct, frozen=True):
    """A device that the kubelet has assigned to a container.

    Attributes:
        namespace: of pod and claim.
        share: the share of a shared device; empty for none.
    """

    namespace: str
    pod: str
    container: str
    claim: str
    driver: str
    pool: str
    device: str
    share: str
    cdi_devices: tuple[str, ...]


def pod_resources_socket(kubelet_dir: Path) -> Path:
    """Return the path of the kubelet's PodResources socket."""
    return kubelet_dir / "pod-resources" / "kubelet.sock"


async def list_container_devices(socket: Path, *, timeout: float = 5.0) -> list[ContainerDevice]:
    """List the devices in use, from the kubelet.

    Raises:
        Unavailable: it does not respond.
    """
    # most processes of a driver never call this
    options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
    try:
        async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}", options=options) as channel:
            lister = pb_grpc.PodResourcesListerStub(channel)
            answer = await lister.List(pb.ListPodResourcesRequest(), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        raise Unavailable(
            f"the kubelet does not tell which containers have devices ({socket}: {error.code().name}); is it running, "
            "and may this user open the socket?",
            code="no-answer",
        ) from error
    return list(_devices(answer))


def _devices(answer: pb.ListPodResourcesResponse) -> Iterator[ContainerDevice]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for resource in container.dynamic_resources:
                for item in resource.claim_resources:
                    yield ContainerDevice(
                        namespace=pod.namespace,
                        pod=pod.name,
                        container=container.name,
                        claim=resource.claim_name,
                        driver=item.driver_name,
                        pool=item.pool_name,
                        device=item.device_name,
                        share=item.share_id,
                        cdi_devices=tuple(device.name for device in item.cdi_devices),
                    )


def device_use_of(held: ContainerDevice) -> DeviceUse:
    """Return the kubelet's report about a device as a row."""
    return DeviceUse(
        driver=held.driver,
        pool=held.pool,
        device=held.device,
        share=held.share,
        namespace=held.namespace,
        claim=held.claim,
        pod=held.pod,
        container=held.container,
    )
