"""Counter sets and what devices take from them (KEP-4815, KEP-5963)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, declarative, duplicate, invalid, required, too_many

COUNTER_SETS_PER_SLICE_MAX: Final = 8
COUNTERS_MAX: Final = 32
"""Counters of one set, and counters that a device takes from one set."""

CONSUMED_SETS_MAX: Final = 2
COMPATIBILITY_GROUPS_MAX: Final = 2


def validate_counter_sets(sets: Sequence[v1.CounterSet], path: str) -> list[FieldError]:
    """Check ``spec.sharedCounters`` of one slice."""
    if len(sets) > COUNTER_SETS_PER_SLICE_MAX:
        return [too_many(path, len(sets), COUNTER_SETS_PER_SLICE_MAX)]
    errors = []
    seen: set[str] = set()
    for i, counter_set in enumerate(sets):
        where = f"{path}[{i}]"
        if counter_set.name in seen:
            errors += declarative([duplicate(where, counter_set)])
        seen.add(counter_set.name)
        errors += _validate_set_name(counter_set.name, f"{where}.name")
        errors += _validate_counters(counter_set.counters, f"{where}.counters")
    return errors


def validate_consumption(entries: Sequence[v1.DeviceCounterConsumption], path: str) -> list[FieldError]:
    """Check ``consumesCounters`` of one device."""
    if len(entries) > CONSUMED_SETS_MAX:
        return [too_many(path, len(entries), CONSUMED_SETS_MAX)]
    errors = []
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        where = f"{path}[{i}]"
        if entry.counter_set in seen:
            errors += declarative([duplicate(where, entry)])
        seen.add(entry.counter_set)
        errors += _validate_set_name(entry.counter_set, f"{where}.counterSet")
        errors += _validate_counters(entry.counters, f"{where}.counters")
        errors += _validate_groups(entry.compatibility_groups, f"{where}.compatibilityGroups")
    return errors


def _validate_set_name(name: str, path: str) -> list[FieldError]:
    return declarative([invalid(path, name, text) for text in names.dns_label(name)] if name else [required(path)])


def _validate_counters(counters: Mapping[str, v1.Counter], path: str) -> list[FieldError]:
    if not counters:
        return declarative([required(path)])
    errors = [too_many(path, len(counters), COUNTERS_MAX)] if len(counters) > COUNTERS_MAX else []
    errors += [invalid(path, name, text) for name in counters for text in names.dns_label(name)]
    return declarative(errors)


def _validate_groups(groups: Sequence[str], path: str) -> list[FieldError]:
    if len(groups) > COMPATIBILITY_GROUPS_MAX:
        return declarative([too_many(path, len(groups), COMPATIBILITY_GROUPS_MAX)])
    errors = []
    for i, group in enumerate(groups):
        errors += [invalid(f"{path}[{i}]", group, text) for text in names.dns_label(group)]
        if group in groups[:i]:
            errors.append(duplicate(f"{path}[{i}]", group))
    return declarative(errors)
