"""Names of devices: DNS labels, unique in the pool, the same for the same path as long as it is there."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from typing import Final

_LONGEST: Final = 63
_HASH: Final = 8


def device_names(wanted: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the names of devices.

    Args:
        wanted: by the path of the device node the text that its name is made of.
        known: names by path that were given before; who has one keeps it.

    Returns:
        A DNS label by path, no two alike. What is not in lower case letters, digits and dashes becomes a dash; where
        that is too long, empty, or the name of another one, a hash of the path makes up for it.
    """
    names = {path: known[path] for path in wanted if path in known}
    taken = set(names.values())
    for path, text in wanted.items():
        if path in names:
            continue
        names[path] = next(name for name in _candidates(path, text) if name not in taken)
        taken.add(names[path])
    return names


def _candidates(path: str, text: str) -> itertools.chain[str]:
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = [label] if 0 < len(label) <= _LONGEST else []
    begin = label[: _LONGEST - _HASH - 1].rstrip("-") or "device"
    return itertools.chain(plain, (f"{begin}-{_hash(path, number)}" for number in itertools.count()))


def _hash(path: str, number: int) -> str:
    content = f"{path}\0{number}".encode(errors="surrogateescape")
    return hashlib.sha256(content).hexdigest()[:_HASH]
