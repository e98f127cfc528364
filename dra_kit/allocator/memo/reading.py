"""What attempts read: of the claims of a pod, of the pools that a node sees, and of their devices.

Where attempts read the same they come to the same devices, by their positions. What nobody reads is left out: names of
claims, pools and devices, and attributes that no selector and no constraint looks at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from dra_kit.allocator.cluster.attributes import published
from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.cluster.pools import NodePool
from dra_kit.allocator.gates import Gates
from dra_kit.allocator.requests.requests import Choice
from dra_kit.allocator.search.result import has_many_terms, is_pinned
from dra_kit.allocator.selectors.expressions import Evaluator
from dra_kit.allocator.selectors.likeness import SliceLikeness, likeness_of
from dra_kit.cel.syntax.reads import Read
from dra_kit.resource.v1 import CapacityRequestPolicy, DeviceAttribute, DeviceConstraint, DeviceTaint, ResourceClaim
from dra_kit.values.quantity import Quantity


def question_of(claims: Iterable[ResourceClaim], requests: Iterable[Sequence[Sequence[Choice]]]) -> Hashable:
    """Return what the claims of a pod ask for.

    Args:
        claims: of the pod.
        requests: of each claim, with the choices of each request.
    """
    return tuple(
        (
            tuple(tuple(_choice(choice) for choice in choices) for choices in asked),
            tuple((item.requests, item.match_attribute, item.distinct_attribute) for item in _constraints(claim)),
        )
        for claim, asked in zip(claims, requests, strict=True)
    )


class Reading:
    """What selectors and constraints of some claims read of devices.

    Args:
        claims: of one pod.
        choices: of all their requests.
        evaluator: of CEL.
    """

    def __init__(self, claims: Iterable[ResourceClaim], choices: Iterable[Choice], evaluator: Evaluator) -> None:
        self._reads = _reads(choices, evaluator)
        self._attributes = sorted(
            {item.match_attribute or item.distinct_attribute or "" for claim in claims for item in _constraints(claim)}
        )
        self._of_slice = None if self._reads is None else SliceLikeness(self._reads, self._attributes)

    def of(self, pool: NodePool) -> Hashable:
        """Return what the selectors and constraints read of the devices of a pool, by position."""
        if pool.is_usual and self._of_slice is not None:
            return tuple(map(self._of_slice.of, pool.slices))
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
        return likeness, tuple([_value(published(device, name)) for name in self._attributes])


def traits_of(pool: NodePool, gates: Gates) -> Hashable:
    """Return what every attempt reads of a pool, whatever it asks for: all but what other claims hold.

    Args:
        pool: the pool.
        gates: of the scheduler.
    """
    if pool.is_usual:
        return tuple([slice_.forms for slice_ in pool.slices])
    return (
        pool.incomplete,
        bool(pool.invalid),
        tuple((pool.counters or {}).items()),
        tuple([_traits(device, gates) for device in pool.usable]),
        tuple([device.demands for device in pool.drawing_elsewhere]),
    )


def _traits(device: AdvertisedDevice, gates: Gates) -> Hashable:
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


def _choice(choice: Choice) -> Hashable:
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


def _reads(choices: Iterable[Choice], evaluator: Evaluator) -> frozenset[Read] | None:
    """Return the attributes that expressions read; None where one expression may read any.

    What else expressions can read of a device is among its traits or, as its driver, in every likeness.
    """
    found: set[Read] = set()
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
    """Return a quantity as it is written: 1Gi is not 1024Mi, since a result repeats the text of a device or a claim."""
    return None if quantity is None else (str(quantity), quantity.format, quantity.as_decimal.as_tuple())


def _constraints(claim: ResourceClaim) -> Sequence[DeviceConstraint]:
    return claim.spec.devices.constraints
