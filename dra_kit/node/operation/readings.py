"""The node's numbers, read when somebody asks for them."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from dra_kit.errors import DraKitError
from dra_kit.node.operation.measured import MeasuredService
from dra_kit.node.operation.status import NodeView, effect_state
from dra_kit.operation.who.device_use import DeviceUse
from dra_kit.process.metrics import families
from dra_kit.process.metrics.families import Reading
from dra_kit.process.metrics.process import process_readings
from dra_kit.process.watchdog import Watchdog

if TYPE_CHECKING:
    from dra_kit.plugin.health import DeviceHealth

_PATIENCE: Final = 5.0


class NodeReadings:
    """Gives the numbers of now; called in the thread that scrapes.

    Args:
        view: what there is to look at.
        loop: that of the process.
        calls: of the kubelet.
        watchdog: of the loop.
        kopf_restarts: how often kopf was started again.
    """

    def __init__(
        self,
        view: NodeView,
        loop: asyncio.AbstractEventLoop,
        calls: MeasuredService,
        watchdog: Watchdog,
        kopf_restarts: Callable[[], int],
    ) -> None:
        self._view = view
        self._loop = loop
        self._calls = calls
        self._watchdog = watchdog
        self._kopf_restarts = kopf_restarts

    def __call__(self) -> Iterator[Reading]:
        """Yield all of them; those that cannot be read are missing."""
        yield from self._calls.readings()
        status = self._view.kubelet.status
        yield families.REGISTERED.of(int(status is not None and status.registered))
        for read in (self._devices, self._effects, self._state):
            with suppress(DraKitError):  # the disk does not work now, which the log tells
                yield from list(read())
        yield from self._view.publisher.record.readings()
        yield from process_readings("node", self._view.client, self._view.supervisor, self._watchdog)
        yield families.KOPF_RESTARTS.of(self._kopf_restarts())

    def _devices(self) -> Iterator[Reading]:
        recorded = self._view.prepared.recorded()
        yield families.PREPARED_CLAIMS.of(len({use.claim_uid for use in recorded}))
        inventory = self._view.inventory.latest
        health = {(item.pool, item.device): item.status.lower() for item in self._health()}
        used = {(use.pool, use.device) for use in recorded}
        found: Counter[tuple[str, str]] = Counter()
        for pool in inventory.pools if inventory is not None else ():
            for device in pool.devices:
                key = (pool.name or "", device.name)
                found["prepared" if key in used else "free", health.get(key, "not_reported")] += 1
        for labels, count in found.items():
            yield families.DEVICES.of(count, *labels)
        for info in sorted({item for use in self._in_use(recorded) for item in _info(use)}):
            yield families.DEVICE_INFO.of(1, *info)

    def _health(self) -> Sequence[DeviceHealth]:
        return self._view.health() if self._view.health is not None else ()

    def _in_use(self, recorded: Sequence[DeviceUse]) -> Sequence[DeviceUse]:
        """With containers, which only the loop can ask for."""
        asking = asyncio.run_coroutine_threadsafe(self._view.prepared.in_use(), self._loop)
        try:
            return asking.result(_PATIENCE)
        except (TimeoutError, concurrent.futures.CancelledError):
            asking.cancel()
            return recorded

    def _effects(self) -> Iterator[Reading]:
        states = Counter(
            (record.effect, effect_state(record, in_force=self._view.in_force(record)))
            for record in self._view.store.effects()
        )
        for labels, count in states.items():
            yield families.EFFECTS.of(count, *labels)

    def _state(self) -> Iterator[Reading]:
        store = self._view.store
        yield families.STORE_COMMIT_SECONDS.of(store.commit_seconds)
        yield families.STORE_BYTES.of(store.size_bytes())
        yield families.STORE_DAMAGED.of(len(store.damage()))


def _info(use: DeviceUse) -> Iterator[tuple[str, ...]]:
    """Labels of ``dra_device_info``: one series for each hardware id, so that others can be joined with it."""
    for hardware_id in use.hardware_ids or ("",):
        yield (
            use.pool, use.device, use.share, hardware_id, use.namespace, use.claim, use.pod, use.container,
        )  # fmt: skip
