"""Outcomes of attempts that are known already, of nodes on which the claims of a pod find the same.

An outcome is remembered by all that it depends on:

- what the claims ask for, their classes resolved (:func:`~dra_kit.allocator.memo.reading.question_of`);
- of each pool that the node sees, in the order in which pools are tried: whether it is complete and valid, its
  counters, and by position what its devices are (:func:`~dra_kit.allocator.memo.reading.traits_of`), what selectors and
  constraints read of them (:class:`~dra_kit.allocator.memo.reading.Reading`), and what other claims hold of them;
- of the node: for which devices its name and labels are looked at, and whether its kubelet can skip calls to a driver.

Gates, evaluator and limits belong to the allocator, and so does its memo. Errors are never remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from dra_kit.allocator.cluster.nodes import Node
from dra_kit.allocator.cluster.pools import NodePool, NodePools
from dra_kit.allocator.cluster.usage import Usage
from dra_kit.allocator.gates import Gates
from dra_kit.allocator.memo.reading import Reading, question_of, traits_of
from dra_kit.allocator.requests.requests import Choice
from dra_kit.allocator.search.holding import OPTIONAL_NODE_OPERATIONS
from dra_kit.allocator.search.search import Solution
from dra_kit.allocator.selectors.expressions import Evaluator
from dra_kit.resource.v1 import ResourceClaim

_QUESTIONS: Final = 64
"""Kinds of pods that are remembered, the latest."""

_OUTCOMES: Final = 8192
"""Outcomes that are remembered, of all kinds of pods."""

_DEVICES: Final = 65536
"""Devices, alike or not, whose looks are remembered to compare others with."""


class Memo:
    """What is known of one snapshot under the same gates, evaluator and limits.

    Args:
        usage: what other claims hold.
        gates: of the scheduler.
        evaluator: of CEL.
    """

    def __init__(self, usage: Usage, gates: Gates, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._numbers = _Numbers()
        self._stocks = _Stocks(usage, gates, self._numbers)
        self._questions: OrderedDict[Hashable, Question] = OrderedDict()
        self._outcomes: dict[Hashable, Solution | None] = {}

    def question(self, claims: Sequence[ResourceClaim], requests: Sequence[Sequence[Sequence[Choice]]]) -> Question:
        """Return what the claims of a pod, and of other pods like it, ask for.

        Args:
            claims: of the pod.
            requests: of each claim, with the choices of each request.
        """
        asked = question_of(claims, requests)
        known = self._questions.get(asked)
        if known is None:
            choices = [choice for claim in requests for request in claim for choice in request]
            reading = Reading(claims, choices, self._evaluator)
            known = self._questions[asked] = Question(reading, self._stocks, self._numbers)
            if len(self._questions) > _QUESTIONS:
                self._questions.popitem(last=False)
        else:
            self._questions.move_to_end(asked)
        return known

    def outcome(self, key: Hashable | None, search: Callable[[], Solution | None]) -> Solution | None:
        """Return the outcome of an attempt, made only if it is not known yet; errors of ``search`` are not remembered.

        Args:
            key: see :meth:`Question.key`; with None nothing is remembered.
            search: makes the attempt.
        """
        if key is None:
            return search()
        try:
            return self._outcomes[key]
        except KeyError:
            pass
        found = search()
        if len(self._outcomes) >= _OUTCOMES:
            self._outcomes.clear()
        self._outcomes[key] = found
        return found


class Question:
    """What the claims of some pods ask for, who all ask for the same."""

    def __init__(self, reading: Reading, stocks: _Stocks, numbers: _Numbers) -> None:
        self._reading = reading
        self._stocks = stocks
        self._numbers = numbers
        self._number = numbers.next()
        self._looks: WeakKeyDictionary[NodePool, int] = WeakKeyDictionary()

    def key(self, node: Node, pools: NodePools) -> Hashable | None:
        """Equal where an attempt has the same outcome; None where it may fail because of a node selector.

        Args:
            node: of the attempt.
            pools: that the node sees.
        """
        if pools.reach is None:
            return None
        key: list[Hashable] = [self._number, OPTIONAL_NODE_OPERATIONS in node.declared_features, pools.reach]
        for pool in pools.ordered:
            look = self._looks.get(pool)
            if look is None:
                look = self._looks[pool] = self._numbers.of(self._reading.of(pool), pool.size)
            key += (look, self._stocks.number(pool))
        return tuple(key)


class _Stock(Struct):
    """A pool and what others hold of it.

    Attributes:
        traits: number of what it is.
        changes: how often claims had taken or given back its devices when ``number`` was found.
        number: of all this together.
    """

    traits: int
    changes: int = -1
    number: int = 0


class _Stocks:
    """What attempts read of pools whatever they ask for, as a number for each pool."""

    def __init__(self, usage: Usage, gates: Gates, numbers: _Numbers) -> None:
        self._usage = usage
        self._gates = gates
        self._numbers = numbers
        self._known: WeakKeyDictionary[NodePool, _Stock] = WeakKeyDictionary()

    def number(self, pool: NodePool) -> int:
        stock = self._known.get(pool)
        if stock is None:
            stock = self._known[pool] = _Stock(self._numbers.of(traits_of(pool, self._gates), pool.size))
        changes = self._usage.changes(pool.id)
        if stock.changes != changes:
            # where nobody ever held a device, nobody need look at them
            devices = (*pool.usable, *pool.drawing_elsewhere) if changes else ()
            held = tuple([self._usage.held(device.id) for device in devices])
            held = held if any(held) else ()
            stock.number = self._numbers.of((stock.traits, held), len(held))
            stock.changes = changes
        return stock.number


class _Numbers:
    """Numbers for things that are compared often: equal things have the same number, different ones never.

    Where there are too many they are forgotten; equal things may get another number then.
    """

    def __init__(self) -> None:
        self._next = count(1)
        self._known: dict[Hashable, int] = {}
        self._size = 0

    def next(self) -> int:
        """Return a number that nothing else has."""
        return next(self._next)

    def of(self, thing: Hashable, size: int) -> int:
        """Return the number of a thing.

        Args:
            thing: to compare.
            size: how many devices it describes.
        """
        number = self._known.get(thing)
        if number is None:
            self._size += size + 1
            if self._size > _DEVICES:
                self._known.clear()
                self._size = size + 1
            number = self._known[thing] = self.next()
        return number
