"""kopf handlers of the node role: a change of our slices on this node makes the publisher look again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from dra_kit.client.operator import EventType, kopf, kopf_settings, on_event
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.node.slices import field_selector


def build_slice_registry(
    driver: str, node_name: str, look_again: Callable[[], None], loop: asyncio.AbstractEventLoop
) -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
    """Return registry and settings of one life of kopf; nothing but this driver's slices of this node is watched."""
    registry = kopf.OperatorRegistry()

    async def slice_changed(event: EventType, _: Mapping[str, Any]) -> None:
        if event is not None:  # what the initial list shows, the publisher has listed itself
            look_again()

    on_event(registry, RESOURCE_SLICES, slice_changed, id="slice-changed", loop=loop)
    return registry, kopf_settings({RESOURCE_SLICES: field_selector(driver, node_name)})
