"""Runs an author's ``discover`` in a thread of its own and hands every inventory to the main loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, cast

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.inventory import Inventory
from dra_kit.errors import InvalidDevice
from dra_kit.process.generators import GeneratorThread, Words, threadsafe
from dra_kit.publishing.acceptance import Acceptance
from dra_kit.publishing.inventory import CurrentInventory
from dra_kit.publishing.log_messages import DISCOVER_FAILED
from dra_kit.publishing.scope import Source

logger: logging.Logger = logging.getLogger(__name__)
LOOK_AGAIN_AFTER: Final = 1.0
BELIEVED_AFTER: Final = 30.0
_MANY: Final = 200
_SOON: Final = 10.0
"""Inventories within so many seconds: hardware does not change that often, a loop without a pause does."""


class Discovery:
    """A part of a process: the provider's generator, again and again as asked.

    Args:
        source: whose provider is run.
        current: where inventories go.
        look_again_after: seconds from a pool that is suddenly empty to another look.
        believed_after: seconds until it is believed of a plain generator that waits and cannot be asked.
    """

    name = "discovery"

    def __init__(
        self,
        source: Source,
        current: CurrentInventory,
        *,
        look_again_after: float = LOOK_AGAIN_AFTER,
        believed_after: float = BELIEVED_AFTER,
    ) -> None:
        self._acceptance = Acceptance(source, self._device_dropped)
        self._current = current
        self._look_again_after = look_again_after
        self._believed_after = believed_after
        self._taking = threading.Lock()
        self._taken = 0  # how often something was yielded
        self._loop: asyncio.AbstractEventLoop | None = None
        self._title = f"{type(source.provider).__name__}.discover"
        self._thread = GeneratorThread(
            source.provider.discover,
            self._deliver,
            failed=partial(setattr, current, "problem"),
            words=_texts(self._title),
            logger=logger,
            every=source.rescan_every,
        )
        self._dropped: set[str] = set()
        self._yields: deque[float] = deque(maxlen=_MANY)  # when the last ones came
        self._logged_busy = False

    def rescan(self) -> None:
        """Start ``discover`` again; a running async generator is closed first. From any thread."""
        self._thread.restart()

    def hanging(self, patience: float) -> list[str]:
        """Return a line while ``discover`` gives no inventory for longer than ``patience`` seconds.

        It tells where in ``discover`` that is.

        Once it has yielded, it may wait for changes of the hardware as long as it likes. May be asked from any thread.
        """
        asked, now = self._thread.asked, time.monotonic()
        if asked is None or now - asked <= patience:
            return []
        return [f"{self._title} has not yielded an inventory for {now - asked:.0f} s{self._thread.place}"]

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready with the first inventory."""
        self._loop = asyncio.get_running_loop()
        self._current.listen(lambda _: ready.set())
        await self._thread.run()

    def _deliver(self, yielded: object) -> None:
        self._look_at_pace()
        self._take(yielded)

    def _look_at_pace(self) -> None:
        """Tell once of a ``discover`` that yields without a pause: nothing else shows what keeps a processor busy."""
        if self._logged_busy:
            return
        now = time.monotonic()
        self._yields.append(now)
        if len(self._yields) < _MANY or now - self._yields[0] > _SOON:
            return
        self._logged_busy = True
        remedy = "wait between two inventories, for example with context.stopping.sleep(5) or blocking_sleep(5)"
        logger.error(
            "discover yields without a pause, which keeps a processor busy",
            extra={"method": self._title, "inventories": _MANY, "seconds": round(now - self._yields[0], 1),
                   "remedy": remedy},
        )  # fmt: skip

    def _take(self, yielded: object) -> None:
        loop = self._loop
        if loop is None:
            return
        with self._taking:
            self._taken += 1
            number, accepted = self._taken, self._acceptance.accept(yielded)
            if accepted is None:
                threadsafe(loop, self._current.confirm)
                return
            threadsafe(loop, lambda: self._current.replace(accepted.inventory, accepted.identities))
        if accepted.emptied:
            logger.warning(
                "pools without devices are kept until they are found so again",
                extra={"pools": ",".join(accepted.emptied), "again_in": self._look_again_after},
            )
            inventory = yielded if isinstance(yielded, Inventory) else tuple(cast("Sequence[Device]", yielded))
            threadsafe(loop, lambda: loop.call_later(self._look_again_after, self.rescan))
            threadsafe(loop, lambda: loop.call_later(self._believed_after, self._take_unless_newer, inventory, number))

    def _take_unless_newer(self, yielded: object, number: int) -> None:
        """Take as current what a waiting generator yielded last."""
        if self._taken == number and self._thread.asked is None and not self._thread.failure:
            self._take(yielded)

    def _device_dropped(self, name: str, rule: str) -> None:
        if rule not in self._dropped:
            self._dropped.add(rule)
            logger.error("device dropped", extra={"device": name, "error": rule, "code": InvalidDevice.default_code})


def _texts(title: str) -> Words:
    return Words(
        title=title,
        failed=DISCOVER_FAILED,
        again="discover failed again",
        returns="write 'yield [...]' instead of 'return [...]'",
        empty="an inventory; yield [] when there are no devices",
        code="invalid-discover",
    )
