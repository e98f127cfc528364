"""Cached outcomes of attempts on equal nodes.

Attempts that read the same data end with the same devices, by position. Data that no attempt reads is ignored: names
of claims, pools and devices, and attributes that no selector and no constraint uses. On 500 nodes of 8 devices, a pod
takes 0.9 to 2.5 ms instead of 12 to 20 ms (``python -m benchmarks.allocation``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, has_many_terms, is_pinned, published_attribute
from dra_kit.kubernetes.allocator.pools import NodePool, NodePools
from dra_kit.kubernetes.allocator.requests import RequestAlternative
from dra_kit.kubernetes.allocator.rules import OPTIONAL_NODE_OPERATIONS, AllocatorRules
from dra_kit.kubernetes.allocator.search import Solution
from dra_kit.kubernetes.allocator.selectors import CelEvaluator, likeness_of
from dra_kit.kubernetes.allocator.state import DeviceUsage
from dra_kit.kubernetes.cel.tree import DeviceRead
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.v1 import (
    CapacityRequestPolicy,
    DeviceAttribute,
    DeviceConstraint,
    DeviceTaint,
    ResourceClaim,
)
from dra_kit.kubernetes.values.quantity import Quantity

_POD_SHAPES: Final = 64
"""Maximum kinds of pods in the cache, the latest ones."""
_OUTCOMES: Final = 8192
"""Maximum outcomes in the cache, for all kinds of pods."""
_DEVICES: Final = 65536
"""Maximum devices whose traits are cached for comparison, whether equal or not."""


class AttemptCache:
    """The cache of one snapshot for one set of gates, evaluator and limits; ``usage`` is what other claims hold."""

    def __init__(self, usage: DeviceUsage, gates: AllocatorRules, evaluator: CelEvaluator) -> None:
        self._evaluator = evaluator
        self._numbers = _Numbers()
        self._usages = _PoolUsages(usage, gates, self._numbers)
        self._shapes: OrderedDict[Hashable, PodShape] = OrderedDict()
        self._outcomes: dict[Hashable, Solution | None] = {}

    def shape(
        self, claims: Sequence[ResourceClaim], requests: Sequence[Sequence[Sequence[RequestAlternative]]]
    ) -> PodShape:
        """Return the shape of a pod with these claims; ``requests`` has the choices of each request of each claim."""
        key = pod_shape(claims, requests)
        known = self._shapes.get(key)
        if known is None:
            choices = [choice for claim in requests for request in claim for choice in request]
            reading = AttributeReads(claims, choices, self._evaluator)
            known = self._shapes[key] = PodShape(reading, self._usages, self._numbers)
            if len(self._shapes) > _POD_SHAPES:
                self._shapes.popitem(last=False)
        else:
            self._shapes.move_to_end(key)
        return known

    def outcome(self, key: Hashable | None, search: Callable[[], Solution | None]) -> Solution | None:
        """Return the outcome of an attempt, made only if it is not cached; errors of ``search`` are not cached.

        Args:
            key: see :meth:`PodShape.key`; with None nothing is cached.
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


class PodShape:
    """The requests of the claims of pods that all request the same."""

    def __init__(self, reading: AttributeReads, usages: _PoolUsages, numbers: _Numbers) -> None:
        self._reading = reading
        self._usages = usages
        self._numbers = numbers
        self._number = numbers.next()
        self._numbers_of_reads: WeakKeyDictionary[NodePool, int] = WeakKeyDictionary()

    def key(self, node: Node, pools: NodePools) -> Hashable | None:
        """Return a key that is equal for attempts with the same outcome; None if a node selector may fail."""
        if pools.reach is None:
            return None
        key: list[Hashable] = [self._number, OPTIONAL_NODE_OPERATIONS in node.declared_features, pools.reach]
        for pool in pools.ordered:
            reads_number = self._numbers_of_reads.get(pool)
            if reads_number is None:
                reads_number = self._numbers_of_reads[pool] = self._numbers.of(self._reading.of(pool), pool.size)
            key += (reads_number, self._usages.number(pool))
        return tuple(key)


class _PoolUsage(Struct):
    """A pool and its usage by other claims.

    Attributes:
        traits: the number of its traits.
        changes: the changes of its usage when ``number`` was computed.
        number: the number of traits and usage.
    """

    traits: int
    changes: int = -1
    number: int = 0


class _PoolUsages:
    """Numbers for what attempts read of pools regardless of their requests."""

    def __init__(self, usage: DeviceUsage, gates: AllocatorRules, numbers: _Numbers) -> None:
        self._usage = usage
        self._gates = gates
        self._numbers = numbers
        self._known: WeakKeyDictionary[NodePool, _PoolUsage] = WeakKeyDictionary()

    def number(self, pool: NodePool) -> int:
        known = self._known.get(pool)
        if known is None:
            known = self._known[pool] = _PoolUsage(self._numbers.of(traits_of(pool, self._gates), pool.size))
        changes = self._usage.changes(pool.id)
        if known.changes != changes:
            # if no device was ever held, the devices need not be checked
            devices = (*pool.usable, *pool.drawing_elsewhere) if changes else ()
            held = tuple([self._usage.held(device.id, self._gates) for device in devices])
            held = held if any(held) else ()
            known.number = self._numbers.of((known.traits, held), len(held))
            known.changes = changes
        return known.number


class _Numbers:
    """Numbers for objects that are compared often: equal objects have the same number, different ones never.

    If there are too many, they are dropped; equal objects may then get another number.
    """

    def __init__(self) -> None:
        self._next = count(1)
        self._known: dict[Hashable, int] = {}
        self._size = 0

    def next(self) -> int:
        """Return a number that no other object has."""
        return next(self._next)

    def of(self, thing: Hashable, size: int) -> int:
        """Return the number of an object that describes ``size`` devices."""
        number = self._known.get(thing)
        if number is None:
            self._size += size + 1
            if self._size > _DEVICES:
                self._known.clear()
                self._size = size + 1
            number = self._known[thing] = self.next()
        return number


def pod_shape(claims: Iterable[ResourceClaim], requests: Iterable[Sequence[Sequence[RequestAlternative]]]) -> Hashable:
    """Return a key that is equal for pods that request the same."""
    return tuple(
        (
            tuple(tuple(_choice(choice) for choice in choices) for choices in asked),
            tuple((item.requests, item.match_attribute, item.distinct_attribute) for item in _constraints(claim)),
        )
        for claim, asked in zip(claims, requests, strict=True)
    )


class AttributeReads:
    """What the selectors and constraints of a pod's claims read of devices."""

    def __init__(
        self, claims: Iterable[ResourceClaim], choices: Iterable[RequestAlternative], evaluator: CelEvaluator
    ) -> None:
        self._reads = _reads(choices, evaluator)
        self._attributes = sorted(
            {item.match_attribute or item.distinct_attribute or "" for claim in claims for item in _constraints(claim)}
        )

    def of(self, pool: NodePool) -> Hashable:
        """Return what the selectors and constraints read of the devices of a pool, by position."""
        return tuple([self._of_device(device) for device in pool.usable])

    def _of_device(self, device: AdvertisedDevice) -> Hashable:
        likeness = None
        if self._reads is not None and device.has_plain_attributes:
            likeness = likeness_of(device, self._reads, sees_sharing=False)
        if likeness is None:
            likeness = (
                device.id.driver,
                tuple((name, _value(attribute)) for name, attribute in sorted(device.device.attributes.items())),
            )
        return likeness, tuple([_value(published_attribute(device, name)) for name in self._attributes])


def traits_of(pool: NodePool, gates: AllocatorRules) -> Hashable:
    """Return what every attempt reads of a pool, regardless of its requests, except what other claims hold.

    Plain devices are compared by their shapes, without building models: ``explain`` of a claim that fits on 1,500 nodes
    of 8 devices takes 0.2 s instead of 0.4 s (``python -m benchmarks.explain``).
    """
    if pool.is_usual:
        return tuple([slice_.forms for slice_ in pool.slices])
    return (
        pool.incomplete,
        bool(pool.invalid),
        _counters(pool, gates),
        tuple([_traits(device, gates) for device in pool.usable]),
        tuple([device.demands for device in pool.drawing_elsewhere]),
    )


def _counters(pool: NodePool, gates: AllocatorRules) -> Hashable:
    """Return the counters of a pool or, with the numbers of their devices, of its slices."""
    if "" in pool.counters:
        owner = gates.owner_of_counters(*pool.id)
        return "" if owner == pool.id else owner, tuple(pool.counters[""].items())
    if not pool.counters and not gates.checks_other_capacities:
        return ()
    return tuple([(len(slice_), tuple(pool.counters.get(slice_.name, {}).items())) for slice_ in pool.slices])


def _traits(device: AdvertisedDevice, gates: AllocatorRules) -> Hashable:
    return (
        device.shareable,
        tuple(
            (name, _exact(item.value), _policy(item.request_policy)) for name, item in device.device.capacity.items()
        ),
        device.demands,
        _taints(device.taints),
        _taints(device.rule_taints),
        bool(device.device.binding_conditions),
        bool(device.spec.skip_node_operations),
        bool(device.spec.per_device_node_selection),
        is_pinned(device, gates),
        has_many_terms(device),
    )


def _choice(choice: RequestAlternative) -> Hashable:
    return (
        choice.request,
        choice.name,
        choice.class_selectors,
        choice.selectors,
        choice.all_devices,
        choice.count,
        choice.admin_access,
        tuple((item.key, item.operator, item.value, item.effect) for item in choice.tolerations),
        tuple((name, _exact(amount)) for name, amount in (choice.capacity or {}).items()),
        tuple(choice.derived.items()),
    )


def _reads(choices: Iterable[RequestAlternative], evaluator: CelEvaluator) -> frozenset[DeviceRead] | None:
    """Return the attributes that expressions read; None if an expression may read any.

    Everything else that expressions can read of a device is in its traits or, like its driver, in every likeness.
    """
    found: set[DeviceRead] = set()
    for choice in choices:
        selectors = {*choice.class_selectors, *choice.selectors}
        for reads in (
            *(evaluator.selector_reads(text) for text in selectors),
            *(evaluator.derived_reads(text) for text in choice.derived.values()),
        ):
            if reads is None:
                return None
            found.update(read for read in reads if read.field == "attributes")
    return frozenset(found)


def _value(attribute: DeviceAttribute | None) -> Hashable:
    return None if attribute is None else (*vars(attribute).values(), frozenset(attribute.model_fields_set))


def _taints(taints: Iterable[DeviceTaint]) -> Hashable:
    return tuple([(taint.key, taint.value, taint.effect) for taint in taints])


def _policy(policy: CapacityRequestPolicy | None) -> Hashable:
    if policy is None:
        return None
    valid = policy.valid_range
    return (
        _exact(policy.default),
        tuple(_exact(value) for value in policy.valid_values),
        None if valid is None else (_exact(valid.min), _exact(valid.max), _exact(valid.step)),
    )


def _exact(quantity: Quantity | None) -> Hashable:
    """Return a quantity as written: 1Gi is not 1024Mi, because a result repeats the text of a device or claim."""
    return None if quantity is None else (str(quantity), quantity.format, quantity.as_decimal.as_tuple())


def _constraints(claim: ResourceClaim) -> Sequence[DeviceConstraint]:
    return claim.spec.devices.constraints
