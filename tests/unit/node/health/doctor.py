"""A health source controlled by a test."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from typing import Any

import dra_kit as dra


class Doctor(dra.HealthSource):
    """Yields or raises what the test passes to it; first reports each device as healthy, unless it is silent.

    Attributes:
        cured: the reasons that have recovered.
        asked: the devices and reasons that ``recovered`` was called with.
        begun: how often ``watch`` was started.
    """

    def __init__(self, *, silent: bool = False, **policy: dra.HealthRule) -> None:
        self.policy: Mapping[str, dra.HealthRule] = policy  # type: ignore[misc]
        self.cured: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.begun = 0
        self._silent = silent
        self._reports: queue.Queue[Any] = queue.Queue()

    def say(self, *reports: Any) -> None:
        for report in reports:
            self._reports.put(report)

    def unhealthy(self, device: str, reason: str, message: str = "", **more: Any) -> None:
        self._reports.put(lambda: dra.Unhealthy(self.of(device), reason, message, **more))

    def healthy(self, device: str, reason: str = "") -> None:
        self._reports.put(lambda: dra.Healthy(self.of(device), reason))

    def of(self, name: str) -> dra.Device:
        return next(device for device in self.devices if device.name == name)

    def watch(self) -> Iterator[Any]:
        self.begun += 1
        if not self._silent:
            yield from map(dra.Healthy, self.devices)
        while True:
            report = self._reports.get()
            if isinstance(report, BaseException):
                raise report
            yield report() if callable(report) else report

    def recovered(self, device: dra.Device, reason: str, /) -> bool:
        self.asked.append((device.name, reason))
        return reason in self.cured
