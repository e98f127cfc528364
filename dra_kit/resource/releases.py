"""The releases of Kubernetes that drivers are made for: everything that depends on them takes them from here."""

from __future__ import annotations

from typing import Final, NamedTuple


class Release(NamedTuple):
    """A release of Kubernetes, written as ``1.37``."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OLDEST: Final = Release(1, 34)
"""The first one that serves resource.k8s.io/v1 by default."""

NEWEST: Final = Release(1, 37)
"""The one whose fields, feature gates and rules are known, and that the sandbox takes as its model."""
