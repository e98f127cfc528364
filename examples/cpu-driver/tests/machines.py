"""Fake machines for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dra_kit import Device

from cpu_driver.machine import Machine
from cpu_driver.memory import MemoryProvider, open_memory
from cpu_driver.provider import CpuProvider
from cpu_driver.settings import NodeSettings, Settings
from cpu_driver.topology import read_profile

PROJECT = Path(__file__).parents[1]
PROFILES = sorted(path.stem for path in PROJECT.glob("topologies/*.yaml"))


def profile(name: str) -> Path:
    """The file of a fake machine."""
    return PROJECT / "topologies" / f"{name}.yaml"


class _Context:
    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings


def devices(settings: Settings) -> Sequence[Device]:
    """The devices that the driver publishes of a fake machine."""
    provider = CpuProvider()
    provider.hardware = Machine(read_profile(settings.sysfs.read_text(encoding="utf-8")), settings)
    provider.context = _Context(settings)  # type: ignore[assignment]
    [found] = provider.discover()
    return found


def memory(sysfs: Path) -> Mapping[str, Device]:
    """The devices that the driver of memory publishes of a fake machine, by name."""
    provider = MemoryProvider()
    provider.context = _Context(NodeSettings(sysfs=sysfs, kubelet_root=sysfs))  # type: ignore[assignment]
    provider.hardware = open_memory(provider.context)
    [found] = provider.discover()
    return {device.name: device for device in found}
