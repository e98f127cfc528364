"""What reconcile loops share: retry delays, waiting for an event, and a watch as a hint to look again."""

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
    """Call ``look_again`` whenever one of the objects changes; while the server refuses the watch, it is not called.

    Args:
        client: to watch with.
        resource: of the objects.
        look_again: called for each change, and for the first list.
        field_selector: of the server.
        label_selector: of the server.
    """
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
"""Seconds to wait after the first error in a row, the second, and so on; the last for all that follow."""


def retry_delay(attempt: int) -> float:
    """Return the seconds to wait after an attempt that failed; the first is 0."""
    return RETRY[min(attempt, len(RETRY) - 1)]


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until something happens, at most so long; whether it has.

    Not :func:`asyncio.wait_for`, which up to Python 3.11 forgets that it is cancelled when the event comes in the same
    moment: the process would wait in vain for a publisher that goes on.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
