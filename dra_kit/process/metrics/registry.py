"""The numbers of a process, in the text format of Prometheus, and where its parts put them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from dra_kit.process.metrics.families import Reading

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry for a process. prometheus-client is loaded when an author has a number, or somebody asks for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registry: CollectorRegistry | None = None
        self._readings: list[Callable[[], Iterable[Reading]]] = []
        self._labels: dict[str, str] = {}
        self._collects = False

    @property
    def registry(self) -> CollectorRegistry:
        """Where collectors are registered; always the same one, in every thread."""
        with self._lock:
            if self._registry is None:
                from prometheus_client import CollectorRegistry

                self._registry = CollectorRegistry()
            return self._registry

    def read(self, readings: Callable[[], Iterable[Reading]], **labels: str) -> None:
        """Ask for numbers of a part of the process whenever somebody asks for all.

        Args:
            readings: gives the numbers of now, in a thread of its own.
            labels: that all numbers of the process have.
        """
        self._readings.append(readings)
        self._labels |= labels

    def text(self) -> bytes:
        """All numbers of now; asks the collectors, which may take time and raise anything."""
        if self._registry is None and not self._readings:
            return b""
        from prometheus_client import generate_latest

        registry = self.registry
        if self._readings and not self._collects:
            from dra_kit.process.metrics.collector import register

            self._collects = True
            register(registry, self._readings, self._labels)
        return generate_latest(registry)
