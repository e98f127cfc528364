"""The second driver: memory and hugepages of NUMA nodes, modelled on dra-driver-memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import dra_kit as dra
from typing_extensions import override

from cpu_driver.machine import check_manager
from cpu_driver.provider import NUMA_NODE
from cpu_driver.settings import NodeSettings

CAPACITY, DOMAIN = "size", "resource.kubernetes.io/"


@dataclass(frozen=True, slots=True, order=True)
class Memory:
    """Memory of a NUMA node in pages of one size: all that a device has, or what a claim has of it.

    Attributes:
        numa_node: the NUMA node.
        huge: its pages are hugepages.
        page: the size of a page, such as ``4Ki``.
        size: bytes.
    """

    numa_node: int
    huge: bool
    page: str
    size: int

    @property
    def kind(self) -> str:
        """The name of this kind of memory in Kubernetes: ``memory``, or such as ``hugepages-2Mi``."""
        return f"hugepages-{self.page}" if self.huge else "memory"


Memories: TypeAlias = Mapping[str, Memory]
"""The memory of the node by name of the device; ``self.hardware`` of the classes below."""


def quantity(size: int) -> str:
    """Return bytes as a quantity, such as ``2Mi``."""
    return str(dra.Quantity(f"{size // 1024}Ki"))


def open_memory(context: dra.Context[NodeSettings]) -> Memories:
    """Read the memory for ``Driver(hardware=…)``, once per process: restart the driver when hugepages were added.

    Raises:
        ConfigurationError: the kubelet assigns memory itself.
    """
    check_manager("memory", context.settings)
    found = sorted(_read(context.settings.sysfs))
    return {f"{memory.kind.lower()}-{memory.numa_node}": memory for memory in found if memory.size}


def _read(sysfs: Path) -> Iterator[Memory]:
    """Yield the memory of each NUMA node (kernel documentation: ABI/stable/sysfs-devices-node).

    Hugepages are not counted as memory, as in ``status.allocatable`` of a Node.
    """
    for node in sysfs.glob("devices/system/node/node[0-9]*"):
        number = int(node.name.removeprefix("node"))
        left = int((node / "meminfo").read_text(encoding="utf-8").partition("MemTotal:")[2].split()[0]) * 1024
        for pages in node.glob("hugepages/hugepages-*kB/nr_hugepages"):
            page = int(pages.parent.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
            size = page * int(pages.read_text(encoding="utf-8"))
            left -= size
            yield Memory(number, True, quantity(page), size)
        yield Memory(number, False, quantity(os.sysconf("SC_PAGE_SIZE")), left)


class MemoryProvider(dra.DeviceProvider[dra.Device, Memories, NodeSettings]):
    """Publishes the memory of each NUMA node, with the attributes and the capacity of dra-driver-memory."""

    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [self._device(name, memory) for name, memory in self.hardware.items()]

    def _device(self, name: str, memory: Memory) -> dra.Device:
        size = quantity(memory.size)
        # whole pages only; a claim without an amount gets one hugepage, or 1 MiB
        step = memory.page if size != memory.page else None  # the API allows none where only one page is
        amounts = dra.CapacityRequestPolicyRange(min=memory.page, step=step, max=size)
        policy = dra.CapacityRequestPolicy(default=memory.page if memory.huge else "1Mi", valid_range=amounts)
        return dra.Device(
            name=name,
            allow_multiple_allocations=True,
            attributes={NUMA_NODE: memory.numa_node, DOMAIN + "pageSize": memory.page, DOMAIN + "hugeTLB": memory.huge},
            capacity={CAPACITY: dra.DeviceCapacity(value=size, request_policy=policy)},
        )


class MemoryPreparer(dra.Preparer[dra.NoConfig, dra.Device, Memories, NodeSettings]):
    """Records what a claim has. :class:`MemoryHooks` limits its containers to it."""

    @override
    def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[dra.NoConfig, dra.Device]]
    ) -> Sequence[dra.Prepared]:
        # a claim with admin access only looks
        sizes = [0 if device.admin_access else device.consumed_capacity[CAPACITY].value for device in devices]
        shares = [replace(self.hardware[device.name], size=size) for device, size in zip(devices, sizes, strict=True)]
        # the variables of dra-driver-memory. They only inform: the hooks do not read them
        env = {item.kind.replace("-", "_"): f"numanode:{item.numa_node},size:{quantity(item.size)}" for item in shares}
        env["NUMANodes"] = _numa_nodes(shares)
        edits = dra.ContainerEdits(env={f"DRAMEMORY_{claim.uid}_{name}": text for name, text in env.items()})
        return [dra.Prepared(state=asdict(share), claim_edits=edits) for share in shares]


class MemoryHooks(dra.PodHooks[dra.Device, Memories, NodeSettings]):
    """Limits containers to the NUMA nodes and the hugepages of their claims."""

    @override
    def container_starts(
        self, pod: dra.RuntimePod, container: dra.RuntimeContainer, devices: Sequence[dra.HeldDevice[dra.Device]]
    ) -> dra.ContainerAdjustment:
        cgroups = self.context.settings.sysfs / "fs/cgroup"
        if cgroups.exists():  # a fake machine has none
            try:
                # the kubelet does not know the hugepages of claims, and allows the pod none: to use, and to reserve
                for size, limit in _hugepages(pod.devices).items():
                    used = cgroups / pod.cgroup_parent.strip("/") / f"hugetlb.{size}.max"
                    for file in [used, *used.parent.glob(f"hugetlb.{size}.rsvd.max")]:  # since Linux 5.7
                        file.write_text(str(limit), encoding="utf-8")
            except OSError as error:
                raise dra.TransientError(f"pod {pod} gets no hugepages: {error}; mount the host's cgroup v2") from None
        nodes = _numa_nodes(_shares(devices))
        return dra.ContainerAdjustment(memory_nodes=nodes or None, hugepages=_hugepages(devices))


def _shares(devices: Sequence[dra.HeldDevice[Any]]) -> list[Memory]:
    """Return what claims have of devices, as prepare recorded it."""
    return [share for device in devices if (share := Memory(**cast(dict[str, Any], device.state))).size]


def _numa_nodes(shares: Sequence[Memory]) -> str:
    """Return the NUMA nodes of memory, such as ``0,1``."""
    return ",".join(map(str, sorted({share.numa_node for share in shares})))


def _hugepages(devices: Sequence[dra.HeldDevice[Any]]) -> Mapping[str, int]:
    """Return the bytes of hugepages by page size, as cgroups name it: ``2MB``."""
    huge = [share for share in _shares(devices) if share.huge]
    return {of.page.replace("i", "B"): sum(share.size for share in huge if share.page == of.page) for of in huge}


driver = dra.Driver(
    "dra.memory",
    provider=MemoryProvider(),
    preparer=MemoryPreparer(),
    pod_hooks=MemoryHooks(),
    settings=NodeSettings,
    hardware=open_memory,
)
