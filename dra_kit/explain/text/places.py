"""Devices by the place where they are named: the node that has them, or all the nodes that share them.

Devices that a class does not select say no more than that: their taints, holders and counters are of no interest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from dra_kit.explain.reasons import UNMATCHED, Check, Reason
from dra_kit.explain.verdicts import DeviceVerdict, JudgedChoice

_NAMES: Final = 3
_DRIVER: Final = "device.driver"


class Place(Struct, frozen=True):
    """Where devices are.

    Attributes:
        nodes: the nodes that have such devices each, or that all reach the same ones.
        devices: those of the first node.
    """

    nodes: tuple[str, ...]
    devices: Sequence[DeviceVerdict]

    def name(self, *, everything: bool) -> str:
        """Return the names of the nodes.

        Args:
            everything: all of them, instead of the first ones.
        """
        if not self.nodes:
            return "no node"
        if everything or len(self.nodes) <= _NAMES:
            return ", ".join(self.nodes)
        return f"{', '.join(self.nodes[:_NAMES])} and {len(self.nodes) - _NAMES} more nodes"


def by_place(verdicts: Sequence[DeviceVerdict]) -> list[Place]:
    """Places and their devices, those first that are closest to fitting; nodes that look alike are one place.

    Args:
        verdicts: on all devices.
    """
    by_nodes: dict[tuple[str, ...], list[DeviceVerdict]] = {}
    # devices of one slice, and like devices, have one object in common: nodes and reasons are compared once for each
    same_nodes: dict[int, list[DeviceVerdict]] = {}
    same_reasons: dict[int, int] = {}
    numbers: dict[Hashable, int] = {}
    for verdict in verdicts:
        there = same_nodes.get(id(verdict.nodes))
        if there is None:
            there = same_nodes[id(verdict.nodes)] = by_nodes.setdefault(tuple(verdict.nodes), [])
        there.append(verdict)
        if id(verdict.reasons) not in same_reasons:
            same_reasons[id(verdict.reasons)] = numbers.setdefault(shown_reasons(verdict.reasons), len(numbers))
    alike: dict[Hashable, list[tuple[str, ...]]] = {}
    for nodes, devices in by_nodes.items():
        look = tuple([(verdict.driver, verdict.name, same_reasons[id(verdict.reasons)]) for verdict in devices])
        alike.setdefault((look, len(nodes) == 1 or nodes), []).append(nodes)
    places = [Place(tuple(node for nodes in group for node in nodes), by_nodes[group[0]]) for group in alike.values()]
    places.sort(key=lambda place: min([len(verdict.reasons) for verdict in place.devices]))
    return places


def shown_reasons(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Return the reasons that matter to the user: of a device that the class does not select, why it does not."""
    if not any(reason.check is Check.CLASS for reason in reasons):
        return reasons
    return tuple([reason for reason in reasons if reason.check in UNMATCHED])


class _Exclusion(NamedTuple):
    """The class or request that does not select a device.

    Attributes:
        by_driver: it compares the name of the driver.
        selector: ``class pizza`` or ``request lunch``.
    """

    by_driver: bool
    selector: str


def foreign_drivers(judged: JudgedChoice) -> dict[str, tuple[int, str]]:
    """Return the drivers whose devices the choice cannot mean, with their number of devices and what excludes them.

    Selectors compare the name of the driver, or the class selects devices of other drivers only. A driver with a device
    for which a selector fails is not foreign: that error ends the scheduler's attempt.

    Args:
        judged: the choice with all devices.
    """
    known: dict[int, _Exclusion | None] = {}  # devices have their reasons in common
    counts: Counter[str] = Counter()
    found: dict[str, set[_Exclusion | None]] = {}
    for verdict in judged.devices:
        key = id(verdict.reasons)
        if key not in known:
            known[key] = _exclusion(verdict.reasons)
        counts[verdict.driver] += 1
        found.setdefault(verdict.driver, set()).add(known[key])
    selects_others = any(None in exclusions for exclusions in found.values())
    foreign: dict[str, tuple[int, str]] = {}
    for driver, exclusions in found.items():
        excluded = [each for each in exclusions if each is not None]
        if len(excluded) == len(exclusions) and (selects_others or all(each.by_driver for each in excluded)):
            foreign[driver] = counts[driver], max(excluded).selector
    return foreign


def _exclusion(reasons: tuple[Reason, ...]) -> _Exclusion | None:
    """Return what excludes a device whatever its attributes are, or its class does; None where nothing does."""
    if any(reason.check in {Check.ERROR, Check.POOL} for reason in reasons):
        return None
    found = [
        _Exclusion(by_driver, str(reason.details["of"]))
        for reason in reasons
        if (by_driver := _DRIVER in reason.details.get("values", ())) or reason.check is Check.CLASS
    ]
    return max(found, default=None)
