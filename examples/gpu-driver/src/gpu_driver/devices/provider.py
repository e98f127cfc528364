"""``GpuProvider``: discovers the GPUs of the node and their partitions."""

import logging
from collections.abc import Collection, Iterator, Sequence

import dra_kit as dra

from gpu_driver.devices.attributes import Versions
from gpu_driver.devices.discovered import Discovered, DiscoveredGpu
from gpu_driver.devices.gpu import Gpu
from gpu_driver.devices.inventory import inventory
from gpu_driver.devices.last_seen import LastSeen
from gpu_driver.devices.mig import Mig
from gpu_driver.effects.mig.gpu_instance import CreateGpuInstance
from gpu_driver.effects.mps.leftovers import remove_leftovers
from gpu_driver.effects.mps.paths import root_of
from gpu_driver.hardware import Hardware
from gpu_driver.host import pci
from gpu_driver.host.device_plugin import refuse_beside_device_plugin
from gpu_driver.nvml.backend import GpuFacts, GpuInstance
from gpu_driver.nvml.errors import NvmlError
from gpu_driver.settings import Settings

_TOGGLED_BY_RESET = {"Ampere"}
"""Architectures whose MIG mode waits for a reset; NVML has no function for it (MIG user guide, "Enable MIG mode")."""

Place = tuple[str, int, int]
"""Of a GPU instance: the GPU's UUID, its profile's id, its first slice."""

log = logging.getLogger(__name__)


class GpuProvider(dra.DeviceProvider[Gpu, Hardware, Settings]):
    """All GPUs of the node. ``Driver(rescan_every=…)`` finds what administrators change."""

    def startup(self, context: dra.Context[Settings]) -> None:
        settings = context.settings
        if not self.hardware.fake and not settings.beside_device_plugin:
            refuse_beside_device_plugin(self.hardware.host, settings.kubelet_root)

    def discover(self) -> Iterator[dra.Inventory[Gpu]]:
        # every minute is often enough
        remove_leftovers(root_of(self.context.settings, self.hardware), self.context.effects)
        last_seen = LastSeen(self.context.state_dir / "gpus.json")
        yield inventory(find(self.hardware, self._own_places(), last_seen), self.context.settings)

    def _own_places(self) -> set[Place]:
        """Where this driver has made GPU instances, or is making them."""
        effects = [known.effect for known in self.context.effects()]
        return {
            (effect.uuid, effect.profile_id, effect.start)
            for effect in effects
            if isinstance(effect, CreateGpuInstance)
        }


def find(hardware: Hardware, own: Collection[Place], last_seen: LastSeen) -> Discovered:
    """Return what NVML lists. A GPU that does not answer is returned in its last known state.

    Args:
        hardware: of the node.
        own: where this driver has made GPU instances; all others are foreign.
        last_seen: the last known state of the GPUs.

    Raises:
        NvmlError: NVML itself does not answer.
    """
    nvml = hardware.nvml
    versions = Versions(nvml.driver_version(), nvml.cuda_driver_version())
    seen = [gpu for facts in nvml.gpus() if (gpu := _found(hardware, facts, own, last_seen)) is not None]
    return Discovered(versions, last_seen.complete(seen, lambda address: pci.function(hardware.host, address).exists()))


def _found(hardware: Hardware, facts: GpuFacts, own: Collection[Place], last_seen: LastSeen) -> DiscoveredGpu | None:
    try:
        return DiscoveredGpu(facts, pci.location(hardware.host, facts.pci_bus_id), _mig(hardware, facts, own))
    except NvmlError as error:
        before = last_seen.find(facts.uuid)
        log.warning("GPU %s is %s: %s", facts.uuid, "left out" if before is None else "published as before", error)
        return before


def _mig(hardware: Hardware, facts: GpuFacts, own: Collection[Place]) -> Mig | None:
    if not facts.mig_capable:
        return None
    existing: Sequence[GpuInstance] = hardware.nvml.gpu_instances(facts.uuid)
    return Mig(
        enabled=hardware.nvml.mig_mode(facts.uuid).current,
        live=facts.architecture not in _TOGGLED_BY_RESET,
        profiles=tuple(hardware.nvml.gpu_instance_profiles(facts.uuid)),
        foreign=tuple(instance for instance in existing if _place(facts, instance) not in own),
    )


def _place(facts: GpuFacts, instance: GpuInstance) -> Place:
    return facts.uuid, instance.profile_id, instance.placement.start
