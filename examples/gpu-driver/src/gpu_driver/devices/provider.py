"""``GpuProvider``: looks which GPUs are there, and what has been made of them."""

import logging
from collections.abc import Collection, Iterator, Sequence

import dra_kit as dra

from gpu_driver.devices.attributes import Versions
from gpu_driver.devices.found import Found, FoundGpu
from gpu_driver.devices.gpu import Gpu
from gpu_driver.devices.inventory import inventory
from gpu_driver.devices.mig import Mig
from gpu_driver.devices.remembered import Remembered
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
"""Architectures whose MIG mode waits for a reset; NVML does not tell (MIG user guide, "Enable MIG mode")."""

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
        # a look every minute is often enough for what lost records have left
        remove_leftovers(root_of(self.context.settings, self.hardware), self.context.effects)
        remembered = Remembered(self.context.state_dir / "gpus.json")
        yield inventory(find(self.hardware, self._own_places(), remembered), self.context.settings)

    def _own_places(self) -> set[Place]:
        """Where this driver has made GPU instances, or is making them."""
        effects = [known.effect for known in self.context.effects()]
        return {
            (effect.uuid, effect.profile_id, effect.start)
            for effect in effects
            if isinstance(effect, CreateGpuInstance)
        }


def find(hardware: Hardware, own: Collection[Place], remembered: Remembered) -> Found:
    """What is there. A GPU that does not answer is as it was before, and takes no other one away.

    Args:
        hardware: of the node.
        own: where this driver has made GPU instances; all others are foreign.
        remembered: the GPUs as they were seen last.

    Raises:
        NvmlError: NVML itself does not answer.
    """
    nvml = hardware.nvml
    versions = Versions(nvml.driver_version(), nvml.cuda_driver_version())
    seen = [gpu for facts in nvml.gpus() if (gpu := _found(hardware, facts, own, remembered)) is not None]
    return Found(versions, remembered.complete(seen, lambda address: pci.function(hardware.host, address).exists()))


def _found(hardware: Hardware, facts: GpuFacts, own: Collection[Place], remembered: Remembered) -> FoundGpu | None:
    try:
        return FoundGpu(facts, pci.location(hardware.host, facts.pci_bus_id), _mig(hardware, facts, own))
    except NvmlError as error:
        before = remembered.find(facts.uuid)
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
