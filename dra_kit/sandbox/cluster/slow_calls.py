"""Calls of kubelets to the driver that are not answered for long; else it looks as if nothing happened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.cluster.kubelet.activity import ClaimsPrepared, ClaimsReleased, PluginCalled

PATIENCE: Final = 3.0
"""Seconds after which a call is slow."""


class SlowCalls:
    """Keeps the calls under way; each that is slow is reported once."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, str, tuple[ClaimReference, ...]], tuple[float, PluginCalled]] = {}

    @property
    def under_way(self) -> bool:
        """Whether a call is, that has not been reported yet."""
        return bool(self._under_way)

    def begun(self, node: str, call: PluginCalled) -> None:
        """Note that a kubelet calls the driver."""
        self._under_way[node, call.driver, call.claims] = (time.monotonic(), call)

    def ended(self, node: str, call: ClaimsPrepared | ClaimsReleased) -> None:
        """Note that the call was answered, or given up."""
        self._under_way.pop((node, call.driver, call.claims), None)

    def overdue(self) -> Iterator[tuple[str, PluginCalled]]:
        """Yield the calls, each with its node, that have become slow since the last time."""
        now = time.monotonic()
        slow = [key for key, (begin, _) in self._under_way.items() if now - begin > PATIENCE]
        for key in slow:
            yield key[0], self._under_way.pop(key)[1]
