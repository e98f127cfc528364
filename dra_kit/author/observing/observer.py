"""``ClaimObserver``: an author's hooks on the life of claims, run in the controller."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from dra_kit.author.controller_bound import ControllerBound
from dra_kit.author.observing.observed import ObservedClaim
from dra_kit.author.preparing.claim import ConsumerReference
from dra_kit.author.type_parameters import AuthorSettingsT


class ClaimObserver(ControllerBound[AuthorSettingsT]):
    """Learns what becomes of claims that hold devices of this driver; each method may be ``def`` or ``async def``.

    The hooks run in the active replica of the controller, far from the node: they can neither hinder nor delay a pod.
    ``self.context`` has the driver's settings, of the type that ``ClaimObserver[Settings]`` says, and ``metrics``.

    - Each is called **at least once**: again when the controller is started again or another replica takes over. Make
      them idempotent, by ``claim.uid``.
    - When a replica becomes active, ``allocated`` and ``reserved`` are called for every claim that holds devices, old
      ones too; then what happened while the lease changed hands, and what a replica that was killed had not finished,
      for half an hour. What was released while no replica ran at all is not
      reported: compare with what ``allocated`` tells at the start.
    - Those of one claim come one after the other, in order; those of different claims overlap.
    - A :class:`~dra_kit.TransientError` is tried again, after 1 s, 2 s, 5 s, 15 s and then every minute; later hooks of
      that claim wait for it, no other claim does. Any other exception is logged, and the hook is over.
    """

    def allocated(self, claim: ObservedClaim) -> Awaitable[None] | None:
        """React to a claim to which the scheduler gave ``claim.devices``."""
        del claim
        return None

    def reserved(self, claim: ObservedClaim, consumers: Sequence[ConsumerReference]) -> Awaitable[None] | None:
        """React to ``consumers`` that may use the claim from now on; usually one pod."""
        del claim, consumers
        return None

    def released(self, claim: ObservedClaim, consumers: Sequence[ConsumerReference]) -> Awaitable[None] | None:
        """React to ``consumers`` that no longer use the claim, or to a deallocation: ``claim.devices`` says which.

        In the first case the claim keeps the devices, in the second ``claim.consumers`` is empty.
        """
        del claim, consumers
        return None

    def deleted(self, claim: ObservedClaim) -> Awaitable[None] | None:
        """React to a claim that is gone, and with it its hold on ``claim.devices``."""
        del claim
        return None
