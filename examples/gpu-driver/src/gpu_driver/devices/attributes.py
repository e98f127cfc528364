"""What is published of a GPU: NVIDIA's names where its own driver has them, Kubernetes' where there is a standard."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import dra_kit as dra

from gpu_driver.devices.names import camel, version
from gpu_driver.nvml.backend import GpuFacts, GpuInstanceProfile

Value = str | int | bool | dra.Version
"""Of an attribute."""

ENGINES = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")
"""Fields of a profile that are amounts: published in camelCase as capacities, in kebab-case as counters."""

FP64_CORES = {(6, 0): 32, (7, 0): 32, (8, 0): 32, (9, 0): 64, (10, 0): 64}
"""Double-precision results of a multiprocessor in a clock (CUDA C++ programming guide, arithmetic instructions)."""
_FEW_FP64_CORES = 2


@dataclass(frozen=True, slots=True)
class Versions:
    """Of the driver on this node."""

    driver: str
    cuda: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a GPU is, by the host's sysfs.

    Attributes:
        pcie_root: such as ``pci0000:40``; None where it is unknown.
        numa_node: None where the host has none for it.
        bar_bytes: size of its largest PCI region, through which a virtual machine sees its memory; None where it is
            unknown.
        iommu_fd: whether the host's kernel has iommufd.
    """

    pcie_root: str | None = None
    numa_node: int | None = None
    bar_bytes: int | None = None
    iommu_fd: bool = False


def common(facts: GpuFacts, versions: Versions, location: Location) -> dict[str, Value]:
    """Return what is true of the GPU and of every part of it."""
    major, minor = facts.compute_capability
    known: dict[str, Value | None] = {
        "productName": facts.name,
        "brand": facts.brand,
        "architecture": facts.architecture,
        "cudaComputeCapability": dra.Version(f"{major}.{minor}.0"),
        "driverVersion": version(versions.driver),
        "cudaDriverVersion": dra.Version(f"{versions.cuda[0]}.{versions.cuda[1]}.0"),
        "addressingMode": facts.addressing_mode,
        "resource.kubernetes.io/pciBusID": facts.pci_bus_id,
        "resource.kubernetes.io/pcieRoot": location.pcie_root,
        "resource.kubernetes.io/numaNode": location.numa_node,
    }
    return {name: value for name, value in known.items() if value is not None}


def passed_through(facts: GpuFacts, location: Location) -> dict[str, Value]:
    """Return what is true of the GPU while it is for virtual machines, beside what is true of it always.

    Its UUID is made of its PCI address, as NVIDIA's driver does: NVML does not see it then.
    """
    return {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, facts.pci_bus_id)),
        "vendorID": "0x10de",
        "deviceID": f"{facts.pci_device_id:#06x}",
        "iommuFDEnabled": location.iommu_fd,
    }


def fp64_cores(facts: GpuFacts, multiprocessors: int) -> int:
    """Double-precision cores of so many multiprocessors."""
    return multiprocessors * FP64_CORES.get(facts.compute_capability, _FEW_FP64_CORES)


def whole_capacity(facts: GpuFacts) -> dict[str, dra.Quantity]:
    """Amounts of a whole GPU; without ``memory`` where NVML has no figure for it."""
    capacity = {
        "multiprocessors": dra.Quantity(facts.multiprocessors),
        "fp64Cores": dra.Quantity(fp64_cores(facts, facts.multiprocessors)),
    }
    if facts.memory_bytes is not None:
        capacity["memory"] = binary(facts.memory_bytes)
    return capacity


def most_engines(profiles: Sequence[GpuInstanceProfile]) -> dict[str, dra.Quantity]:
    """Engines of a whole GPU that can be divided: the most that any profile has of each."""
    return {
        camel(name): dra.Quantity(max((getattr(profile, name) for profile in profiles), default=0)) for name in ENGINES
    }


def partition_capacity(facts: GpuFacts, profile: GpuInstanceProfile) -> dict[str, dra.Quantity]:
    """Amounts of a MIG device."""
    return {
        **{camel(name): amount for name, amount in profile_amounts(profile).items()},
        "fp64Cores": dra.Quantity(fp64_cores(facts, profile.multiprocessors)),
    }


def profile_amounts(profile: GpuInstanceProfile) -> dict[str, dra.Quantity]:
    """Return what a profile has, by the names of its fields."""
    return {
        "multiprocessors": dra.Quantity(profile.multiprocessors),
        **{name: dra.Quantity(getattr(profile, name)) for name in ENGINES},
        "memory": binary(profile.memory_mib * 2**20),
    }


def binary(number: int) -> dra.Quantity:
    """Bytes as people write them: ``80Gi``, ``9984Mi``."""
    for exponent, suffix in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if number and number % 2**exponent == 0:
            return dra.Quantity(f"{number >> exponent}{suffix}")
    return dra.Quantity(number)
