"""Devices and counters as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_kit.values.aligned import aligned

_ROWS: Final = 16
_WIDTH: Final = 120
"""Letters of a line from which on a table says in one line of its own what is the same for all devices."""


def device_table(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the devices of a ResourceSlice, a line each, with attributes, capacities and taints.

    Of many devices the first ones are shown, those with taints before them. Where that would be wide, what all devices
    have in common is a line of its own.
    """
    if not devices:
        return []
    names = sorted({name for device in devices for name in device.get("attributes", {})})
    capacities = sorted({name for device in devices for name in device.get("capacity", {})})
    tainted = any(device.get("taints") for device in devices)
    rows = [["device", *names, *capacities, *(["taints"] if tainted else [])]]
    ordered = sorted(devices, key=lambda device: not device.get("taints")) if len(devices) > _ROWS else devices
    for device in ordered:
        attributes = {key: _attribute(value) for key, value in device.get("attributes", {}).items()}
        amounts = {key: str(value["value"]) for key, value in device.get("capacity", {}).items()}
        row = [device["name"], *(attributes.get(name, "-") for name in names)]
        row += [amounts.get(name, "-") for name in capacities]
        rows.append([*row, _taints(device)] if tainted else row)
    lines = aligned(rows[: _ROWS + 1])
    common = _in_common(rows) if max(map(len, lines)) > _WIDTH else {}
    if common:
        lines = aligned([[cell for i, cell in enumerate(row) if i not in common] for row in rows[: _ROWS + 1]])
    if len(devices) > _ROWS:
        lines.append(f"… and {len(devices) - _ROWS} more")
    if common:
        lines.append(f"all have {', '.join(f'{rows[0][column]} {value}' for column, value in common.items())}")
    return lines


def _in_common(rows: Sequence[Sequence[str]]) -> dict[int, str]:
    """Return the columns, but for the first, that have one value for several devices."""
    columns = list(zip(*rows[1:], strict=True))
    return {i: cells[0] for i, cells in enumerate(columns) if i and len(cells) > 1 and len(set(cells)) == 1}


def _taints(device: Mapping[str, Any]) -> str:
    """Return taints as kubectl writes those of nodes."""
    texts = (
        f"{taint['key']}{'=' if taint.get('value') else ''}{taint.get('value', '')}:{taint['effect']}"
        for taint in device.get("taints", [])
    )
    return ", ".join(texts) or "-"


def counter_lines(counter_sets: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each counter set of a ResourceSlice; of many the first ones."""
    lines = []
    for counter_set in counter_sets[:_ROWS]:
        counters = ", ".join(f"{value['value']} {name}" for name, value in counter_set.get("counters", {}).items())
        lines.append(f"{counter_set['name']}: {counters}")
    if len(counter_sets) > _ROWS:
        lines.append(f"… and {len(counter_sets) - _ROWS} more")
    return lines


def _attribute(value: Mapping[str, Any]) -> str:
    content = next(iter(value.values()), "")
    if isinstance(content, bool):
        return "yes" if content else "no"
    return ", ".join(map(str, content)) if isinstance(content, list) else str(content)
