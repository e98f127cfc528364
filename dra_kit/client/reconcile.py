"""Shared by reconcile loops: retry delays, waiting for an event, and a watch as a trigger to reconcile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from dra_kit.client.api import Client
from dra_kit.client.informer import Informer
from dra_kit.client.resources import Resource
from dra_kit.errors import KubeError

logger: logging.Logger = logging.getLogger(__name__)
_REFUSED_SECONDS: Final = 60.0


async def call_on_changes(
    client: Client,
    resource: Resource,
    look_again: Callable[[], None],
    *,
    field_selector: str = "",
    label_selector: str = "",
) -> NoReturn:
    """Call ``look_again`` for each object and each change of one; not while the server rejects the watch."""
    logged = ""
    while True:
        informer = Informer(client, resource, field_selector=field_selector, label_selector=label_selector)
        try:
            async for _ in informer.changes():
                look_again()
        except KubeError as error:
            level = logging.DEBUG if str(error) == logged else logging.WARNING
            logger.log(
                level, "changes by others are seen late",
                extra={"resource": resource.full_name, "error": str(error), "code": error.code},
            )  # fmt: skip
            logged = str(error)
        await asyncio.sleep(_REFUSED_SECONDS)


RETRY: Final = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds to wait after the first error in a row, the second, and so on; the last value repeats."""


def retry_delay(attempt: int) -> float:
    """Return the seconds to wait after a failed attempt; the first attempt is 0."""
    return RETRY[min(attempt, len(RETRY) - 1)]


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most this many seconds; return whether it was set.

    :func:`asyncio.wait_for` is not used: up to Python 3.11 it loses a cancellation that coincides with the event, and
    the process would wait in vain for a publisher that keeps running.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
