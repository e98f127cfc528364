"""Who has which device, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_kit.kubelet.device_use import DeviceUse
from dra_kit.operation.table import table

_HEADINGS: Final = ("DRIVER", "POOL", "DEVICE", "SHARE", "HARDWARE", "CLAIM", "POD", "CONTAINER")


def who_table(uses: Sequence[DeviceUse]) -> str:
    """Return the table; with a column for nodes where there are several.

    Args:
        uses: its rows.
    """
    several = len({use.node for use in uses}) > 1
    rows = [
        [
            *([use.node] if several else []),
            use.driver,
            use.pool,
            use.device,
            use.share,
            ",".join(use.hardware_ids),
            _named(use.namespace, use.claim) or (f"uid {use.claim_uid}" if use.claim_uid else ""),
            _named(use.namespace, use.pod),
            use.container,
        ]
        for use in uses
    ]
    return table([*(["NODE"] if several else []), *_HEADINGS], rows)


def _named(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if name else ""
