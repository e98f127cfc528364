"""The devices of a node: groups of CPUs, or single CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import dra_kit as dra
from typing_extensions import override

from cpu_driver.machine import Machine
from cpu_driver.settings import Settings

CAPACITY = "dra.cpu/cpu"
NUMA_NODE = "resource.kubernetes.io/numaNode"


class CpuProvider(dra.DeviceProvider[dra.Device, Machine, Settings]):
    """Publishes the CPUs that are not reserved, with the names and attributes of kubernetes-sigs/dra-driver-cpu."""

    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        make = self._cpu if self.context.settings.mode == "individual" else self._group
        yield [make(name, cpus) for name, cpus in self.hardware.devices.items()]

    def _group(self, name: str, cpus: frozenset[int]) -> dra.Device:
        first = self.hardware.topology.by_number[min(cpus)]
        numa_node = {NUMA_NODE: first.numa_node} if self.context.settings.group_by == "numanode" else {}
        # whole CPUs only; a claim without an amount gets one. The API allows no step to more than there is
        amounts = dra.CapacityRequestPolicyRange(min=1, step=1 if len(cpus) > 1 else None)
        policy = dra.CapacityRequestPolicy(default=1, valid_range=amounts)
        return dra.Device(
            name=name,
            allow_multiple_allocations=True,
            attributes={
                **numa_node,
                "socketID": first.socket,
                "smtEnabled": self.hardware.topology.smt_enabled,
                "numCPUs": len(cpus),
            },
            capacity={CAPACITY: dra.DeviceCapacity(value=len(cpus), request_policy=policy)},
            node_allocatable_resources=self._counted(
                dra.NodeAllocatableResourceMapping(capacity_key=CAPACITY, capacity_multiplier=1)
            ),
        )

    def _cpu(self, name: str, cpus: frozenset[int]) -> dra.Device:
        cpu = self.hardware.topology.by_number[min(cpus)]
        return dra.Device(
            name=name,
            attributes={
                NUMA_NODE: cpu.numa_node,
                "socketID": cpu.socket,
                "smtEnabled": self.hardware.topology.smt_enabled,
                "cacheL3ID": cpu.cache,
                "coreType": cpu.core_type,
                "coreID": cpu.core_id,
                "cpuID": cpu.number,
            },
            node_allocatable_resources=self._counted(dra.NodeAllocatableResourceMapping(device_multiplier=1)),
        )

    def _counted(self, mapping: dra.NodeAllocatableResourceMapping) -> Mapping[str, dra.NodeAllocatableResource]:
        return {"cpu": dra.NodeAllocatableResource(mapping=mapping)} if self.context.settings.node_allocatable else {}
