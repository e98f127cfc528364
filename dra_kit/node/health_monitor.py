"""Health on a node: from the source's reports to slices, the kubelet and Events, off the way of the kubelet's calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.health import HealthSource, Healthy
from dra_kit.author.devices.inventory import Inventory
from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.node.health.advertising import advertised
from dra_kit.node.health.conditions import Moment, Problem, present
from dra_kit.node.health.identity import Identity, Key, identity, identity_of
from dra_kit.node.health.ledger import Ledger, Remembered, Verdict
from dra_kit.node.health.memory import FILE, HealthMemory
from dra_kit.node.health.recovery import Recovery
from dra_kit.node.health.watching import Watching
from dra_kit.node.waiting import in_thread
from dra_kit.plugin.health import DeviceHealth, HealthStreams
from dra_kit.publishing.inventory import CurrentInventory

logger: logging.Logger = logging.getLogger(__name__)

SETTLE: Final = 0.02
"""Seconds in which several reports become one look at what follows."""
STORE_AGAIN: Final = 5.0
"""Seconds until what could not be stored is tried again."""
_LINES_MAX: Final = 64
"""Different mistakes of a source that are logged."""


class DeviceChanged(Protocol):
    """Is notified of each problem that begins to count, or ends."""

    def __call__(self, pool: str, device: str, text: str, *, healthy: bool) -> None:
        """Report a device with a text for people; ``healthy`` when a problem ends."""
        ...


def monitor_of(
    driver: str,
    source: HealthSource[Any, Any, Any],
    *,
    state_dir: Path,
    current: CurrentInventory,
    publish: Callable[[Inventory[Device]], None],
    changed: DeviceChanged,
) -> Monitor:
    """Return the monitor of a node's driver, with what the process before has stored.

    Args:
        driver: its name.
        source: the author's.
        state_dir: where it is stored.
        current: knows the devices.
        publish: takes what is to be published from now on.
        changed: notified of each problem.
    """
    memory = HealthMemory(state_dir / FILE)
    ledger = Ledger(driver, source, identity_of)
    memory.sweep()
    ledger.remember(memory.read())
    return Monitor(
        source,
        ledger,
        memory,
        identity=partial(identity, current),
        publish=publish,
        streams=HealthStreams(),
        changed=changed,
    )


class Monitor:
    """A part of the node process; belongs to the main loop.

    Args:
        source: the author's.
        ledger: what is known, with what the process before has stored.
        memory: where it is stored.
        identity: of a device of the latest inventory.
        publish: takes what is to be published from now on.
        streams: see the attribute.
        changed: notified of each problem that begins to count, or ends.
        now: the present.

    Attributes:
        streams: tells the kubelet.
    """

    name = "health"

    def __init__(
        self,
        source: HealthSource[Any, Any, Any],
        ledger: Ledger,
        memory: HealthMemory,
        *,
        identity: Callable[[Key], Identity],
        publish: Callable[[Inventory[Device]], None],
        streams: HealthStreams,
        changed: DeviceChanged,
        now: Callable[[], Moment] = present,
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._memory = memory
        self._identity = identity
        self._publish = publish
        self.streams = streams
        self._changed = changed
        self._now = now
        self._watching = Watching(source, self._wake)
        self._recovery = Recovery(source, ledger, now, self._wake)
        self._inventory: Inventory[Device] | None = None
        self._known = asyncio.Event()  # the first inventory
        self._news = asyncio.Event()
        self._published: object = None  # what follows for slices of what was published last
        self._shown: list[DeviceHealth] = []  # to the kubelet
        self._problems = ledger.problems()
        self._stored = _worth_storing(ledger.remembered())
        self._store_at: float | None = None
        self._logged: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []  # who wants to know that what follows is handed on

    def inventory_changed(self, inventory: Inventory[Device]) -> None:
        """Publish another inventory with what is known of its devices."""
        self._inventory = inventory
        found = {(pool.name or "", device.name): device for pool in inventory.pools for device in pool.devices}
        self._ledger.inventory({key: (device, self._identity(key)) for key, device in found.items()})
        self._source.devices = tuple(found.values())
        self._known.set()
        self._advertise(inventory, self._ledger.verdicts())
        self._wake()

    def shown(self) -> Sequence[DeviceHealth]:
        """Return what the kubelet got last of each device; from any thread."""
        return self._shown

    def process_ended(self) -> None:
        """React to the end of another process of the driver, whose source may have seen more than ours."""
        self._ledger.adopt(self._memory.of_another())
        self._wake()

    async def inject(self, device: str, pool: str | None, reason: str, problem: tuple[str, str | None] | None) -> None:
        """Make something wrong with a device, with message and value, or take that back; for drills and tests.

        When it returns, what follows has been handed on.

        Raises:
            ConfigurationError: there is no such device, or the policy has no such reason.
        """
        now = self._now()
        self._ledger.inject(device, pool, reason, problem, now)
        if problem is None:
            self._recovery.soon([(device, reason)], now)
        self._wake()
        followed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(followed)
        await followed

    def hanging(self, patience: float) -> list[str]:
        """Return a line while the source hangs, as far as that can be known; from any thread."""
        return self._watching.hanging(patience)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; the author's code may be called."""
        ready.set()
        await self._known.wait()
        self._watching.start()
        try:
            while True:
                self._news.clear()
                now = self._now()
                self._take(now)
                self._ledger.settle(now)
                if self._is_to_be_stored(now):  # what another process has stored is not to be written over
                    self._ledger.adopt(self._memory.of_another())
                self._recovery.ask(now)
                waiting, self._waiting = self._waiting, []
                await self._follow(now)
                for item in waiting:
                    if not item.done():
                        item.set_result(None)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._news.wait()
                        await asyncio.sleep(SETTLE)  # a source says something of each device in one go
        finally:
            self._watching.stop()
            self._recovery.stop()

    def _wake(self) -> None:
        self._news.set()

    def _pause(self) -> float | None:
        """Return seconds until there is something to do by itself."""
        times = (self._ledger.due(), self._store_at, self._recovery.due())
        at = min((time for time in times if time is not None), default=None)
        return None if at is None else max(0.0, at - self._now().seconds)

    def _take(self, now: Moment) -> None:
        healthy = set()
        for report in self._watching.take():
            try:
                self._ledger.take(report, now)
            except ConfigurationError as error:
                if (text := str(error)) not in self._logged and len(self._logged) < _LINES_MAX:
                    self._logged.add(text)
                    logger.error("health report not understood", extra={"error": text, "code": error.code})
            else:
                if isinstance(report, Healthy):
                    healthy.add((report.device.name, report.reason))
        if healthy:
            self._recovery.soon(healthy, now)

    # -- what follows

    async def _follow(self, now: Moment) -> None:
        """Store, publish and tell what is different from before; stored first, so that no taint is lost by a crash."""
        before, self._problems = self._problems, self._ledger.problems()
        self._report(before, self._problems, now)
        await self._store(now)
        verdicts = self._ledger.verdicts()  # there may be another inventory meanwhile
        if self._inventory is not None and self._published != _for_slices(verdicts):
            self._advertise(self._inventory, verdicts)
        shown = [
            DeviceHealth(pool, device, *verdict.reported)
            for (pool, device), verdict in verdicts.items()
            if verdict.reported is not None
        ]
        if shown != self._shown:
            self._shown = shown
            self.streams.report(shown, now.date)

    def _advertise(self, inventory: Inventory[Device], verdicts: Mapping[Key, Verdict]) -> None:
        self._published = _for_slices(verdicts)
        self._publish(advertised(inventory, verdicts))

    def _report(
        self, before: Mapping[Key, Mapping[str, Problem]], after: Mapping[Key, Mapping[str, Problem]], now: Moment
    ) -> None:
        for key in {**before, **after}:
            old, new = before.get(key, {}), after.get(key, {})
            for reason in {**old, **new}:
                if (reason in old) is (reason in new):
                    continue
                problem, over = (old[reason], True) if reason in old else (new[reason], False)
                logger.log(
                    logging.INFO if over else logging.WARNING,
                    "device is well again" if over else "device is unhealthy",
                    extra={"pool": key[0], "device": key[1], "reason": reason, "error": problem.message},
                )
                if not over:
                    self._recovery.begun(key, reason, now)
                text = f"{reason}: {problem.message}" if problem.message else reason
                self._changed(*key, text, healthy=over)

    async def _store(self, now: Moment) -> None:
        if not self._is_to_be_stored(now):
            return
        known = self._ledger.remembered()
        try:
            await in_thread(self._memory.write, known)
        except StoreError as error:  # what follows of it is more urgent than that the next process knows it
            if self._store_at is None:
                logger.error("health of devices not stored", extra={"error": str(error), "code": error.code})
            self._store_at = now.seconds + STORE_AGAIN
        else:
            self._stored, self._store_at = _worth_storing(known), None

    def _is_to_be_stored(self, now: Moment) -> bool:
        different = _worth_storing(self._ledger.remembered()) != self._stored
        return different and (self._store_at is None or now.seconds >= self._store_at)


def _for_slices(verdicts: Mapping[Key, Verdict]) -> object:
    return {key: (item.taints, item.withdrawn) for key, item in verdicts.items() if item.taints or item.withdrawn}


def _worth_storing(known: Sequence[Remembered]) -> object:
    """Return what is worth storing of devices: not the wording of a problem."""
    return [
        (item.key, dict(item.identity), [(one.reason, one.value, one.since) for one in item.problems]) for item in known
    ]
