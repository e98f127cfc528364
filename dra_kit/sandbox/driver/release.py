"""A driver as it runs on one node of a sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct
from pydantic import BaseModel

from dra_kit.author.driver import Driver


class Release(Struct, frozen=True):
    """A driver for one node.

    Attributes:
        driver: one that never ran.
        author: the author's settings there.
        target: the TARGET that it was loaded from; empty where it was none.
        folder: where the TARGET begins.
    """

    driver: Driver[Any, Any]
    author: BaseModel | None
    target: str = ""
    folder: Path = Path()
