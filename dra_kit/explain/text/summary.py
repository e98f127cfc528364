"""Explanations in few words: what devices have in common that fail for the same reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from dra_kit.explain.reasons import Check, Reason
from dra_kit.explain.verdicts import DeviceVerdict

_VALUES: Final = 3
_GROUPS: Final = 6


def counted(number: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def summarize(verdicts: Sequence[DeviceVerdict]) -> str:
    """All devices in one line: ``8 devices on 2 nodes: 5 wrong cheese ("cheddar" ≠ "mozzarella"), 1 tainted``.

    A device counts for the first reason against it.

    Args:
        verdicts: on all devices.
    """
    if not verdicts:
        return "no devices at all"
    nodes = set().union(*{id(verdict.nodes): verdict.nodes for verdict in verdicts}.values())
    where = f" on {counted(len(nodes), 'node')}" if nodes else ""
    return f"{counted(len(verdicts), 'device')}{where}: {', '.join(groups_of(verdicts))}"


def groups_of(verdicts: Iterable[DeviceVerdict]) -> list[str]:
    """How many devices fit, and how many fail for which reason: ``5 wrong cheese ("cheddar" ≠ "mozzarella")``.

    Args:
        verdicts: on the devices.
    """
    groups: dict[tuple[Check, str, str], list[Reason]] = {}
    same_reasons: dict[int, list[Reason]] = {}  # like devices have them in common
    fitting = 0
    for verdict in verdicts:
        reasons = verdict.reasons
        if not reasons:
            fitting += 1
            continue
        group = same_reasons.get(id(reasons))
        if group is None:
            first = reasons[0]
            group = same_reasons[id(reasons)] = groups.setdefault((first.check, first.brief, first.wanted), [])
        group.append(reasons[0])
    parts = [f"{fitting} fit" if fitting > 1 else "1 fits"] if fitting else []
    by_size = sorted(groups.items(), key=lambda item: -len(item[1]))
    parts += [f"{len(reasons)} {brief}{_values(reasons, wanted)}" for (_, brief, wanted), reasons in by_size[:_GROUPS]]
    rest = sum(len(reasons) for _, reasons in by_size[_GROUPS:])
    return [*parts, f"{rest} others do not fit"] if rest else parts


def _values(reasons: Sequence[Reason], wanted: str) -> str:
    found = Counter(reason.found for reason in reasons if reason.found)
    if not found:
        return ""
    values = [value for value, _ in found.most_common(_VALUES)]
    text = ", ".join(values) + (", …" if len(found) > _VALUES else "")
    if reasons[0].check is Check.ALLOCATED:
        return f" to {text}"
    return f" ({' '.join(filter(None, (text, wanted)))})"
