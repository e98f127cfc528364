"""The nearest miss: the one change after which devices fit that do not fit now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from dra_kit.explain.reasons import RELEASED
from dra_kit.explain.verdicts import Miss, Request, Way

_TOLD: Final = 3


def nearest_misses(requests: Sequence[Request]) -> tuple[Miss, ...]:
    """The changes that would help most: first those that suffice for a request, and of these waiting before others.

    Args:
        requests: of a claim that does not fit.
    """
    misses = [miss for request in requests for way in request.ways for miss in _misses(way)]
    misses.sort(key=lambda miss: (not miss.enough, miss.change != RELEASED, -miss.devices, miss.change))
    return tuple(misses[:_TOLD])


def _misses(way: Way) -> Iterator[Miss]:
    if way.choice is None or way.choice.all_devices:
        return
    needed = way.choice.count
    if needed <= max(way.fitting.values(), default=0):
        return  # this request is not what the claim fails for
    gained: Counter[str] = Counter()
    by_node: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for verdict in way.devices:
        remedies = {reason.remedy for reason in verdict.reasons}
        if len(remedies) != 1 or "" in remedies:
            continue
        (remedy,) = remedies
        gained[remedy] += 1
        by_node[remedy].update(verdict.nodes)
    fits = len(way.fits)
    for remedy, count in gained.items():
        best = max((number + way.fitting.get(node, 0) for node, number in by_node[remedy].items()), default=0)
        yield Miss(remedy, way.name, fits + count, enough=best >= needed)
