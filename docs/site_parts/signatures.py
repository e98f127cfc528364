"""Short signatures of models, dataclasses and structs, with annotations as written in the source."""

from __future__ import annotations

from typing import Any

from dra_kit.cli.api import signature_of


def of(what: Any) -> str | None:
    """Return for example ``(*, name: str, taints: Sequence[DeviceTaint] = ())``; None for any other object."""
    return signature_of(what) if isinstance(what, type) else None
