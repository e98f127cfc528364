"""Claims that the driver has refused for good: whoever waits for their pods need not wait on."""

from __future__ import annotations

import logging
import threading
from typing import Final

from dra_kit.process.logging import fields_of


class Refusals(logging.Handler):
    """Permanent errors of claims, as the driver's roles log them; a logging handler for the root logger.

    The wire to the kubelet has a text for an error and nothing of its kind.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._texts: Final[dict[str, str]] = {}
        self._guard: Final = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a permanent error, or that a claim is prepared, or has failed in another way."""
        if not record.name.startswith("dra_kit.node.claims"):
            return
        fields = fields_of(record)
        if not isinstance(claim := fields.get("claim"), str):
            return
        with self._guard:
            if fields.get("permanent"):
                self._texts[claim] = str(fields.get("error", ""))
            else:
                self._texts.pop(claim, None)

    def of(self, namespace: str, claim: str) -> str:
        """Return the permanent error that the driver gave last for a claim; empty without one."""
        with self._guard:
            return self._texts.get(f"{namespace}/{claim}", "")

    def forget(self, namespace: str) -> None:
        """Forget refusals: something has changed, so that claims of a namespace may be prepared after all."""
        with self._guard:
            for claim in [name for name in self._texts if name.startswith(f"{namespace}/")]:
                del self._texts[claim]
