"""Fake machines for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dra_kit import Device

from cpu_driver.machine import Machine
from cpu_driver.provider import CpuProvider
from cpu_driver.settings import Settings
from cpu_driver.topology import read_profile

PROFILES = sorted(path.stem for path in Path(__file__).parents[1].glob("topologies/*.yaml"))


def profile(name: str) -> Path:
    """The file of a fake machine."""
    return Path(__file__).parents[1] / "topologies" / f"{name}.yaml"


class _Context:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings


def devices(settings: Settings) -> Sequence[Device]:
    """The devices that the driver publishes of a fake machine."""
    provider = CpuProvider()
    provider.hardware = Machine(read_profile(settings.sysfs.read_text(encoding="utf-8")), settings)
    provider.context = _Context(settings)  # type: ignore[assignment]
    [found] = provider.discover()
    return found
