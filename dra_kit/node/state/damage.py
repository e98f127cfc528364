"""Which rows of the database are damaged: each is reported once, and stays until its claim is prepared or released."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dra_kit.errors import StoreError
from dra_kit.node.state.rows import CLAIM, EFFECT, NEED, Damage, Row, claim_of, effect_of, need_of

logger: logging.Logger = logging.getLogger(__name__)

_TABLES: dict[str, tuple[str, Callable[[Row], object]]] = {
    "claims": (CLAIM, claim_of),
    "effects": (EFFECT, lambda row: effect_of(row, ())),
    "effect_claims": (NEED, need_of),
}


class Damages:
    """The damaged rows that were met so far, by whoever read them.

    Args:
        read: all rows of a query.
    """

    def __init__(self, read: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self._read = read
        self._found: dict[tuple[str, str], Damage] = {}

    def found(self, damage: Damage) -> None:
        """Note a damaged row."""
        where = damage.table, damage.key
        if where not in self._found:
            claim, error = damage.claim, damage.error()
            of = {"claim": str(claim), "claim_uid": claim.uid} if claim is not None else {}
            logger.error("damaged record left alone", extra={"error": str(error), "code": error.code, **of})
        self._found[where] = damage

    def look(self) -> list[Damage]:
        """Read everything; all rows that are damaged now.

        Raises:
            StoreError: when the file cannot be read.
        """
        there: list[Damage] = []
        for table, (columns, understand) in _TABLES.items():
            for row in self._read(f"SELECT {columns} FROM {table}"):  # noqa: S608 - constants
                try:
                    found = understand(row)
                except StoreError:  # another release's, and sound; reported where it is needed
                    continue
                if isinstance(found, Damage):
                    self.found(found)
                    there.append(found)
        self._found = {(item.table, item.key): item for item in there}
        return there

    def left(self) -> list[Damage]:
        """Return those met so far that are still there; costs nothing where none was met.

        Raises:
            StoreError: when the file cannot be read.
        """
        return self.look() if self._found else []
