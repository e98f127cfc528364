"""``dra-kit node --dump-state``: what the node knows, for people and for machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.salvage import is_damaged
from dra_kit.node.state.store import Store


def dump_state(database: Path) -> dict[str, Any]:
    """Return records, effects and epochs of a node as JSON, what is damaged of them, and whether some were lost.

    Raises:
        ConfigurationError: when there is no state there.
        StoreError: when it cannot be read.
    """
    if not database.exists():
        raise ConfigurationError(f"there is no state at {database}; correct --state-dir or --kubelet-dir")
    if is_damaged(database):
        raise StoreError(
            f"state {database} is damaged; the node sets it aside and carries over what can be read when it starts"
        )
    store = Store(database)
    try:
        return {
            "claims": [_claim(record) for record in store.claims()],
            "effects": [effect.model_dump(mode="json") for effect in store.effects()],
            "epochs": store.epochs(),
            "damaged": [str(item) for item in store.damage()],
            "incomplete": store.incomplete(),
        }
    finally:
        store.close()


def _claim(record: ClaimRecord) -> dict[str, Any]:
    dumped = record.model_dump(mode="json")
    preparing = dumped.pop("preparing")
    return dumped | {"phase": "preparing"} if preparing else dumped
