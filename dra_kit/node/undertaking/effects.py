"""Effects in force where the driver's code is not there any more."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NoReturn

from typing_extensions import override

from dra_kit.author.effects.effect import Effect
from dra_kit.errors import TransientError
from dra_kit.node.effects.understanding import EffectClasses
from dra_kit.node.effects.without_class import title_without_class, without_class
from dra_kit.node.state.records import EffectRecord

logger: logging.Logger = logging.getLogger(__name__)

REMEDY = "undertake it with the driver's TARGET, in the driver's image; or give it up with --abandon"


class _Abandoned(Effect[None, Any], id="dra-kit/abandoned"):
    """What nobody can undo: it stays as it is, and is forgotten."""

    what: str
    touched: list[str]

    def keys(self) -> list[str]:
        """Return what the effect touches."""
        return self.touched

    def apply(self, previous: None) -> NoReturn:
        """Refuse: there is no code for it."""
        del previous
        raise TransientError(f"effect {self.what} is not applied: the driver's code is not here", code="no-driver-code")

    def revert(self, outcome: object) -> None:
        """Leave the hardware as it is."""
        del outcome
        logger.warning("effect abandoned", extra={"effect": self.what, "keys": self.touched})


class EffectsWithoutCode(EffectClasses):
    """Undoes the framework's own effects; the others only when they are given up.

    Args:
        abandon: forget effects that only the driver's code can undo, and leave their hardware as it is.
    """

    def __init__(self, *, abandon: bool) -> None:
        super().__init__({})
        self._abandon = abandon

    @property
    @override
    def runs_programs(self) -> bool:
        return True

    @override
    def check(self, stored: Sequence[EffectRecord]) -> None:
        """Refuse nothing: what cannot be undone here is reported when it is to be undone."""

    @override
    def understood(self, record: EffectRecord) -> tuple[Effect[Any, Any], Any]:
        effect = without_class(record)
        if effect is None and self._abandon:
            effect = _Abandoned(what=self.title(record), touched=list(record.keys))
        if effect is None:
            raise TransientError(
                f"effect {self.title(record)} can only be undone by the driver's code; {REMEDY}", code="no-driver-code"
            )
        return effect, None

    @override
    def title(self, record: EffectRecord) -> str:
        return title_without_class(record)
