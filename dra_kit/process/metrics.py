"""The numbers of a process, in the text format of Prometheus, and where its parts put them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry for a process. prometheus-client is loaded when somebody has a number for it, and not before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registry: CollectorRegistry | None = None

    @property
    def registry(self) -> CollectorRegistry:
        """Where collectors are registered; always the same one, in every thread."""
        with self._lock:
            if self._registry is None:
                from prometheus_client import CollectorRegistry

                self._registry = CollectorRegistry()
            return self._registry

    def text(self) -> bytes:
        """All numbers of now; asks the collectors, which may take time and raise anything."""
        if self._registry is None:
            return b""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
