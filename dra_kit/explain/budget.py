"""How much work an explanation may be: it is bounded whatever the claim, and on every machine at the same place."""

from __future__ import annotations

from typing import Final

_BASE: Final = 3_000_000
"""Units that every explanation has: Kubernetes lets a single evaluation of CEL cost one million, about 0.3 s."""

_PER_DEVICE: Final = 2_000
"""Units for each device of the cluster; a selector of four conditions costs about twenty for one device."""

_PER_CHARACTER: Final = 40
"""Units for each character of a selector, which takes time to be compiled."""

_VISITS: Final = 5 * 1024
"""Units for the visits of devices between two questions of the allocator, whether it is to go on."""


class WorkSpent(Exception):
    """An explanation has become too much work, and stops."""


class Budget:
    """The work that is left to an explanation, in units of the cost of CEL.

    Args:
        devices: how many the cluster has.

    Attributes:
        limit: how much it was in the beginning.
    """

    def __init__(self, devices: int) -> None:
        self.limit: int = _BASE + _PER_DEVICE * devices
        self._left = self.limit

    def renew(self) -> None:
        """Begin with the whole limit again."""
        self._left = self.limit

    def evaluated(self, cost: int) -> None:
        """CEL has been evaluated.

        Raises:
            WorkSpent: that was too much; so is whatever is done later.
        """
        self._left -= cost
        if self._left < 0:
            raise WorkSpent

    def compiled(self, characters: int) -> None:
        """Expressions of so many characters are about to be compiled.

        Raises:
            WorkSpent: see ``evaluated``.
        """
        self.evaluated(characters * _PER_CHARACTER)

    def asked(self) -> bool:
        """Charge the allocator's visits of devices and return False; for ``is_aborted`` of its attempts.

        Raises:
            WorkSpent: see ``evaluated``.
        """
        self.evaluated(_VISITS)
        return False
