"""Requests, or claims of one pod, that find devices on different nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from dra_kit.explain.verdicts import JudgedChoice, Request

_NAMES: Final = 3


def disjoint_requests(requests: Sequence[Request]) -> str:
    """Which request finds devices on which nodes; empty if some node has enough for each of them.

    Args:
        requests: of one claim.
    """
    return disjoint({request.name: set().union(*map(_nodes, request.choices)) for request in requests})


def disjoint(places: Mapping[str, Collection[str]]) -> str:
    """Return ``a fits only on n1, b only on n2``; empty if they have a node in common, or one has none.

    Args:
        places: names of the nodes that are good for something, by its name.
    """
    if len(places) < 2 or not all(places.values()) or set.intersection(*map(set, places.values())):
        return ""
    parts = [f"{name} only on {named(nodes)}" for name, nodes in places.items()]
    return ", ".join([parts[0].replace(" only", " fits only", 1), *parts[1:]])


def _nodes(judged: JudgedChoice) -> set[str]:
    """Return the nodes that have enough devices for one choice of a request, whatever else is asked for."""
    if judged.choice is None:
        return set()
    if not judged.choice.all_devices:
        return {node for node, number in judged.fitting.items() if number >= judged.choice.count}
    spoilt = {node for verdict in judged.devices if verdict.reasons and verdict.matches for node in verdict.nodes}
    return judged.fitting.keys() - spoilt


def named(nodes: Collection[str]) -> str:
    """``n1, n2 and n3``; of many the first ones."""
    names = sorted(nodes)
    if len(names) <= _NAMES:
        return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    return f"{', '.join(names[:_NAMES])} and {len(names) - _NAMES} more"
