"""Fake machines for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dra_kit import Device

from cpu_driver.machine import Machine
from cpu_driver.provider import CpuProvider
from cpu_driver.settings import NodeSettings, Settings
from cpu_driver.topology import read_profile

PROJECT = Path(__file__).parents[1]
PROFILES = sorted(path.stem for path in PROJECT.glob("topologies/*.yaml"))


def profile(name: str) -> Path:
    """The file of a fake machine."""
    return PROJECT / "topologies" / f"{name}.yaml"


class Context:
    """The part of a driver's context that the provider uses."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings


def devices(settings: Settings) -> Sequence[Device]:
    """The devices that the driver publishes of a fake machine."""
    provider = CpuProvider()
    provider.hardware = Machine(read_profile(settings.sysfs.read_text(encoding="utf-8")), settings)
    provider.context = Context(settings)  # type: ignore[assignment]
    [found] = provider.discover()
    return found
