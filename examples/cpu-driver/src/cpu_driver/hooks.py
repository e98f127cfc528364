"""The CPUs of containers: those of their claims, or what claims leave to the others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import dra_kit as dra
from typing_extensions import override

from cpu_driver.machine import Machine
from cpu_driver.preparer import taken_cpus
from cpu_driver.settings import Settings
from cpu_driver.topology import format_cpus, parse_cpus

logger = logging.getLogger(__name__)


class CpuHooks(dra.PodHooks[dra.Device, Machine, Settings]):
    """Pins containers with claims, and keeps all others of the node in a pool that shrinks and grows.

    All methods are ``async def`` and run in one event loop, so they need no lock.
    """

    scope: ClassVar[Literal["claims", "all"]] = "all"

    @override
    def startup(self, context: dra.Context[Settings]) -> None:
        self._sharing: dict[tuple[str, str], tuple[str, frozenset[int]]] = {}
        """Containers in the pool, by sandbox and name: the runtime's id, and their CPUs."""

    @override
    async def synchronize(self, pods: Sequence[dra.RuntimePod]) -> Iterable[dra.ContainerUpdate]:
        self._sharing = {
            (pod.id, container.name): (container.id, parse_cpus(container.cpus))
            for pod in pods
            for container in pod.containers
            if container.state != "stopped" and not _is_pinned(pod, container)
        }
        return self._changes()

    @override
    async def container_starts(
        self, pod: dra.RuntimePod, container: dra.RuntimeContainer, devices: Sequence[dra.HeldDevice[dra.Device]]
    ) -> dra.ContainerAdjustment:
        if cpus := _held(devices):
            return dra.ContainerAdjustment(cpus=format_cpus(cpus), updates=self._changes())
        pool = self._pool()
        if not pool:
            raise dra.TransientError(
                f"container {container.name} cannot start: claims have all CPUs of the node; reserve some for "
                "containers without a claim (--reserved-cpus), or delete a claim"
            )
        self._sharing[pod.id, container.name] = (container.id, pool)
        return dra.ContainerAdjustment(cpus=format_cpus(pool))

    @override
    async def pod_stops(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice[dra.Device]]) -> None:
        self._sharing = {key: value for key, value in self._sharing.items() if key[0] != pod.id}

    async def grow(self) -> None:
        """Give CPUs that claims have released to the containers of the pool."""
        # without a connection, synchronize does it after the next one
        changes = self._changes() if self.runtime.connected else []
        if not changes:
            return
        try:
            failed = await self.runtime.update(changes)
        except dra.DraKitError as error:
            logger.warning("containers did not get released CPUs; they get them later", extra={"reason": str(error)})
            failed = changes
        ids = {update.container for update in failed}
        # the next change tries again
        self._sharing |= {key: (item[0], frozenset()) for key, item in self._sharing.items() if item[0] in ids}

    def _pool(self) -> frozenset[int]:
        return self.hardware.available - taken_cpus(self.context) or self.hardware.reserved

    def _changes(self) -> list[dra.ContainerUpdate]:
        """Return updates of containers that do not have the pool's CPUs. An empty pool changes nothing."""
        pool = self._pool()
        late = {key: item[0] for key, item in self._sharing.items() if pool and item[1] != pool}
        self._sharing |= {key: (identifier, pool) for key, identifier in late.items()}
        return [dra.ContainerUpdate(container=identifier, cpus=format_cpus(pool)) for identifier in late.values()]


def _held(devices: Iterable[dra.HeldDevice[Any]]) -> frozenset[int]:
    """Return the CPUs that prepare recorded for devices."""
    return frozenset().union(*(parse_cpus(str(device.state or "")) for device in devices))


def _is_pinned(pod: dra.RuntimePod, container: dra.RuntimeContainer) -> bool:
    """Return whether the container was started with CPUs of the pod's claims: the runtime has no others for it."""
    cpus = parse_cpus(container.cpus)
    return bool(cpus) and cpus <= _held(pod.devices)
