"""kopf's handler of claims: an adapter onto :class:`~dra_kit.controller.claims.follower.ClaimFollower`."""

from __future__ import annotations

import asyncio

from dra_kit.controller.claims.follower import ClaimFollower
from dra_kit.kube.operator.operator import kopf, on_event
from dra_kit.kube.resources import RESOURCE_CLAIMS


def register(registry: kopf.OperatorRegistry, follower: ClaimFollower, loop: asyncio.AbstractEventLoop) -> None:
    """Register the handler.

    Args:
        registry: of the life that is being built.
        follower: what the events are for.
        loop: the follower's loop.
    """
    on_event(registry, RESOURCE_CLAIMS, follower.on_claim, id="follow-claims", loop=loop)
