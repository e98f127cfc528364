"""Tables of devices and counters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from textwrap import TextWrapper
from typing import Any, Final, TypeAlias

from dra_kit.kubernetes.resource.objects import taint_text
from dra_kit.text import align_columns

_ROWS: Final = 16
_MANY_NAMES: Final = 3
_WIDTH: Final = 88
"""Letters of a line; with the time before it that is less than 100."""
_Rows: TypeAlias = Sequence[Sequence[str]]


def device_table(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the devices of a ResourceSlice, one line each, with attributes, capacities and taints.

    If there are many devices, only the first are shown, and devices with taints before them. If the table is too wide,
    attributes that all devices share are on a separate line. If it is still too wide, devices are split into one table
    per set of attribute names, and attributes that do not fit are listed by name.
    """
    if not devices:
        return []
    ordered = sorted(devices, key=lambda device: not device.get("taints")) if len(devices) > _ROWS else devices
    rows = _rows(ordered)
    lines = _table(rows, _ROWS)
    if _fits(lines):
        return lines
    common = _in_common(rows)
    lines = _table(_without(rows, common), _ROWS)
    shared = _common_lines("all have", rows, common)
    if _fits(lines):
        return [*lines, *shared]
    known = {rows[0][column] for column in common}
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for device in ordered:
        groups.setdefault(_form(device), []).append(device)
    each = max(2, _ROWS // len(groups))
    return [*(line for group in groups.values() for line in _group(group, known, each)), *shared]


def _group(devices: Sequence[Mapping[str, Any]], known: Collection[str], most: int) -> list[str]:
    """Return devices with the same names of attributes and capacities."""
    rows = _rows(devices)
    rows = _without(rows, [column for column, name in enumerate(rows[0]) if name in known])
    if len(devices) == 1:
        values = ", ".join(f"{name} {value}" for name, value in zip(rows[0][1:], rows[1][1:], strict=True))
        return wrapped([f"{rows[1][0]}: {values}"])
    common = _in_common(rows)
    shared = _common_lines(f"these {len(devices)} have", rows, common)
    rows, left_out = _without(rows, common), list[str]()
    while not _fits(_table(rows, most)) and len(rows[0]) > 1:
        widest = max(range(1, len(rows[0])), key=lambda column: max(len(row[column]) for row in rows[: most + 1]))
        left_out.append(rows[0][widest])
        rows = _without(rows, [widest])
    lines = [*_table(rows, most), *shared]
    if left_out:
        lines += wrapped([f"not shown: {', '.join(left_out)} (kubectl get resourceslices -o yaml)"])
    return lines


def wrapped(lines: Iterable[str]) -> list[str]:
    """Return lines that are not too long for a terminal."""
    return [part for line in lines for part in _WRAPPER.wrap(line)]


_WRAPPER: Final = TextWrapper(_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _rows(devices: Sequence[Mapping[str, Any]]) -> _Rows:
    """Return the names of what devices have, and what each has."""
    names = sorted({name for device in devices for name in device.get("attributes", {})})
    capacities = sorted({name for device in devices for name in device.get("capacity", {})})
    tainted = any(device.get("taints") for device in devices)
    rows = [["device", *names, *capacities, *(["taints"] if tainted else [])]]
    for device in devices:
        attributes = {key: _attribute(value) for key, value in device.get("attributes", {}).items()}
        amounts = {key: str(value["value"]) for key, value in device.get("capacity", {}).items()}
        row = [device["name"], *(attributes.get(name, "-") for name in names)]
        row += [amounts.get(name, "-") for name in capacities]
        rows.append([*row, ", ".join(map(taint_text, device.get("taints", []))) or "-"] if tainted else row)
    return rows


def _form(device: Mapping[str, Any]) -> tuple[str, ...]:
    return (*sorted(device.get("attributes", {})), "", *sorted(device.get("capacity", {})))


def _table(rows: _Rows, most: int) -> list[str]:
    lines = align_columns(rows[: most + 1])
    more = len(rows) - 1 - most
    return [*lines, f"… and {more} more"] if more > 0 else lines


def _fits(lines: Iterable[str]) -> bool:
    return max(map(len, lines)) <= _WIDTH


def _without(rows: _Rows, columns: Collection[int]) -> _Rows:
    return [[cell for i, cell in enumerate(row) if i not in columns] for row in rows]


def _common_lines(who: str, rows: _Rows, common: Mapping[int, str]) -> list[str]:
    """Return what several devices have in common, as text."""
    values = ", ".join(f"{rows[0][column]} {value}" for column, value in common.items())
    return wrapped([f"{who} {values}"]) if values else []


def _in_common(rows: _Rows) -> dict[int, str]:
    """Return the columns, but for the first, that have one value for several devices."""
    columns = list(zip(*rows[1:], strict=True))
    return {i: cells[0] for i, cells in enumerate(columns) if i and len(cells) > 1 and len(set(cells)) == 1}


def counter_lines(counter_sets: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the counters of a ResourceSlice: a line for counter sets that are alike; of many the first ones."""
    alike: dict[str, list[str]] = {}
    for counter_set in counter_sets:
        counters = ", ".join(f"{value['value']} {name}" for name, value in counter_set.get("counters", {}).items())
        alike.setdefault(counters, []).append(counter_set["name"])
    lines = [f"{_names(names)}: {counters}" for counters, names in alike.items()]
    more = len(lines) - _ROWS
    return [*lines[:_ROWS], f"… and {more} more"] if more > 0 else lines


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < _MANY_NAMES else f"{names[0]} … {names[-1]} ({len(names)})"


def _attribute(value: Mapping[str, Any]) -> str:
    content = next(iter(value.values()), "")
    if isinstance(content, bool):
        return "yes" if content else "no"
    return ", ".join(map(str, content)) if isinstance(content, list) else str(content)
