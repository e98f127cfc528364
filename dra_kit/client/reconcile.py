"""A watch that is a hint to look again, for what is held against the server anyway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NoReturn

from dra_kit.errors import KubeError
from dra_kit.kube.client import Client
from dra_kit.kube.informer import Informer
from dra_kit.kube.resources import Resource

logger: logging.Logger = logging.getLogger(__name__)

_REFUSED_SECONDS: Final = 60.0


async def look_again_on_changes(
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
