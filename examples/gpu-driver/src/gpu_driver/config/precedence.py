"""Which of the entries that apply to a device configures it, by the rules of NVIDIA's own driver."""

from collections.abc import Sequence
from typing import TypeVar

import dra_kit as dra

ConfigT = TypeVar("ConfigT", bound=dra.OpaqueConfig)


def winning(
    entries: Sequence[dra.ConfigEntry[dra.OpaqueConfig]], kind: type[ConfigT], device: str
) -> dra.ConfigEntry[ConfigT] | None:
    """Return the strongest entry of the kind that the device takes; None when there is none, and nothing is changed.

    An entry of another kind that is for all requests is for other devices of the claim, and skipped.

    Args:
        entries: as ``device.configs`` has them, the weakest first.
        kind: of config that the device takes.
        device: its name, for the error.

    Raises:
        PermanentError: a stronger entry names the device's request and is of another kind.
    """
    for entry in reversed(entries):
        if isinstance(entry.config, kind):
            return dra.ConfigEntry(entry.config, entry.source, entry.index, entry.requests)
        if entry.requests:
            raise dra.PermanentError(f"{entry} does not fit {device}, which takes {kind.kind_}; correct one of the two")
    return None
