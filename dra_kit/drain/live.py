"""Who holds devices now, and waiting until nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_kit import __version__
from dra_kit.drain.holders import Holders, holders
from dra_kit.errors import Unavailable
from dra_kit.kube.client import Client
from dra_kit.kube.connection.credentials import Credentials
from dra_kit.kube.resources import RESOURCE_CLAIMS
from dra_kit.kube.versions import discover

_LOOK_EVERY: Final = 2.0
_METADATA: Final = ("name", "namespace", "uid")


async def wait_drained(
    credentials: Credentials,
    driver: str,
    node: str | None = None,
    *,
    wait: float = 0.0,
    changed: Callable[[Holders], None],
) -> Holders:
    """Return the holders of devices of a driver, once there is none or the time is over.

    Args:
        credentials: may list resourceclaims of resource.k8s.io in all namespaces, and need no other right.
        driver: its name.
        node: only devices of this node; None for all.
        wait: seconds to wait until nobody holds any.
        changed: called with the holders, each time they are others.

    Raises:
        ConfigurationError: a claim is not understood, or the cluster does not serve resource.k8s.io/v1.
        KubeError: the API server refuses, or does not answer; while it is waited for others, one that does not is asked
            again until the time is over.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    before: Holders | None = None
    async with Client(credentials, user_agent=f"dra-kit/{__version__} drain") as client:
        await discover(client)
        while True:
            try:
                claims = (await client.list(RESOURCE_CLAIMS, keep=_relevant)).items
            except Unavailable:
                if before is None or loop.time() >= until:
                    raise
            else:
                found = holders(claims, driver, node)
                if found != before:
                    changed(found)
                if not found.held or loop.time() >= until:
                    return found
                before = found
            await asyncio.sleep(min(_LOOK_EVERY, max(until - loop.time(), 0.0)))


def _relevant(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a claim that matters; configs may be most of it, and do not."""
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    return {
        "metadata": {key: metadata[key] for key in _METADATA if key in metadata},
        "status": {key: status[key] for key in ("allocation", "reservedFor") if key in status},
    }
