"""``LastSeen``: the GPUs that NVML listed last, for those that it does not list now."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gpu_driver.devices.discovered import DiscoveredGpu

log = logging.getLogger(__name__)

_GPUS: TypeAdapter[list[DiscoveredGpu]] = TypeAdapter(list[DiscoveredGpu])


class LastSeen:
    """A file with the GPUs of the node, written when they are others than before.

    NVML leaves out GPUs that are lost or in a virtual machine. Claims that have them need them published all the same:
    with a taint until they are well, or as what is in use.

    Args:
        file: with the driver's state.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def complete(self, seen: Sequence[DiscoveredGpu], is_there: Callable[[str], bool]) -> list[DiscoveredGpu]:
        """Return the GPUs that NVML shows and those that it showed before, by PCI bus id, and store them.

        Args:
            seen: what NVML shows.
            is_there: whether the host still has a PCI function at a bus id; one that has gone is forgotten. So is one
                whose place or minor number another GPU has now.
        """
        before = self._read()
        taken = {value for gpu in seen for value in (gpu.facts.uuid, gpu.facts.pci_bus_id, gpu.facts.minor)}
        missing = [
            gpu
            for gpu in before
            if not taken & {gpu.facts.uuid, gpu.facts.pci_bus_id, gpu.facts.minor} and is_there(gpu.facts.pci_bus_id)
        ]
        known = sorted([*seen, *missing], key=lambda gpu: gpu.facts.pci_bus_id)
        if known != before:
            self._write(known)
        return known

    def find(self, uuid: str) -> DiscoveredGpu | None:
        """Return the last known state of one GPU; None if there is none."""
        return next((gpu for gpu in self._read() if gpu.facts.uuid == uuid), None)

    def _read(self) -> list[DiscoveredGpu]:
        try:
            return _GPUS.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return []
        except ValidationError as error:
            # written by another release, or corrupt: NVML is read again
            log.warning("%s cannot be read and is written again: %d mistakes", self._file, error.error_count())
            return []

    def _write(self, known: list[DiscoveredGpu]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        with new.open("wb") as file:
            file.write(_GPUS.dump_json(known))
            file.flush()
            os.fsync(file.fileno())  # a reboot leaves this file or the one before
        new.replace(self._file)
