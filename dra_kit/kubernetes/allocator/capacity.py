"""The capacity of a shared device that a request consumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from dra_kit.errors import AllocationError, Unsupported
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, to_nano
from dra_kit.kubernetes.resource.v1 import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity
from dra_kit.kubernetes.values.quantity import INT64_MAX, Quantity, divide_up

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


def capacity_share(
    requested: Mapping[str, Quantity] | None, device: AdvertisedDevice, *, fractional: bool
) -> CapacityShare | None:
    """Return the capacity that a share consumes; None if the device cannot serve the request.

    The remaining capacity is not checked.

    Args:
        requested: amounts by name; a device without one of these names is unsuitable.
        device: the device.
        fractional: gate FractionalCapacityRange.

    Raises:
        AllocationError: ``capacity-not-representable``, ``capacity-negative``.
    """
    capacity = device.device.capacity
    if not capacity and not requested:
        return NOTHING
    if not requested and device.whole:
        return CapacityShare({name: offer.value for name, offer in capacity.items()}, device.capacity)
    requested = requested or {}
    if not requested.keys() <= capacity.keys():
        return None
    amounts = {}
    for name, offer in capacity.items():
        amount = _resolve(name, requested.get(name), offer, fractional=fractional)
        if amount.sign < 0:
            raise AllocationError(f'capacity "{name}": capacity value is negative', kind="capacity-negative")
        amounts[name] = amount
    if any(_violates(amount, capacity[name].request_policy, fractional=fractional) for name, amount in amounts.items()):
        return None
    return CapacityShare(amounts, {name: to_nano(amount) for name, amount in amounts.items()})


def _resolve(name: str, requested: Quantity | None, offer: DeviceCapacity, *, fractional: bool) -> Quantity:
    policy = offer.request_policy
    if requested is None:
        return offer.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return requested
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _round_up(name, requested, policy.valid_range, policy.valid_range.min, fractional=fractional)
    return next((value for value in policy.valid_values if requested <= value), requested)


def _round_up(
    name: str, requested: Quantity, valid: CapacityRequestPolicyRange, least: Quantity, *, fractional: bool
) -> Quantity:
    if requested < least:
        return least
    step = valid.step
    if step is None:
        return requested
    milli = fractional and _has_milli_values(valid)
    size, start = (step.milli_value, least.milli_value) if milli else (step.value, least.value)
    if size <= 0:
        raise Unsupported(f'capacity "{name}": a request policy whose step is not positive')
    if milli:
        if not _is_milli(requested):
            raise _not_representable(name, f"request {requested} is not a representable milli value")
        wanted = requested.milli_value
    else:
        if to_nano(requested) > to_nano(Quantity(INT64_MAX)):
            raise _not_representable(name, f"request {requested} exceeds MaxInt64")
        wanted = requested.value
    rounded = start + size * divide_up(wanted - start, size)
    if rounded > INT64_MAX and start >= 0:
        limit = "the milli-value range" if milli else "MaxInt64"
        raise _not_representable(name, f"rounding request {requested} up to the next step passes {limit}")
    return _written_like(step, Quantity(f"{rounded}m") if milli else Quantity(rounded))


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
