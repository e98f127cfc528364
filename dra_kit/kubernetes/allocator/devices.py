"""Devices and slices of the allocator, the values of their attributes, and the capacity that a request consumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from dra_kit.errors import AllocationError, Unsupported
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Change
from dra_kit.kubernetes.resource.matching import Node, node_matches, taint_rule_covers, taint_rule_may_cover
from dra_kit.kubernetes.resource.slice_reader import DeviceShape, LazySlice, has_plain_attributes, is_version
from dra_kit.kubernetes.resource.v1 import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintSelector,
    NodeSelector,
    ResourceSliceSpec,
)
from dra_kit.kubernetes.values.quantity import INT64_MAX, MAX_DIGITS, Amount, Quantity, divide_up

_BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
_NANO_EXPONENT: Final = 9
_MOST: Final[int] = 10**MAX_DIGITS
_AMOUNTS: Final = 4096
_Named = TypeVar("_Named")


def to_nano(quantity: Quantity) -> int:
    """Return a quantity in billionths, the smallest unit, so that integers can be added exactly.

    A number of more than 4,000 digits counts as the largest one, so that all take little time.
    """
    return _nano(quantity.amount)


@lru_cache(maxsize=_AMOUNTS)
def _nano(amount: Amount) -> int:
    shift = amount.exponent + _NANO_EXPONENT  # from 0 on: no quantity is finer
    if amount.unscaled and shift + amount.digits > MAX_DIGITS:
        return _MOST if amount.unscaled > 0 else -_MOST
    return int(amount.unscaled * 10**shift) if amount.unscaled else 0


class DeviceID(NamedTuple):
    """A device of the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class CounterDemand(Struct, frozen=True):
    """The counters of one set that a device consumes.

    Attributes:
        counter_set: its name.
        amounts: (counter, billionths).
        groups: compatibility groups; empty is "no groups".
    """

    counter_set: str
    amounts: tuple[tuple[str, int], ...]
    groups: frozenset[str]


class AdvertisedDevice:
    """The device at a position of a slice. Compared by identity: a republished device is a different one.

    Attributes:
        id: driver, pool and name.
        spec: the spec of the slice.
        form: the shape of a plain device; None for other devices.
        shareable: it can be allocated several times (DRAConsumableCapacity).
        taints: the device's own taints with blocking effects.
        rule_taints: taints of DeviceTaintRules with blocking effects.
        demands: the counters that it consumes.
        capacity: billionths of the whole capacity by name.
        whole: without a request, a share takes all of the capacity, because the request policy is missing.
    """

    __slots__ = (
        "__weakref__", "_plain", "_position", "_slice", "capacity", "demands", "form", "id", "rule_taints", "shareable",
        "spec", "taints", "whole",
    )  # fmt: skip

    def __init__(self, slice_: LazySlice, position: int) -> None:
        self._slice = slice_
        self._position = position
        self.spec: ResourceSliceSpec = slice_.spec
        self.rule_taints: tuple[DeviceTaint, ...] = ()
        usual = slice_.usual
        self.form: DeviceShape | None = None if usual is None else usual.forms[position]
        if usual is None:
            self._read(slice_.spec.devices[position])
            return
        name = usual.documents[position].get("name", "")
        self.id: DeviceID = DeviceID(self.spec.driver, self.spec.pool.name, name)
        self._plain: bool | None = True
        self.shareable: bool = False
        self.taints: tuple[DeviceTaint, ...] = ()
        self.demands: tuple[CounterDemand, ...] = ()
        self.capacity: dict[str, int]
        self.whole: bool
        self.capacity, self.whole = _amounts_of(usual.forms[position])

    def _read(self, device: Device) -> None:
        self.id = DeviceID(self.spec.driver, self.spec.pool.name, device.name)
        self._plain = None
        self.shareable = bool(device.allow_multiple_allocations)
        self.taints = _blocking(device.taints) if device.taints else ()
        self.demands = tuple([_demand(demand) for demand in device.consumes_counters])
        self.capacity, self.whole = _amounts(device.capacity)

    @property
    def device(self) -> Device:
        """The published device."""
        return self._slice.devices[self._position]

    @property
    def slice_name(self) -> str:
        """The name of the ResourceSlice that publishes it."""
        return self._slice.name

    @property
    def document(self) -> Mapping[str, Any]:
        """A plain device as JSON."""
        assert self._slice.usual is not None  # noqa: S101 - the caller checked its form
        return self._slice.usual.documents[self._position]

    @property
    def has_plain_attributes(self) -> bool:
        """Whether certainly no attribute makes every expression fail, regardless of its reads."""
        if self._plain is None:
            self._plain = has_plain_attributes(self.device)
        return self._plain

    @property
    def node_scope(self) -> tuple[str | None, bool | None, NodeSelector | None]:
        """``nodeName``, ``allNodes`` and ``nodeSelector`` that apply to the device, from itself or its slice."""
        source = self.device if self.spec.per_device_node_selection else self.spec
        return source.node_name, source.all_nodes, source.node_selector


class AdvertisedSlice:
    """A slice with its devices. Compared by identity, like its devices.

    Attributes:
        name: of the ResourceSlice.
        spec: the published spec; it contains the devices only if they are not plain.
        published: the slice as read.
        has_rule_taints: a DeviceTaintRule taints one of its devices.
        grouped: a device has compatibility groups.
        binding: a device has binding conditions.
    """

    def __init__(self, slice_: LazySlice) -> None:
        self.name: str = slice_.name
        self.spec: ResourceSliceSpec = slice_.spec
        self.published: LazySlice = slice_
        self.has_rule_taints: bool = False
        usual = slice_.usual is not None
        self.grouped: bool = not usual and any(demand.groups for device in self.devices for demand in device.demands)
        self.binding: bool = not usual and any(device.binding_conditions for device in slice_.spec.devices)

    def __len__(self) -> int:
        return len(self.published)

    @cached_property
    def devices(self) -> tuple[AdvertisedDevice, ...]:
        """The devices in the driver's order."""
        return tuple([AdvertisedDevice(self.published, position) for position in range(len(self.published))])

    @property
    def is_usual(self) -> bool:
        """Whether it has plain devices for the node that it names, and no rule taints them."""
        spec = self.spec
        return bool(self.published.usual is not None and spec.node_name) and not (
            self.has_rule_taints
            or spec.node_selector is not None
            or spec.per_device_node_selection
            or spec.shared_counters
            or spec.skip_node_operations
        )

    @property
    def whole(self) -> bool:
        """Whether a share of any device takes all of its capacity without a request."""
        if self.published.usual is not None:
            return all(_amounts_of(form)[1] for form in set(self.forms))
        return all(device.whole for device in self.devices)

    @property
    def forms(self) -> tuple[DeviceShape, ...]:
        """The shapes of plain devices."""
        return () if self.published.usual is None else self.published.usual.forms

    @property
    def drawing(self) -> Sequence[AdvertisedDevice]:
        """The devices that consume counters."""
        if self.published.usual is not None:
            return ()
        return [device for device in self.devices if device.demands]

    def taint(
        self, rules: Sequence[DeviceTaintRule], selects: Callable[[AdvertisedDevice, DeviceTaintSelector], bool]
    ) -> bool:
        """Apply DeviceTaintRules to the devices, replacing earlier ones; return whether that changed any device.

        Args:
            rules: all rules.
            selects: whether a device matches the class and expressions of a rule.
        """
        driver, pool = self.spec.driver, self.spec.pool.name
        rules = [rule for rule in rules if taint_rule_may_cover(rule.spec.device_selector, driver, pool)]
        if not rules and not self.has_rule_taints:
            return False  # no device needs to be checked
        before = [device.rule_taints for device in self.devices]
        for device in self.devices:
            device.rule_taints = _blocking(
                rule.spec.taint
                for rule in rules
                if taint_rule_covers(rule.spec.device_selector, device.id, partial(selects, device))
            )
        after = [device.rule_taints for device in self.devices]
        self.has_rule_taints = any(after)
        return before != after

    def concerns(self, node: Node, *, counters_apart: bool, counters_everywhere: bool) -> bool:
        """Whether a device may be for ``node``; counter sets in slices of their own concern all nodes.

        With ``counters_everywhere``, they do even if their slice names another node.

        Raises:
            ValueError: a node selector that is evaluated is invalid.
        """
        spec = self.spec
        if spec.shared_counters and counters_apart:
            return counters_everywhere or spec.node_name in {None, "", node.name}
        if spec.node_name or spec.all_nodes or spec.node_selector is not None:
            return node_matches(node, spec.node_name, spec.all_nodes, spec.node_selector)
        if spec.per_device_node_selection:
            return any(node_matches(node, *device.node_scope) for device in self.devices)
        return False


def _amounts(capacity: Mapping[str, DeviceCapacity]) -> tuple[dict[str, int], bool]:
    """Return the capacity of a device in billionths, and whether a share without a request takes all of it."""
    amounts = {name: _nano(offer.value.amount) for name, offer in capacity.items()}
    whole = all(offer.request_policy is None for offer in capacity.values()) and all(
        amount >= 0 for amount in amounts.values()
    )
    return amounts, whole


@lru_cache(maxsize=_AMOUNTS)
def _amounts_of(form: DeviceShape) -> tuple[dict[str, int], bool]:
    """Return the amounts of all devices of a shape; see ``_amounts``."""
    return _amounts(form.capacity)


def _demand(consumption: DeviceCounterConsumption) -> CounterDemand:
    return CounterDemand(
        consumption.counter_set,
        tuple((name, to_nano(counter.value)) for name, counter in consumption.counters.items()),
        frozenset(consumption.compatibility_groups),
    )


def _blocking(taints: Iterable[DeviceTaint]) -> tuple[DeviceTaint, ...]:
    return tuple(taint for taint in taints if taint.effect in _BLOCKING_EFFECTS)


Scalar: TypeAlias = tuple[str, str | int | bool]
"""Type and value; versions compare as strings."""


def published_attribute(device: AdvertisedDevice, name: str) -> DeviceAttribute | None:
    """Return the attribute with a fully qualified name; an attribute without a domain has the driver's domain."""
    attributes = device.device.attributes
    if (attribute := attributes.get(name)) is not None:
        return attribute
    domain, slash, identifier = name.partition("/")
    return attributes.get(identifier) if slash and domain == device.id.driver else None


def scalar(attribute: DeviceAttribute) -> Scalar | None:
    """Return the type and the value of an attribute; None if it is a list."""
    if attribute.string is not None:
        return "string", attribute.string
    if attribute.int_ is not None:
        return "int", attribute.int_
    if attribute.bool_ is not None:
        return "bool", attribute.bool_
    if attribute.version is not None:
        return "version", attribute.version
    return None


def elements(attribute: DeviceAttribute) -> frozenset[Scalar]:
    """Return the values of an attribute; an attribute that is not a list has a single value (KEP-5491)."""
    if (single := scalar(attribute)) is not None:
        return frozenset({single})
    if attribute.strings is not None:
        return frozenset(("string", value) for value in attribute.strings)
    if attribute.ints is not None:
        return frozenset(("int", value) for value in attribute.ints)
    if attribute.bools is not None:
        return frozenset(("bool", value) for value in attribute.bools)
    return frozenset(("version", value) for value in attribute.versions or ())


def is_usable(attribute: DeviceAttribute, *, lists: bool) -> bool:
    """Return whether the scheduler can compare the values of an attribute: versions parse, and there is a value.

    Lists have values with the gate DRAListTypeAttributes only (``lists``).
    """
    single = scalar(attribute)
    if single is None and not lists:
        return False
    values = elements(attribute)
    return bool(values) and all(kind != "version" or is_version(str(value)) for kind, value in values)


def without_build_metadata(attribute: DeviceAttribute) -> DeviceAttribute:
    """Return an attribute whose versions are equal if semantic versioning gives them the same precedence."""
    if attribute.version is not None:
        return DeviceAttribute(version=attribute.version.partition("+")[0])
    if attribute.versions is not None:
        return DeviceAttribute(versions=tuple(version.partition("+")[0] for version in attribute.versions))
    return attribute


_NAMES: Final = 1024


@lru_cache(maxsize=_NAMES)
def published_names(driver: str, domain: str, name: str) -> tuple[str, ...]:
    """Return the possible names of an attribute or capacity: with its domain, and without that of the driver."""
    qualified = f"{domain}/{name}" if domain else name
    return (qualified, name) if domain == driver else (qualified,)


def is_pinned(device: AdvertisedDevice, gates: AllocatorRules) -> bool:
    """Whether only the node of the attempt can use the device afterwards."""
    return device.node_scope[0] is not None or bool(gates.variant.binds_to_node and device.device.binds_to_node)


def has_many_terms(device: AdvertisedDevice) -> bool:
    """Whether the node selector of the device has several terms, which an allocation cannot represent."""
    selector = device.node_scope[2]
    return selector is not None and len(selector.node_selector_terms) > 1


_NANO_PER_MILLI: Final = 10**6
_MANY_DIGITS: Final = 18


class CapacityShare(Struct, frozen=True):
    """The capacity that one claim consumes of a device.

    Attributes:
        amounts: amount of each capacity of the device.
        nanos: these amounts in billionths.
    """

    amounts: dict[str, Quantity]
    nanos: dict[str, int]

    def fits(self, device: AdvertisedDevice, *taken: Mapping[str, int]) -> bool:
        """Whether the device has this capacity in addition to the ``taken`` billionths in use."""
        return all(
            amount + sum([part.get(name, 0) for part in taken]) <= device.capacity[name]
            for name, amount in self.nanos.items()
        )


NOTHING: Final = CapacityShare({}, {})


def _full_name(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def normalized(amounts: Mapping[str, _Named], driver: str) -> dict[str, _Named]:
    """Return what each capacity name stands for by full name; one that is written in full wins over a short one."""
    full_last = sorted(amounts.items(), key=lambda item: "/" in item[0])
    return {_full_name(name, driver): value for name, value in full_last}


def asked_and_offered(
    requested: Mapping[str, Quantity] | None, device: AdvertisedDevice, gates: AllocatorRules
) -> tuple[Mapping[str, Quantity], Mapping[str, DeviceCapacity]]:
    """Return what a request asks of a device and what the device offers, by the names that the device publishes.

    Raises:
        AllocationError: ``capacity-named-twice``.
    """
    published = device.device.capacity
    if not gates.has(Change.CAPACITY_NAMES_NORMALIZED):
        return requested or {}, published
    offers = _one_name_each(published, device.id.driver)
    return _as_published(requested or {}, offers, device.id.driver), offers


def _one_name_each(published: Mapping[str, DeviceCapacity], driver: str) -> Mapping[str, DeviceCapacity]:
    """Return the capacity of a device by published name, one name for each."""
    if all("/" not in name for name in published):
        return published
    return {name: offer for name, offer in published.items() if f"{driver}/{name}" not in published}


def _as_published(
    requested: Mapping[str, Quantity], offers: Mapping[str, DeviceCapacity], driver: str
) -> Mapping[str, Quantity]:
    """Return a request under the names that a device publishes.

    Raises:
        AllocationError: ``capacity-named-twice``.
    """
    spelled = {_full_name(name, driver): name for name in offers}
    found: dict[str, Quantity] = {}
    asked: dict[str, str] = {}
    for name, amount in requested.items():
        full = _full_name(name, driver)
        if full in asked:
            first, second = sorted((asked[full], name))
            raise AllocationError(
                f'capacity "{full}" requested both as "{first}" and as "{second}"', kind="capacity-named-twice"
            )
        asked[full] = name
        found[spelled.get(full, full)] = amount
    return found


def capacity_share(
    requested: Mapping[str, Quantity] | None, device: AdvertisedDevice, gates: AllocatorRules
) -> CapacityShare | None:
    """Return the capacity that a share consumes; None if the device cannot serve the request.

    The remaining capacity is not checked.

    Args:
        requested: amounts by name; a device without one of these names is unsuitable.
        device: the device.
        gates: of the scheduler.

    Raises:
        AllocationError: ``capacity-not-representable``, ``capacity-negative``, ``capacity-named-twice``.
    """
    requested, capacity = asked_and_offered(requested, device, gates)
    checked = gates.has(Change.AMOUNTS_CHECKED)
    if not capacity and not requested:
        return NOTHING
    if not requested and device.whole and len(capacity) == len(device.capacity):
        return CapacityShare({name: offer.value for name, offer in capacity.items()}, device.capacity)
    if not requested.keys() <= capacity.keys():
        return None
    if gates.has(Change.NEGATIVE_AMOUNTS_FAIL):
        for name, amount in requested.items():
            _check_sign(name, amount)
    amounts = {}
    for name, offer in capacity.items():
        amount = _resolve(name, requested.get(name), offer, gates, checked=checked)
        if checked:
            _check_sign(name, amount)
        amounts[name] = amount
    fractional = gates.fractional_capacity_range
    if any(_violates(amount, capacity[name].request_policy, fractional=fractional) for name, amount in amounts.items()):
        return None
    return CapacityShare(amounts, {name: to_nano(amount) for name, amount in amounts.items()})


def _check_sign(name: str, amount: Quantity) -> None:
    if amount.sign < 0:
        raise AllocationError(f'capacity "{name}": capacity value is negative', kind="capacity-negative")


def _resolve(
    name: str, requested: Quantity | None, offer: DeviceCapacity, gates: AllocatorRules, *, checked: bool
) -> Quantity:
    policy = offer.request_policy
    if requested is None:
        return offer.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return requested
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _round_up(name, requested, policy.valid_range, policy.valid_range.min, gates, checked=checked)
    return next((value for value in policy.valid_values if requested <= value), requested)


def _round_up(
    name: str, requested: Quantity, valid: CapacityRequestPolicyRange, least: Quantity, gates: AllocatorRules,
    *, checked: bool,
) -> Quantity:  # fmt: skip
    if requested < least:
        return least
    step = valid.step
    if step is None:
        return requested
    milli = gates.fractional_capacity_range and _has_milli_values(valid)
    size, start = (step.milli_value, least.milli_value) if milli else (step.value, least.value)
    if size <= 0:
        raise Unsupported(f'capacity "{name}": a request policy whose step is not positive')
    if milli:
        if not _is_milli(requested):
            raise _not_representable(name, f"request {requested} is not a representable milli value")
        wanted = requested.milli_value
    else:
        if checked and to_nano(requested) > to_nano(Quantity(INT64_MAX, gates.version)):
            raise _not_representable(name, f"request {requested} exceeds MaxInt64")
        wanted = requested.value
    rounded = start + size * divide_up(wanted - start, size)
    if not checked:
        rounded = _as_int64(rounded)
    elif rounded > INT64_MAX and start >= 0:
        limit = "the milli-value range" if milli else "MaxInt64"
        raise _not_representable(name, f"rounding request {requested} up to the next step passes {limit}")
    model = step if gates.has(Change.AMOUNTS_WRITTEN_LIKE_STEPS) else _BINARY
    return _written_like(model, Quantity(f"{rounded}m" if milli else rounded, gates.version))


_BINARY: Final = Quantity("1Ki")


def _as_int64(number: int) -> int:
    """Return what is left of a number in 64 bits."""
    return (number + INT64_MAX + 1) % (2 * (INT64_MAX + 1)) - INT64_MAX - 1


def _violates(amount: Quantity, policy: CapacityRequestPolicy | None, *, fractional: bool) -> bool:
    if policy is None or (policy.default is not None and _is_same_representation(amount, policy.default)):
        return False
    valid = policy.valid_range
    if valid is None:
        return bool(policy.valid_values) and amount not in policy.valid_values
    if valid.max is not None and amount > valid.max:
        return True
    if valid.step is None:
        return False
    if valid.min is None or valid.step.value <= 0:
        raise Unsupported("a request policy whose range has a step and no minimum, or a step that is not positive")
    if fractional and _has_milli_values(valid):
        if not _is_milli(amount):
            return True
        return (amount.milli_value - valid.min.milli_value) % valid.step.milli_value != 0
    return (amount.value - valid.min.value) % valid.step.value != 0


def _has_milli_values(valid: CapacityRequestPolicyRange) -> bool:
    if valid.step is None or valid.step.milli_value < 1:
        return False
    return all(bound is None or _is_milli(bound) for bound in (valid.min, valid.max, valid.step))


def _is_milli(quantity: Quantity) -> bool:
    """Whether a quantity is a whole number of thousandths within int64."""
    return to_nano(quantity) == quantity.milli_value * _NANO_PER_MILLI


def _written_like(model: Quantity, number: Quantity) -> Quantity:
    """Return ``number`` with the suffix family of ``model``, which is not zero: a sum has that of its left operand."""
    return model + (number - model)


def _is_same_representation(left: Quantity, right: Quantity) -> bool:
    """Whether Go's ``==`` holds, which compares the internal form: int64 with exponent, and suffix family.

    The decimal form has its number behind a pointer, so that no two are the same. Binary quantities with a fraction
    and quantities with too many digits have this form.
    """
    if left.format != right.format or left.as_decimal.as_tuple() != right.as_decimal.as_tuple():
        return False
    digits, exponent = left.as_decimal.as_tuple().digits, left.as_decimal.as_tuple().exponent
    return len(digits) <= _MANY_DIGITS and not (left.format == "BinarySI" and exponent != 0)


def _not_representable(name: str, text: str) -> AllocationError:
    return AllocationError(
        f'capacity "{name}": capacity request cannot be represented in the device\'s range arithmetic: {text}',
        kind="capacity-not-representable",
    )
