"""How a process starts with one corrupt byte in its state.

Two snapshots of a node with prepared claims are taken: after kill -9, with the log, and after a clean exit. Each seed
restores one of the two, changes one byte and starts the driver.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dra_kit.errors import ConfigurationError, KubeletError, StoreError
from dra_kit.kubelet.plugin_client import DeviceAnswer
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.support.write_ahead import in_use
from tests.unit.node.drivers import Oven, driver
from tests.unit.node.hardware import Baker, Hardware, Heat
from tests.unit.node.role import DRIVER, Node

CLAIMS = 6
_OUTCOMES = {
    "state has lost transactions": "lost transactions",
    "corrupt state moved away, readable rows copied to a new one": "database renamed",
    "corrupt record skipped": "record corrupt",
    "corrupt form of the state repaired": "schema corrupt",
}


class Log(logging.Handler):
    """Collects the outcomes that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.outcomes: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if (what := _OUTCOMES.get(record.getMessage())) is not None:
            self.outcomes.add(what)


@contextmanager
def listening() -> Iterator[Log]:
    log = Log()
    logger = logging.getLogger("dra_kit")
    logger.addHandler(log)
    try:
        yield log
    finally:
        logger.removeHandler(log)


@dataclass
class Snapshot:
    """The files of a node that cannot be derived from others."""

    state: dict[str, bytes]
    specs: dict[str, bytes]

    @classmethod
    def of(cls, node: Node) -> Self:
        state = {path.name: path.read_bytes() for path in _state(node).iterdir() if path.is_file()}
        return cls(state, node.contents())

    def restore(self, node: Node) -> None:
        for path in (*_state(node).iterdir(), *node.specs()):
            if path.is_file():
                path.unlink()
        for directory, files in ((_state(node), self.state), (node.cdi, self.specs)):
            for name, content in files.items():
                (directory / name).write_bytes(content)


class CorruptState:
    """Starts one node with corrupt states.

    Args:
        node: a fresh one.
        effects: whether its driver changes hardware.
    """

    def __init__(self, node: Node, *, effects: bool) -> None:
        self._node = node
        self._effects = effects
        self._claims = [node.claim(f"lunch-{index}", [f"pizza-{index}"]) for index in range(CLAIMS)]
        self._more = node.claim("more", [f"pizza-{CLAIMS}"])
        self._answers: dict[str, list[DeviceAnswer]] = {}
        self._records: dict[str, Any] = {}
        self._on: dict[str, int] = {}
        self._snapshots: dict[str, Snapshot] = {}

    async def prepare(self) -> None:
        """Prepare claims and take the snapshots."""
        Heat.hardware = Hardware()
        async with self._node.running(self._driver()):
            for claim in self._claims:
                self._answers[claim.uid] = await self._node.prepare(claim)
            self._snapshots["killed"] = Snapshot.of(self._node)
            self._records = {item["uid"]: item for item in self._node.state()["claims"]}
        self._snapshots["stopped"] = Snapshot.of(self._node)
        self._on = dict(Heat.hardware.on)

    async def live(self, seed: int) -> str:
        """Change one byte, start the driver, prepare and release claims; return what was reported.

        Raises:
            AssertionError: something was lost without a report, or a pod cannot be deleted.
        """
        chance = random.Random(seed)  # noqa: S311 - to be repeated
        before = self._snapshots[chance.choice(("killed", "stopped"))]
        before.restore(self._node)
        files = [name for name in before.state if name.endswith((".sqlite", ".sqlite-wal")) and before.state[name]]
        path = _state(self._node) / chance.choice(files)
        data = bytearray(path.read_bytes())
        # the unused end of a log is never read
        places: Sequence[int] = range(in_use(data) if path.suffix == ".sqlite-wal" else len(data))
        if chance.random() < 0.5:  # much of a page is empty
            places = [place for place in places if data[place]]
        data[chance.choice(places)] ^= chance.randrange(1, 256)
        path.write_bytes(data)
        Heat.hardware = Hardware()
        Heat.hardware.on = dict(self._on)
        with listening() as log:
            try:
                async with self._node.running(self._driver()):
                    await self._served(chance, before, log)
            except (ConfigurationError, StoreError) as error:
                if str(self._node.settings().database(DRIVER)) not in str(error):
                    raise
                return "rejected by name"
        return ", ".join(sorted(log.outcomes)) or "no effect"

    async def _served(self, chance: random.Random, before: Snapshot, log: Log) -> None:
        node, hardware = self._node, Heat.hardware
        state = node.state()
        found = {item["uid"]: item for item in state["claims"]}
        if found != self._records or state["incomplete"] or state["corrupt"]:
            assert log.outcomes, f"records {sorted(found)} without a report"
        assert node.contents().keys() >= before.specs.keys(), "files of containers that may start again"
        assert "revert" not in [entry[0] for entry in hardware.log], "an effect that a claim needs is reverted"
        assert hardware.on.items() >= self._on.items()
        for claim in chance.sample(self._claims, 3):
            assert await node.prepare(claim) == self._answers[claim.uid]
        await node.prepare(self._more)
        for claim in (*self._claims, self._more):
            await _released(node, claim)
        assert node.specs() == []
        state = node.state()
        assert state["claims"] == []
        assert not state["effects"] or state["corrupt"], "an effect that no claim needs is kept without a report"
        if hardware.on:
            assert log.outcomes, f"{hardware.on} is in force without a report"

    def _driver(self) -> Any:
        provider = Oven(*(f"pizza-{index}" for index in range(CLAIMS + 1)))
        if not self._effects:
            return driver(provider=provider)
        baker = Baker()
        baker.ovens = {name: f"oven-of-{name}" for name in ("more", *(claim.name for claim in self._claims))}
        return driver(baker, provider, effects=[Heat])


async def _released(node: Node, claim: ClaimReference) -> None:
    try:
        await node.unprepare(claim)
    except KubeletError as error:
        raise AssertionError(f"the pod of {claim} cannot be deleted: {error}") from error


def _state(node: Node) -> Path:
    return node.settings().database(DRIVER).parent
