"""Which claims are being prepared, and what of that a release has made void."""

from __future__ import annotations

from collections.abc import Callable

from dra_kit.node.locks.named import Locks
from dra_kit.node.state.store import Store
from dra_kit.node.steps import Step, reached


class Epochs:
    """A release ends the epoch of its claim: what began to prepare the claim before that can no longer be stored.

    Args:
        store: keeps the epochs, for the driver's other process too.
        claims: the locks of all claims.
    """

    def __init__(self, store: Store, claims: Locks) -> None:
        self._store = store
        self._claims = claims
        self._preparing: dict[str, int] = {}
        self._ended: set[str] = set()

    def preparing(self) -> set[str]:
        """Return UIDs of the claims that this process prepares now."""
        return set(self._preparing)

    def begin(self, uid: str) -> int:
        """Return the epoch of the preparing that begins here; until :meth:`over` is called, a release finds it."""
        epoch = self._store.epoch()
        self._preparing[uid] = self._preparing.get(uid, 0) + 1
        return epoch

    async def over(self, uid: str) -> None:
        """Note that a preparing has ended, however that went."""
        self._preparing[uid] -= 1
        await self._forget(uid)

    async def end(self, uid: str) -> None:
        """Note that the claim is to be released: a preparing that runs now comes to nothing."""
        if uid in self._preparing:
            self._ended.add(uid)
            await self._store.end_epoch(uid)
            reached(Step.EPOCH_ENDED)
            await self._forget(uid)
        elif self._claims.held_elsewhere(uid):  # the driver's other process may be preparing it
            await self._store.end_epoch(uid)
            reached(Step.EPOCH_ENDED_ELSEWHERE)

    async def _forget(self, uid: str) -> None:
        if not self._preparing.get(uid):
            self._preparing.pop(uid, None)
            if uid in self._ended:
                self._ended.discard(uid)
                await self._store.forget_epoch(uid)
                reached(Step.EPOCH_FORGOTTEN)

    async def forget_unneeded(self, alone: Callable[[], bool]) -> None:
        """Drop the epochs that only other processes needed, if there is none; asked when the epochs are known."""
        epochs = self._store.epochs()
        if epochs and alone():
            self._ended |= epochs.keys() & self._preparing.keys()  # forgotten when that has ended
            if unneeded := [n for uid, n in epochs.items() if uid not in self._preparing]:
                await self._store.forget_epochs(unneeded)
