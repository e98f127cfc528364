"""A kubelet's PodResources service that says what a test tells it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc.aio

from dra_kit.kubelet.device_use import ContainerDevice, pod_resources_socket
from dra_kit.kubelet.proto import podresources_v1_pb2 as pb
from dra_kit.kubelet.proto import podresources_v1_pb2_grpc as pb_grpc


@dataclass
class Kubelet(pb_grpc.PodResourcesListerServicer):
    held: Sequence[ContainerDevice] = ()
    asked: list[Any] = field(default_factory=list)

    async def List(self, request: Any, context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802
        self.asked.append(request)
        answer = pb.ListPodResourcesResponse()
        for item in self.held:
            pod = answer.pod_resources.add(name=item.pod, namespace=item.namespace)
            container = pod.containers.add(name=item.container)
            resource = container.dynamic_resources.add(claim_name=item.claim, claim_namespace=item.namespace)
            resource.claim_resources.add(
                driver_name=item.driver,
                pool_name=item.pool,
                device_name=item.device,
                share_id=item.share or None,
                cdi_devices=[pb.CDIDevice(name=name) for name in item.cdi_devices],
            )
        return answer


def held(
    device: str, pod: str, container: str, *, claim: str = "lunch", share: str = "", cdi: Sequence[str] = ()
) -> ContainerDevice:
    return ContainerDevice(
        namespace="default", pod=pod, container=container, claim=claim, driver="dra.pizza", pool="node-1",
        device=device, share=share, cdi_devices=tuple(cdi),
    )  # fmt: skip


@asynccontextmanager
async def kubelet(kubelet_dir: Path, *devices: ContainerDevice) -> AsyncIterator[Kubelet]:
    """Serves where the kubelet does."""
    socket = pod_resources_socket(kubelet_dir)
    socket.parent.mkdir(exist_ok=True)
    served = Kubelet(devices)
    server = grpc.aio.server()
    pb_grpc.add_PodResourcesListerServicer_to_server(served, server)
    server.add_insecure_port(f"unix:{quote(str(socket))}")
    await server.start()
    try:
        yield served
    finally:
        await server.stop(None)
