"""How the node role runs at the end of a driver."""

from __future__ import annotations

from msgspec import Struct

from dra_kit.node.effects.understanding import EffectClasses


class Undertaking(Struct, frozen=True, kw_only=True):
    """What is different from an ordinary node.

    Attributes:
        classes: undo what is in force; None for the driver's own effect classes.
        stays: go on when nothing is left, as a DaemonSet must: what ends is started again.
    """

    classes: EffectClasses | None = None
    stays: bool = False

    @property
    def has_code(self) -> bool:
        """Whether the driver's own code is here."""
        return self.classes is None
