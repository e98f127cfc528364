"""Limits of pinned device memory, as MPS wants them: whole MiB, by the index of a GPU."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

import dra_kit as dra
from pydantic import AfterValidator

_MIB = 2**20
_LEAST = dra.Quantity("1Mi")
_MOST = dra.Quantity("16Ti")
"""More than any GPU has, and less than what a number of MPS holds."""
_INDEX = re.compile(r"[0-9]{1,4}")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,64}")


def mebibytes(limit: dra.QuantityField) -> int:
    """Whole MiB of a limit; a rest is dropped, as NVIDIA's driver does."""
    return int(limit.as_decimal // _MIB)


def _in_range(limit: dra.QuantityField) -> dra.QuantityField:
    if limit > _MOST:
        raise ValueError(f"{limit.text[:32]} is more than 16Ti, which no GPU has; write at most 16Ti")
    if limit < _LEAST:
        raise ValueError(f"{limit.text[:32]} is less than 1Mi, the unit of MPS; write at least 1Mi")
    return limit


PinnedMemory = Annotated[dra.QuantityField, AfterValidator(_in_range)]
"""A limit from 1 MiB to 16 TiB."""


def check_key(key: str) -> None:
    """Refuse what can name no device.

    Raises:
        ValueError: it is neither a UUID nor an index.
    """
    if not (_INDEX.fullmatch(key) or _UUID.fullmatch(key)):
        raise ValueError(f"{key[:64]!r} is neither the UUID of a device (GPU-…, MIG-…) nor an index from 0")


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
    if not _INDEX.fullmatch(key):
        raise dra.PermanentError(
            f"defaultPerDevicePinnedMemoryLimit: {key!r} is not a device of this group; write {choices}"
        )
    if int(key) >= len(ordered):
        raise dra.PermanentError(
            f"defaultPerDevicePinnedMemoryLimit: device {key} does not exist in this group of {len(ordered)}; "
            f"write {choices}"
        )
    return ordered[int(key)]
