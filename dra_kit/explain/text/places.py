"""Devices by the place where they are named: the node that has them, or all the nodes that share them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from msgspec import Struct

from dra_kit.explain.verdicts import DeviceVerdict

_NAMES: Final = 3


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
            same_reasons[id(verdict.reasons)] = numbers.setdefault(verdict.reasons, len(numbers))
    alike: dict[Hashable, list[tuple[str, ...]]] = {}
    for nodes, devices in by_nodes.items():
        look = tuple([(verdict.driver, verdict.name, same_reasons[id(verdict.reasons)]) for verdict in devices])
        alike.setdefault((look, len(nodes) == 1 or nodes), []).append(nodes)
    places = [Place(tuple(node for nodes in group for node in nodes), by_nodes[group[0]]) for group in alike.values()]
    places.sort(key=lambda place: min([len(verdict.reasons) for verdict in place.devices]))
    return places
