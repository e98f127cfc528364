"""The capacities of a device and how claims may share them (KEP-5075)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError, duplicate, forbidden, invalid, required, too_many
from dra_kit.resource.validation.fields.formats import key_path, qualified_name
from dra_kit.values.quantity import Quantity

VALID_VALUES_MAX: Final = 10
_INT64_MAX: Final = 2**63 - 1


def validate_capacities(
    capacities: Mapping[str, v1.DeviceCapacity],
    path: str,
    *,
    allow_multiple_allocations: bool,
    fractional: bool = False,
) -> list[FieldError]:
    """Check keys and request policies.

    Args:
        capacities: of a device.
        path: of the map.
        allow_multiple_allocations: whether several claims may share the device.
        fractional: whether amounts are compared in thousandths where they have fractions, instead of rounded up to
            whole numbers (feature gate DRAFractionalCapacityRange).
    """
    errors = []
    for key, capacity in capacities.items():
        errors += qualified_name(key, path)
        if capacity.request_policy is None:
            continue
        where = f"{key_path(path, key)}.requestPolicy"
        if allow_multiple_allocations:
            errors += _validate_policy(capacity.request_policy, capacity.value, where, fractional=fractional)
        else:
            errors.append(forbidden(where, "allowMultipleAllocations must be true"))
    return errors


def _validate_policy(
    policy: v1.CapacityRequestPolicy, capacity: Quantity, path: str, *, fractional: bool
) -> list[FieldError]:
    if policy.valid_values and policy.valid_range is not None:
        detail = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [forbidden(path, detail)]
    if policy.valid_values:
        return _validate_values(policy, capacity, path, fractional=fractional)
    if policy.valid_range is not None:
        return _validate_range(policy.default, policy.valid_range, capacity, path, fractional=fractional)
    return []


def _validate_values(
    policy: v1.CapacityRequestPolicy, capacity: Quantity, path: str, *, fractional: bool
) -> list[FieldError]:
    if policy.default is None:
        return [required(f"{path}.default", "required when validValues is defined")]
    where, values = f"{path}.validValues", policy.valid_values
    errors = []
    if len(values) > VALID_VALUES_MAX:
        errors.append(too_many(where, len(values), VALID_VALUES_MAX))
        values = ()
    seen: set[Quantity | int] = set()
    for i, value in enumerate(values):
        if i and value < values[i - 1]:
            errors.append(invalid(f"{where}[{i}]", value, "values must be sorted in ascending order"))
        if value > capacity:
            detail = f"option is larger than capacity value: {capacity}"
            errors.append(invalid(f"{where}[{i}]", value, detail))
        key = value if fractional else value.value
        if key in seen:
            shown = f"{value.as_decimal:f}" if fractional else str(value.value)
            errors.append(duplicate(f"{where}[{i}]", shown))
        seen.add(key)
    if policy.default not in values:
        errors.append(invalid(where, policy.default, "default value is not valid according to the requestPolicy"))
    return errors


def _validate_range(
    default: Quantity | None, bounds: v1.CapacityRequestPolicyRange, capacity: Quantity, path: str, *, fractional: bool
) -> list[FieldError]:
    where = f"{path}.validRange"
    if default is None or bounds.min is None:
        given = {f"{path}.default": default, f"{where}.min": bounds.min}
        return [required(name, "required when validRange is defined") for name, value in given.items() if value is None]
    errors = _validate_bounds(default, bounds.min, bounds.max, capacity, where)
    limits = {"default": default, "min": bounds.min} | ({} if bounds.max is None else {"max": bounds.max})
    amounts = limits | ({} if bounds.step is None else {"step": bounds.step})
    in_thousandths = fractional and any(amount.as_decimal % 1 for amount in amounts.values())
    unfit = {name: amount for name, amount in amounts.items() if in_thousandths and not _has_thousandths(amount)}
    if unfit:
        detail = "value cannot be represented as a milli value"
        return errors + [invalid(f"{where}.{name}", amount, detail) for name, amount in unfit.items()]
    if bounds.step is not None:
        errors += _validate_step(bounds.step, limits, capacity, where, in_thousandths=in_thousandths)
    return errors


def _validate_bounds(
    default: Quantity, lowest: Quantity, highest: Quantity | None, capacity: Quantity, path: str
) -> list[FieldError]:
    errors = []
    if default < lowest:
        errors.append(invalid(f"{path}.default", default, f"default is less than min: {lowest}"))
    if lowest > capacity:
        errors.append(invalid(f"{path}.min", lowest, f"min is larger than capacity value: {capacity}"))
    if highest is not None:
        if lowest > highest:
            errors.append(invalid(f"{path}.max", lowest, f"min is larger than max: {highest}"))
        if highest > capacity:
            errors.append(invalid(f"{path}.max", highest, f"max is larger than capacity value: {capacity}"))
        if default > highest:
            errors.append(invalid(f"{path}.default", default, f"default is more than max: {highest}"))
    return errors


def _validate_step(
    step: Quantity, limits: Mapping[str, Quantity], capacity: Quantity, path: str, *, in_thousandths: bool
) -> list[FieldError]:
    """Check ``step``; ``limits`` are the policy's default, min and, where there is one, max."""
    if step.sign <= 0:
        return [invalid(f"{path}.step", step, "must be greater than zero")]
    lowest = limits["min"]
    errors, beyond = [], []
    if lowest + step > capacity:
        detail = f"one step {lowest + step} is larger than capacity value: {capacity}"
        errors.append(invalid(f"{path}.step", step, detail))
    for name, bound in ({} if in_thousandths else {**limits, "step": step}).items():
        if problem := _beyond_int64(bound):
            beyond.append(invalid(f"{path}.{name}", bound, problem))
    if beyond:
        return errors + beyond
    measure = _thousandths if in_thousandths else _whole
    detail = f"value is not a multiple of a given step ({step}) from ({lowest})"
    uneven = (bound for bound in limits.values() if (measure(bound) - measure(lowest)) % measure(step))
    return errors + [invalid(f"{path}.step", bound, detail) for bound in uneven]


def _whole(quantity: Quantity) -> int:
    """Return it rounded up, as Kubernetes computes without DRAFractionalCapacityRange."""
    return quantity.value


def _thousandths(quantity: Quantity) -> int:
    return quantity.milli_value


def _has_thousandths(quantity: Quantity) -> bool:
    """Return whether an amount is a whole number of thousandths, in 64 bits."""
    amount = quantity.as_decimal * 1000
    return not amount % 1 and abs(amount) <= _INT64_MAX


def _beyond_int64(quantity: Quantity) -> str:
    if quantity.sign < 0:
        return "must be greater than or equal to 0"
    return f"must not be larger than {_INT64_MAX}" if quantity.as_decimal > _INT64_MAX else ""
