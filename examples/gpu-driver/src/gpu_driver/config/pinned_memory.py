"""Limits of pinned device memory, as MPS wants them: whole MiB, by the index of a GPU."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import dra_kit as dra
from pydantic import AfterValidator

_MIB = 2**20


def mebibytes(limit: dra.QuantityField) -> int:
    """Whole MiB of a limit; a rest is dropped, as NVIDIA's driver does."""
    return int(limit.as_decimal // _MIB)


def _at_least_one(limit: dra.QuantityField) -> dra.QuantityField:
    if mebibytes(limit) < 1:
        raise ValueError(f"{limit.text} is less than 1Mi, the unit of MPS; write at least 1Mi")
    return limit


PinnedMemory = Annotated[dra.QuantityField, AfterValidator(_at_least_one)]
"""A limit of at least one MiB."""


def limits(
    uuids: Sequence[str], default: dra.QuantityField | None, by_device: Mapping[str, dra.QuantityField]
) -> dict[str, str]:
    """Return the limit of each GPU of a group, as MPS wants it (``6144M``); one that has none is left out.

    Args:
        uuids: of the group.
        default: for those that ``by_device`` does not name.
        by_device: by UUID, or by index into the UUIDs sorted as text, as NVIDIA's driver counts.

    Raises:
        PermanentError: a key names no device of the group.
    """
    ordered = sorted(uuids)
    known = {} if default is None else dict.fromkeys(ordered, _megabytes(default))
    for key, limit in by_device.items():
        known[_device(key, ordered)] = _megabytes(limit)
    return known


def _megabytes(limit: dra.QuantityField) -> str:
    return f"{mebibytes(limit)}M"


def _device(key: str, ordered: Sequence[str]) -> str:
    if key in ordered:
        return key
    choices = f"one of {', '.join(ordered)}, or an index from 0 to {len(ordered) - 1}"
    if not (key.isascii() and key.isdigit()):
        raise dra.PermanentError(
            f"defaultPerDevicePinnedMemoryLimit: {key!r} is no device of this group; write {choices}"
        )
    if int(key) >= len(ordered):
        raise dra.PermanentError(
            f"defaultPerDevicePinnedMemoryLimit: there is no device {key} in this group of {len(ordered)}; "
            f"write {choices}"
        )
    return ordered[int(key)]
