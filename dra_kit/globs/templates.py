"""Texts with ``{placeholders}`` for what is known of a device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

PLACE: Final = ("path", "name")
"""Known of every device node: its path, and the name of the file, which is the last part of it."""

DEVICE: Final = (*PLACE, "device", "env")
"""Known once the device has a name: that name, and the name in the form of an environment variable."""


def placeholders(template: str) -> Iterator[str]:
    """Return the names in braces in a text; other braces are text."""
    return (match[1] for match in _PLACEHOLDER.finditer(template))


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return the text with what its placeholders stand for.

    Raises:
        KeyError: one stands for nothing.
    """
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)
