"""A health source that says what a test tells it to say."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from typing import Any

import dra_kit as dra


class Doctor(dra.HealthSource):
    """Yields, or raises, what it is told; says of every device that it is healthy first, unless it is silent.

    Attributes:
        cured: the reasons that have recovered.
        asked: whom ``recovered`` was asked about.
        begun: how often ``watch`` was started.
    """

    def __init__(self, *, silent: bool = False, **policy: dra.HealthRule) -> None:
        self.policy: Mapping[str, dra.HealthRule] = policy  # type: ignore[misc]
        self.cured: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.begun = 0
        self._silent = silent
        self._words: queue.Queue[Any] = queue.Queue()

    def say(self, *words: Any) -> None:
        for word in words:
            self._words.put(word)

    def unhealthy(self, device: str, reason: str, message: str = "", **more: Any) -> None:
        self._words.put(lambda: dra.Unhealthy(self.of(device), reason, message, **more))

    def healthy(self, device: str, reason: str = "") -> None:
        self._words.put(lambda: dra.Healthy(self.of(device), reason))

    def of(self, name: str) -> dra.Device:
        return next(device for device in self.devices if device.name == name)

    def watch(self) -> Iterator[Any]:
        self.begun += 1
        if not self._silent:
            yield from map(dra.Healthy, self.devices)
        while True:
            word = self._words.get()
            if isinstance(word, BaseException):
                raise word
            yield word() if callable(word) else word

    def recovered(self, device: dra.Device, reason: str, /) -> bool:
        self.asked.append((device.name, reason))
        return reason in self.cured
