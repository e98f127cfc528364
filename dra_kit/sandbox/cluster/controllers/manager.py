"""All controllers of the sandbox as one, as kube-controller-manager is."""

from __future__ import annotations

import asyncio

from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder
from dra_kit.sandbox.cluster.controllers import device_taint_eviction, resource_claims
from dra_kit.sandbox.cluster.controllers.device_taint_eviction import DeviceTaintEviction
from dra_kit.sandbox.cluster.controllers.node_lifecycle import NodeLifecycle
from dra_kit.sandbox.cluster.controllers.pod_garbage import PodGarbage
from dra_kit.sandbox.cluster.controllers.resource_claims import ResourceClaimController
from dra_kit.sandbox.cluster.controllers.workloads import controller as workloads
from dra_kit.sandbox.cluster.controllers.workloads.controller import Workloads
from dra_kit.sandbox.cluster.informers import Informers


class ControllerManager:
    """Claims, reservations, eviction by device taint, pods of vanished nodes, readiness of nodes, workloads.

    Args:
        client: to write with.
        informers: follow pods, nodes, workloads, and all of resource.k8s.io.
        time_scale: waits are divided by this.
    """

    def __init__(self, client: Client, informers: Informers, *, time_scale: float = 1.0) -> None:
        self._recorders = tuple(
            EventRecorder(client, controller=component, instance=component)
            for component in (resource_claims.COMPONENT, device_taint_eviction.COMPONENT, workloads.COMPONENT)
        )
        claim_events, taint_events, workload_events = self._recorders
        self._controllers = (
            ResourceClaimController(client, informers, claim_events),
            DeviceTaintEviction(client, informers, taint_events, time_scale=time_scale),
            PodGarbage(client, informers, time_scale=time_scale),
            NodeLifecycle(client, informers),
            Workloads(client, informers, workload_events, time_scale=time_scale),
        )

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for recorder in self._recorders:
                group.create_task(recorder.run(asyncio.Event()), name="events")
            for controller in self._controllers:
                group.create_task(controller.run(), name=type(controller).__name__)
