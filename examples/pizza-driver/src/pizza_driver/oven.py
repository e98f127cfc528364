"""The oven of a node: hardware that is changed for a claim and restored afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

import dra_kit as dra
from typing_extensions import override


class HeatOven(dra.Effect[str], id="heat-oven"):
    """Heats the oven to a temperature.

    This takes three steps: gas, flame, temperature. Each one is a file in the directory of the oven. The outcome is
    the ID of the flame, which is only known once the flame burns.
    """

    oven: str
    temperature: int

    @override
    def keys(self) -> Iterable[str]:
        return ["oven"]

    @override
    def apply(self, previous: str | None) -> str:
        """Complete the steps that an earlier call did not reach, and keep its flame if there is one."""
        _put(self._part("gas"), "open")
        flame = _read(self._part("flame")) or previous or uuid.uuid4().hex[:8]
        _put(self._part("flame"), flame)
        _put(self._part("temperature"), str(self.temperature))
        return flame

    @override
    def revert(self, outcome: str | None) -> None:
        """Turn the oven off, also after an incomplete ``apply``."""
        for name in ("temperature", "flame", "gas"):
            self._part(name).unlink(missing_ok=True)
            _unfinished(self._part(name)).unlink(missing_ok=True)

    def _part(self, name: str) -> Path:
        return Path(self.oven, name)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _unfinished(path).write_text(text, encoding="utf-8")
    _unfinished(path).replace(path)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}")
