"""Tables of devices and counters, and what devices do not say themselves: who has, taints or blocks them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from textwrap import TextWrapper
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from dra_kit.client.resources import DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.kubernetes.resource.objects import object_name, taint_text
from dra_kit.kubernetes.scheduler.controllers import rule_covers_device
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.sandbox.records import ObjectChanged
from dra_kit.sandbox.views.entries import ShortNames, ViewEntry, lines
from dra_kit.text import align_columns, counted

PoolKey: TypeAlias = tuple[str, str]
"""Driver and name of a pool."""
_ROWS: Final = 8


class PoolState(Struct, frozen=True):
    """One pool, by the slices of its newest generation.

    Attributes:
        complete: all of its slices are there.
        devices: the published devices by name.
        holders: for each device in use, also of those not published, the claims that have it.
        blocked: for each free device that shared counters block, which counter, and how much is left.
    """

    complete: bool
    devices: Mapping[str, ObjectView] = field(default_factory=dict)
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocked: Mapping[str, str] = field(default_factory=dict)

    @property
    def vanished(self) -> Mapping[str, tuple[str, ...]]:
        """The devices in use that are not published, with the claims that have them."""
        missing = self.holders.keys() - self.devices.keys() if self.complete else ()
        return {device: self.holders[device] for device in sorted(missing)}


def pool_state(pool: PoolKey, slices: Iterable[ObjectView], claims: Iterable[ObjectView]) -> PoolState:
    """Return the state of a pool from all slices and claims."""
    own = [item["spec"] for item in slices if (item["spec"]["driver"], item["spec"]["pool"]["name"]) == pool]
    newest = max((spec["pool"].get("generation", 0) for spec in own), default=0)
    specs = [spec for spec in own if spec["pool"].get("generation", 0) == newest]
    devices = {device["name"]: device for spec in specs for device in spec.get("devices") or ()}
    complete = not specs or len(specs) >= specs[0]["pool"].get("resourceSliceCount", 1)
    holders, drawing = dict[str, list[str]](), set[str]()
    for claim in claims:
        for result in allocation_results(claim):
            if (result["driver"], result["pool"]) == pool:
                names = holders.setdefault(result["device"], [])
                if (name := object_name(claim)) not in names:
                    names.append(name)
                if not result.get("adminAccess"):  # which takes nothing away from others
                    drawing.add(result["device"])
    sets = {item["name"]: item["counters"] for spec in specs for item in spec.get("sharedCounters", [])}
    return PoolState(
        complete, devices, {name: tuple(found) for name, found in holders.items()},
        _blocked(devices, drawing, sets) if complete else {},
    )  # fmt: skip


def allocation_results(claim: ObjectView) -> list[Any]:
    """Return the devices that a claim has."""
    allocation = claim.get("status", {}).get("allocation") or {}
    results: list[Any] = allocation.get("devices", {}).get("results", [])
    return results


def _blocked(
    devices: Mapping[str, ObjectView], held: Collection[str], sets: Mapping[str, Mapping[str, ObjectView]]
) -> dict[str, str]:
    """Return the free devices for which a counter has too little left.

    While a counter of the pool is overdrawn, no device that consumes counters can be allocated.
    """
    left = {
        (name, counter): Quantity(value["value"])
        for name, counters in sets.items()
        for counter, value in counters.items()
    }
    for name in held & devices.keys():
        for counter_set, counter, amount in _demands(devices[name]):
            if (counter_set, counter) in left:
                left[counter_set, counter] -= amount
    overdrawn = next((f"counter {name} of {of} is overdrawn" for (of, name), rest in left.items() if rest.sign < 0), "")
    blocked: dict[str, str] = {}
    for name, device in devices.items():
        if overdrawn and name not in held and device.get("consumesCounters"):
            blocked[name] = overdrawn
            continue
        for counter_set, counter, amount in _demands(device) if name not in held else ():
            rest = left.get((counter_set, counter))
            if rest is not None and rest < amount:
                blocked[name] = f"counter {counter} of {counter_set} has {rest} left, {amount} needed"
                break
    return blocked


def _demands(device: ObjectView) -> Iterator[tuple[str, str, Quantity]]:
    for item in device.get("consumesCounters", []):
        for counter, value in item["counters"].items():
            yield item["counterSet"], counter, Quantity(value["value"])


def device_taints(device_id: tuple[str, str, str], device: ObjectView, rules: Iterable[ObjectView] = ()) -> list[str]:
    """Return the taints of a device: its own, and those of DeviceTaintRules, with the names of the rules."""
    own = [taint_text(taint) for taint in device.get("taints", [])]
    return own + [
        f"{taint_text(rule['spec']['taint'])} ({rule['metadata']['name']})"
        for rule in rules
        if rule_covers_device(rule, device_id)
    ]


class DeviceEntries:
    """Shows what happens to devices although their slices do not say so."""

    def __init__(self, names: ShortNames) -> None:
        self._names = names
        self._slices: dict[PoolKey, dict[str, ObjectView]] = {}
        self._claims: dict[PoolKey, dict[str, ObjectView]] = {}  # those with a device of the pool, by name
        self._vanished: dict[PoolKey, Collection[str]] = {}
        self._blocked: dict[PoolKey, Mapping[str, str]] = {}
        self._rules: dict[str, Any] = {}  # the spec of each

    def read(self, record: ObjectChanged) -> Iterator[ViewEntry]:
        """Yield what is shown of a change."""
        if record.resource == RESOURCE_SLICES.full_name:
            yield from self._slice(record)
        elif record.resource == RESOURCE_CLAIMS.full_name:
            yield from self._claim(record)
        elif record.resource == DEVICE_TAINT_RULES.full_name:
            yield from self._rule(record)

    def _slice(self, record: ObjectChanged) -> Iterator[ViewEntry]:
        item, spec = record.object, record.object["spec"]
        pool = spec["driver"], spec["pool"]["name"]
        known = self._slices.setdefault(pool, {})
        known.pop(item["metadata"]["name"], None)
        if record.change != "DELETED":
            known[item["metadata"]["name"]] = item
        state = self._state(pool)
        if not state.complete:
            return
        before, self._vanished[pool] = self._vanished.get(pool, ()), state.vanished
        for device in (name for name in state.vanished if name not in before):
            holders = state.vanished[device]
            title = f"device {device} of pool {pool[1]} is in use by {self._claim_names(holders)} and not published now"
            remedy = (
                "if it does not come back, delete the pod, or evict it with a DeviceTaintRule for driver "
                f"{pool[0]}, pool {pool[1]}, device {device} with effect NoExecute"
            )
            yield ViewEntry(title, lines(wrapped([remedy])), "yellow")
        for device in (name for name in before if name in state.devices and name in state.holders):
            yield ViewEntry(f"device {device} of pool {pool[1]} is published again", colour="green")
        yield from self._counters(pool, state)

    def _claim(self, record: ObjectChanged) -> Iterator[ViewEntry]:
        claim = record.object
        name, results = object_name(claim), allocation_results(claim)
        has = set[PoolKey]() if record.change == "DELETED" else {(item["driver"], item["pool"]) for item in results}
        had = {pool for pool, claims in self._claims.items() if name in claims}
        for pool in had - has:
            del self._claims[pool][name]
        for pool in has:
            self._claims.setdefault(pool, {})[name] = claim
        for pool in sorted(has ^ had):
            slices = self._slices.get(pool, {}).values()
            if any(item["spec"].get("sharedCounters") for item in slices):
                yield from self._counters(pool, self._state(pool))

    def _state(self, pool: PoolKey) -> PoolState:
        return pool_state(pool, self._slices.get(pool, {}).values(), self._claims.get(pool, {}).values())

    def _counters(self, pool: PoolKey, state: PoolState) -> Iterator[ViewEntry]:
        """Yield the devices that have become blocked."""
        before, self._blocked[pool] = self._blocked.get(pool, {}), state.blocked
        new = {device: text for device, text in state.blocked.items() if device not in before}
        if not new or not state.holders:
            return
        texts = [f"{device}: {text}" for device, text in new.items()]
        more = [f"… and {len(texts) - _ROWS} more"] if len(texts) > _ROWS else []
        title = f"pool {pool[1]}: {counted(len(new), 'free device')} blocked by shared counters"
        yield ViewEntry(title, lines([*texts[:_ROWS], *more]), "cyan")

    def _rule(self, record: ObjectChanged) -> Iterator[ViewEntry]:
        name, spec = record.object["metadata"]["name"], record.object["spec"]
        if record.change == "DELETED":
            if self._rules.pop(name, None) is not None:
                yield ViewEntry(f"DeviceTaintRule {name} is gone: it taints no device any more")
            return
        before, self._rules[name] = self._rules.get(name), spec
        if spec == before:
            return
        found = [
            f"{device} of pool {pool}"
            for driver, pool in sorted(self._slices.keys() | self._claims.keys())
            for device in self._known((driver, pool))
            if rule_covers_device(record.object, (driver, pool, device))
        ]
        more = [f"… and {len(found) - _ROWS} more"] if len(found) > _ROWS else []
        title = f"DeviceTaintRule {name} taints {counted(len(found), 'device')} with {taint_text(spec['taint'])}"
        yield ViewEntry(title, lines([*found[:_ROWS], *more]), "cyan")

    def _known(self, pool: PoolKey) -> list[str]:
        """Return the devices of a pool that are published or in use."""
        state = self._state(pool)
        return list({**state.devices, **state.holders})

    def _claim_names(self, holders: Iterable[str]) -> str:
        return ", ".join(f"ResourceClaim {self._names.short(name)}" for name in holders)


_TABLE_ROWS: Final = 16
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
    ordered = sorted(devices, key=lambda device: not device.get("taints")) if len(devices) > _TABLE_ROWS else devices
    rows = _rows(ordered)
    lines = _table(rows, _TABLE_ROWS)
    if _fits(lines):
        return lines
    common = _in_common(rows)
    lines = _table(_without(rows, common), _TABLE_ROWS)
    shared = _common_lines("all have", rows, common)
    if _fits(lines):
        return [*lines, *shared]
    known = {rows[0][column] for column in common}
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for device in ordered:
        groups.setdefault(_form(device), []).append(device)
    each = max(2, _TABLE_ROWS // len(groups))
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
    more = len(lines) - _TABLE_ROWS
    return [*lines[:_TABLE_ROWS], f"… and {more} more"] if more > 0 else lines


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < _MANY_NAMES else f"{names[0]} … {names[-1]} ({len(names)})"


def _attribute(value: Mapping[str, Any]) -> str:
    content = next(iter(value.values()), "")
    if isinstance(content, bool):
        return "yes" if content else "no"
    return ", ".join(map(str, content)) if isinstance(content, list) else str(content)
