"""The GPUs that were discovered on a node, before devices are made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_driver.devices.attributes import Location, Versions
from gpu_driver.devices.mig import Mig
from gpu_driver.nvml.backend import GpuFacts


@dataclass(frozen=True, slots=True)
class DiscoveredGpu:
    """One GPU; ``mig`` is None where it cannot be partitioned."""

    facts: GpuFacts
    location: Location
    mig: Mig | None = None


@dataclass(frozen=True, slots=True)
class Discovered:
    """All GPUs of the node, by PCI bus id, and the versions of their driver."""

    versions: Versions
    gpus: Sequence[DiscoveredGpu]
