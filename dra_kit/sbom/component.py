"""A Python distribution as a part of something larger."""

from __future__ import annotations

import re

from msgspec import Struct


class Component(Struct, frozen=True):
    """A distribution in one version.

    Attributes:
        name: normalized, as in ``pip freeze`` of today: ``kubernetes-asyncio``.
        version: of it.
        hashes: SHA-256 of the files that it may be installed from, where that is known.
        licence: its SPDX expression, or what it says in its place; empty where it says nothing.
        requires: names of those that it needs; None where that is not known.
    """

    name: str
    version: str
    hashes: tuple[str, ...] = ()
    licence: str = ""
    requires: tuple[str, ...] | None = None

    @property
    def purl(self) -> str:
        """Its package URL: what scanners look it up by."""
        return f"pkg:pypi/{self.name}@{self.version}"


def normalized(name: str) -> str:
    """Return a distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
