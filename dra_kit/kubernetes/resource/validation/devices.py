"""Rules for devices in slices: attributes, capacities, counters, taints, node resources.

:func:`validate_device_fields` has all rules for one device; a rule that is added there holds for the API server, for
``dra.Device``, publication and lint, which all call it. ``slices.py`` has the rules for all devices of a slice, and how
many fit. Constructors of errors, such as ``too_many`` and ``invalid``, are in ``field_errors``; give the error
``author_detail`` if its text speaks of ResourceSlices, which authors do not write.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from dra_kit.kubernetes.release import Change, KubernetesVersion, Release
from dra_kit.kubernetes.resource import names, v1
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    GoStruct,
    check_length,
    duplicate,
    forbidden,
    invalid,
    mark_declarative,
    mark_key,
    not_found,
    required,
    too_many,
)
from dra_kit.kubernetes.resource.names import key_path, label_errors, qualified_name
from dra_kit.kubernetes.resource.validation.fields import (
    entries_within,
    found_after_refusal,
    validate_binding,
    validate_node_name,
    validate_node_selector,
    validate_one_term,
    validate_taint,
)
from dra_kit.kubernetes.values.quantity import MAX_DIGITS, MILLI, Quantity, wrap_int64
from dra_kit.kubernetes.values.semver import Version


class SliceLimits(NamedTuple):
    """How much fits into one ResourceSlice of a release (k8s.io/api ``resource/v1/types.go``); None is without a limit.

    Attributes:
        devices: devices.
        advanced_devices: devices as soon as one has taints, consumes counters or has a list attribute.
        taints: taints of one device.
        counter_sets: counter sets.
        counters_in_set: counters of one set, and counters that a device takes from one set.
        counters: counters of all sets.
        consumed_sets: counter sets that one device consumes.
        consumed_counters: counters that one device consumes, from all sets.
        all_consumed_counters: counters that all devices consume.
    """

    devices: int
    advanced_devices: int
    taints: int
    counter_sets: int | None = None
    counters_in_set: int | None = None
    counters: int | None = None
    consumed_sets: int | None = None
    consumed_counters: int | None = None
    all_consumed_counters: int | None = None


LIMITS: Final = SliceLimits(
    devices=128, advanced_devices=64, taints=16, counter_sets=8, counters_in_set=32, consumed_sets=2
)
"""Since Kubernetes 1.35."""
_LIMITS_IN_TOTAL: Final = SliceLimits(
    devices=128, advanced_devices=128, taints=4, counters=32, consumed_counters=32, all_consumed_counters=1024
)
"""In Kubernetes 1.34."""


def slice_limits(version: KubernetesVersion) -> SliceLimits:
    """Return how much fits into a slice of a release."""
    return LIMITS if version.has(Change.COUNTERS_ARE_LIMITED_BY_SET) else _LIMITS_IN_TOTAL


VALID_VALUES_MAX: Final = 10
_INT64_MAX: Final = 2**63 - 1


def validate_capacities(
    capacities: Mapping[str, v1.DeviceCapacity], path: str, *, allow_multiple_allocations: bool, release: Release
) -> list[FieldError]:
    """Check keys and request policies.

    Args:
        capacities: of a device.
        path: of the map.
        allow_multiple_allocations: whether several claims may share the device.
        release: with feature gate DRAFractionalCapacityRange, amounts are compared in thousandths where they have
            fractions, instead of rounded up to whole numbers.
    """
    errors = []
    for key, capacity in capacities.items():
        errors += mark_key(qualified_name(key, path, release), key_path("", key))
        if capacity.request_policy is None:
            continue
        where = f"{key_path(path, key)}.requestPolicy"
        if allow_multiple_allocations:
            errors += _validate_policy(capacity.request_policy, capacity.value, where, release)
        else:
            errors.append(forbidden(where, "allowMultipleAllocations must be true"))
    return errors


_FRACTIONS: Final = "DRAFractionalCapacityRange"


def _validate_policy(
    policy: v1.CapacityRequestPolicy, capacity: Quantity, path: str, release: Release
) -> list[FieldError]:
    if policy.valid_values and policy.valid_range is not None:
        detail = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [forbidden(path, detail)]
    if policy.valid_values:
        return _validate_values(policy, capacity, path, release)
    if policy.valid_range is not None:
        return _validate_range(policy.default, policy.valid_range, capacity, path, release)
    return []


def _validate_values(
    policy: v1.CapacityRequestPolicy, capacity: Quantity, path: str, release: Release
) -> list[FieldError]:
    if policy.default is None:
        return [required(f"{path}.default", "required when validValues is defined")]
    where, fractional = f"{path}.validValues", _FRACTIONS in release
    errors = []
    if len(policy.valid_values) > VALID_VALUES_MAX:
        errors.append(too_many(where, len(policy.valid_values), VALID_VALUES_MAX))
    values = [value for _, value in entries_within(policy.valid_values, VALID_VALUES_MAX, where, release)]
    seen: set[Quantity | int] = set()
    for i, value in enumerate(values):
        if i and value < values[i - 1]:
            errors.append(invalid(f"{where}[{i}]", value, "values must be sorted in ascending order"))
        if value > capacity:
            detail = f"option is larger than capacity value: {capacity}"
            errors.append(invalid(f"{where}[{i}]", value, detail))
        key = value if fractional else value.value
        if key in seen:
            shown = _all_digits(value) if fractional else str(value.value)
            errors.append(duplicate(f"{where}[{i}]", shown))
        seen.add(key)
    if policy.default not in values:
        errors.append(invalid(where, policy.default, "default value is not valid according to the requestPolicy"))
    return errors


def _validate_range(
    default: Quantity | None, bounds: v1.CapacityRequestPolicyRange, capacity: Quantity, path: str, release: Release
) -> list[FieldError]:
    where = f"{path}.validRange"
    if default is None or bounds.min is None:
        given = {f"{path}.default": default, f"{where}.min": bounds.min}
        return [required(name, "required when validRange is defined") for name, value in given.items() if value is None]
    limits = {"default": default, "min": bounds.min} | ({} if bounds.max is None else {"max": bounds.max})
    errors = _validate_bounds(limits, capacity, where, release)
    amounts = limits | ({} if bounds.step is None else {"step": bounds.step})
    in_thousandths = _FRACTIONS in release and not all(amount.is_whole for amount in amounts.values())
    unfit = {name: amount for name, amount in amounts.items() if in_thousandths and not _has_thousandths(amount)}
    if unfit:
        detail = "value cannot be represented as a milli value"
        return errors + [invalid(f"{where}.{name}", amount, detail) for name, amount in unfit.items()]
    if bounds.step is not None:
        checked = release.has(Change.STEPS_ARE_POSITIVE)
        errors += _validate_step(bounds.step, limits, capacity, where, thousandths=in_thousandths, checked=checked)
    return errors


def _validate_bounds(
    limits: Mapping[str, Quantity], capacity: Quantity, path: str, release: Release
) -> list[FieldError]:
    """Check the policy's default, min and, where there is one, max."""
    default, lowest, highest = limits["default"], limits["min"], limits.get("max")
    named = release.has(Change.DEFAULTS_OUT_OF_RANGE_ARE_NAMED)
    errors = []
    if default < lowest:
        where = f"{path}.{'default' if named else 'min'}"
        errors.append(invalid(where, default, f"default is less than min: {lowest}"))
    if lowest > capacity:
        errors.append(invalid(f"{path}.min", lowest, f"min is larger than capacity value: {capacity}"))
    if highest is not None:
        if lowest > highest:
            errors.append(invalid(f"{path}.max", lowest, f"min is larger than max: {highest}"))
        if highest > capacity:
            errors.append(invalid(f"{path}.max", highest, f"max is larger than capacity value: {capacity}"))
        if default > highest:
            where = f"{path}.{'default' if named else 'max'}"
            errors.append(invalid(where, default, f"default is more than max: {highest}"))
    return errors


def _validate_step(
    step: Quantity, limits: Mapping[str, Quantity], capacity: Quantity, path: str, *, thousandths: bool, checked: bool
) -> list[FieldError]:
    """Check ``step``; ``limits`` are the policy's default, min and, where there is one, max.

    Args:
        step: of the policy.
        limits: what it leads to.
        capacity: of the device.
        path: of the range.
        thousandths: whether amounts are compared in thousandths; in whole numbers otherwise.
        checked: whether amounts must fit these whole numbers, and steps must be positive.
    """
    if step.sign <= 0 if checked else not step.value:  # it is divided by
        return [invalid(f"{path}.step", step, "must be greater than zero")]
    lowest = limits["min"]
    errors, beyond = [], []
    if lowest + step > capacity:
        detail = f"one step {lowest + step} is larger than capacity value: {capacity}"
        errors.append(invalid(f"{path}.step", step, detail))
    for name, bound in ({**limits, "step": step} if checked and not thousandths else {}).items():
        if problem := _beyond_int64(bound):
            beyond.append(invalid(f"{path}.{name}", bound, problem))
    if beyond:
        return errors + beyond

    def measure(quantity: Quantity) -> int:
        """Return a quantity in thousandths, or rounded up as in Kubernetes without DRAFractionalCapacityRange."""
        return quantity.milli_value if thousandths else quantity.value

    detail = f"value is not a multiple of a given step ({step}) from ({lowest})"
    uneven = (bound for bound in limits.values() if wrap_int64(measure(bound) - measure(lowest)) % measure(step))
    return errors + [invalid(f"{path}.step", bound, detail) for bound in uneven]


def _has_thousandths(quantity: Quantity) -> bool:
    """Return whether an amount is a whole number of thousandths, in 64 bits."""
    milli = quantity.amount.scaled_int64(MILLI, bounded=True)
    return Quantity(f"{milli}m") == quantity


def _all_digits(quantity: Quantity) -> str:
    """Return a number as Kubernetes shows a key of a set; one that is too long to read with a power of ten."""
    number = quantity.as_decimal
    return f"{number:f}" if number.adjusted() < MAX_DIGITS else str(quantity)


def _beyond_int64(quantity: Quantity) -> str:
    if quantity.sign < 0:
        return "must be greater than or equal to 0"
    return f"must not be larger than {_INT64_MAX}" if quantity.as_decimal > _INT64_MAX else ""


ATTRIBUTES_AND_CAPACITIES_MAX: Final = 32
ATTRIBUTE_VALUES_MAX: Final = 48
STRING_MAX_LENGTH: Final = 64
"""Bytes of a string or version, in lists too."""
_SCALARS: Final = {"int_": "int", "bool_": "bool", "string": "string", "version": "version"}
_LISTS: Final = ("ints", "bools", "strings", "versions")
_MEMBERS: Final = ", ".join(f"`{name}`" for name in (*_SCALARS.values(), *_LISTS))


def validate_attributes(attributes: Mapping[str, v1.DeviceAttribute], path: str, release: Release) -> list[FieldError]:
    """Check keys and values; ``path`` is that of the map."""
    errors = []
    for key, attribute in attributes.items():
        errors += mark_key(qualified_name(key, path, release), key_path("", key))
        errors += _validate_attribute(attribute, key_path(path, key), release)
    return errors


def validate_counts(device: v1.Device, path: str) -> list[FieldError]:
    """Check the number of attributes, capacities and attribute values."""
    errors = []
    entries = len(device.attributes) + len(device.capacity)
    if entries > ATTRIBUTES_AND_CAPACITIES_MAX:
        detail = f"the total number of attributes and capacities must not exceed {ATTRIBUTES_AND_CAPACITIES_MAX}"
        errors.append(replace(invalid(path, entries, detail), counted=("attributes", "capacity")))
    values = sum(count_values(attribute) for attribute in device.attributes.values())
    if values > ATTRIBUTE_VALUES_MAX:
        detail = f"the total number of attribute values must not exceed {ATTRIBUTE_VALUES_MAX}"
        errors.append(replace(invalid(path, values, detail), counted=("attributes",)))
    return errors


def count_values(attribute: v1.DeviceAttribute) -> int:
    """Return the number of scalar values and list items."""
    scalars = sum(getattr(attribute, name) is not None for name in _SCALARS)
    return scalars + sum(len(getattr(attribute, name) or ()) for name in _LISTS)


def has_list(attribute: v1.DeviceAttribute) -> bool:
    """Return whether the attribute has a list value (KEP-5491)."""
    return any(getattr(attribute, name) is not None for name in _LISTS)


def validate_partition_type(device: v1.Device, attribute_name: str, driver: str, path: str) -> list[FieldError]:
    """Check that a device that consumes counters has ``partitionTypeAttribute`` as a string (KEP-5677)."""
    if not device.consumes_counters:
        return []
    domain, _, identifier = attribute_name.partition("/")
    attribute = device.attributes.get(attribute_name)
    if attribute is None and domain == driver:
        attribute = device.attributes.get(identifier)
    where = key_path(path, attribute_name)
    if attribute is None:
        detail = "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set"
        return [required(where, detail)]
    if attribute.string is None:
        detail = "must be a string value because `partitionTypeAttribute` names this attribute"
        return [invalid(where, _go_attribute(attribute), detail)]
    return []


def _validate_attribute(attribute: v1.DeviceAttribute, path: str, release: Release) -> list[FieldError]:
    empty = (name for name in _LISTS if getattr(attribute, name) == ())
    errors = [invalid(f"{path}.{name}", [], "must not be empty if specified") for name in empty]
    if attribute.string is not None:
        errors += check_length(attribute.string, STRING_MAX_LENGTH, f"{path}.string")
    if attribute.version is not None:
        errors += _validate_version(attribute.version, f"{path}.version", release)
    for i, item in enumerate(attribute.strings or ()):
        errors += check_length(item, STRING_MAX_LENGTH, f"{path}.strings[{i}]")
    for i, item in enumerate(attribute.versions or ()):
        errors += _validate_version(item, f"{path}.versions[{i}]", release)
    present = [shown for name, shown in _SCALARS.items() if getattr(attribute, name) is not None]
    present += [name for name in _LISTS if getattr(attribute, name)]
    if not present:
        errors += mark_declarative([invalid(path, "", f"must specify one of: {_MEMBERS}")])
    elif len(present) > 1:
        detail = f"must specify exactly one of: {_MEMBERS}"
        errors += mark_declarative([invalid(path, f"{{{', '.join(present)}}}", detail)])
    elif sum(getattr(attribute, name) is not None for name in (*_SCALARS, *_LISTS)) > 1:
        # only the hand-written rule counts an empty list in addition to a value
        errors.append(invalid(path, _go_attribute(attribute), "exactly one value must be specified"))
    return errors


_VERSION_RULE: Final = "must be a string compatible with semver.org spec 2.0.0"
VERSION_DIGITS_MAX: Final = 18
"""Digits of a number in a version, so that it fits an int64."""


def _validate_version(text: str, path: str, release: Release) -> list[FieldError]:
    rule, digits = _VERSION_RULE, None
    if release.has(Change.VERSIONS_HAVE_18_DIGITS):
        rule, digits = f"{_VERSION_RULE}, with at most {VERSION_DIGITS_MAX} digits in numbers", VERSION_DIGITS_MAX
    errors = [] if _is_version(text, digits) else [invalid(path, text, rule)]
    return errors + check_length(text, STRING_MAX_LENGTH, path)


def _is_version(text: str, digits: int | None) -> bool:
    """Return whether a text is a version whose numbers have at most some digits."""
    try:
        version = Version(text)
    except ValueError:
        return False
    identifiers = (identifier for identifier in version.prerelease if identifier.isdigit())
    numbers = (version.major, version.minor, version.patch, *map(int, identifiers))
    return digits is None or max(numbers) < 10**digits


def _go_attribute(attribute: v1.DeviceAttribute) -> GoStruct:
    scalars = {f"{shown.title()}Value": getattr(attribute, name) for name, shown in _SCALARS.items()}
    return GoStruct(scalars | {f"{name[:-1].title()}Values": getattr(attribute, name) for name in _LISTS})


def validate_device_fields(
    device: v1.Device,
    path: str,
    release: Release,
    *,
    per_device_node_selection: bool = False,
    old: v1.Device | None = None,
) -> list[FieldError]:
    """Check all rules of the API server for a single device.

    Every gated field is validated as if its feature gate were on.

    Args:
        device: the device.
        path: its path, for example ``spec.devices[3]``.
        release: of the API server.
        per_device_node_selection: whether its slice has per-device node selection.
        old: the device of this name in the slice that this one replaces: unchanged capacities and taints are
            not validated again.
    """
    errors = label_errors(device.name, f"{path}.name")
    errors += validate_counts(device, path)
    errors += validate_attributes(device.attributes, f"{path}.attributes", release)
    shareable = device.allow_multiple_allocations is True
    if old is None or device.capacity != old.capacity:
        errors += validate_capacities(
            device.capacity, f"{path}.capacity", allow_multiple_allocations=shareable, release=release
        )
    errors += _validate_consumption(device, path, release)
    errors += _validate_taints(device.taints, f"{path}.taints", None if old is None else old.taints, release)
    errors += validate_binding(device, path, release)
    errors += validate_device_nodes(device, path, per_device_node_selection=per_device_node_selection, release=release)
    resources = device.node_allocatable_resources
    errors += validate_node_allocatable(resources, device.capacity, f"{path}.nodeAllocatableResources", release)
    errors += _validate_node_mappings(device, f"{path}.nodeAllocatableResourceMappings")
    return errors


def uses_advanced_features(device: v1.Device) -> bool:
    """Return whether the device limits its slice to fewer devices: by taints, counters or list attributes."""
    return bool(device.taints or device.consumes_counters) or any(map(has_list, device.attributes.values()))


def _validate_taints(
    taints: Sequence[v1.DeviceTaint], path: str, unchanged: Sequence[v1.DeviceTaint] | None, release: Release
) -> list[FieldError]:
    if taints == unchanged:
        return []
    limit = slice_limits(release.version).taints
    errors = [too_many(path, len(taints), limit)] if len(taints) > limit else []
    for i, taint in enumerate(taints):
        found = validate_taint(taint, f"{path}[{i}]", release)
        errors += found_after_refusal(found, release) if len(taints) > limit else found
    return errors


def validate_device_nodes(
    device: v1.Device, path: str, *, per_device_node_selection: bool, release: Release
) -> list[FieldError]:
    """Check which nodes a device says it is for, and that its slice leaves the choice to it."""
    if not per_device_node_selection:
        if device.node_name is None and device.node_selector is None and device.all_nodes is None:
            return []
        rule = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true"
        return [_of_spec(invalid(path, None, rule))]
    errors, present = [], []
    if device.node_name == "":
        errors.append(invalid(f"{path}.nodeName", "", "must not be empty"))
    elif device.node_name is not None:
        present.append("`nodeName`")
        errors += validate_node_name(device.node_name, f"{path}.nodeName")
    if device.node_selector is not None:
        present.append("`nodeSelector`")
        errors += validate_node_selector(device.node_selector, f"{path}.nodeSelector")
        if release.has(Change.DEVICES_HAVE_ONE_SELECTOR_TERM):
            errors += validate_one_term(device.node_selector, f"{path}.nodeSelector")
    if device.all_nodes is False:
        errors.append(invalid(f"{path}.allNodes", value=False, detail="must be either unset or set to true"))
    elif device.all_nodes:
        present.append("`allNodes`")
    rule = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when "
        "`perDeviceNodeSelection` is set to true"
    )
    if not present:
        errors.append(_of_spec(required(path, rule)))
    elif len(present) > 1:
        errors.append(_of_spec(invalid(path, f"{{{', '.join(present)}}}", rule)))
    return errors


def _of_spec(error: FieldError) -> FieldError:
    """Add the location of ``perDeviceNodeSelection``: the slice's spec, or an author's pool."""
    rule = error.detail
    return replace(error, detail=f"{rule} in the ResourceSlice spec", author_detail=f"{rule} in its Pool")


COMPATIBILITY_GROUPS_MAX: Final = 2


def validate_counter_sets(sets: Sequence[v1.CounterSet], path: str, release: Release) -> list[FieldError]:
    """Check ``spec.sharedCounters`` of one slice."""
    limits = slice_limits(release.version)
    if limits.counter_sets is not None and len(sets) > limits.counter_sets:
        return [too_many(path, len(sets), limits.counter_sets)]
    errors = _too_many_in_total(sets, limits.counters, path, "shared counters")
    seen: set[str] = set()
    for i, counter_set in enumerate(sets):
        where = f"{path}[{i}]"
        if counter_set.name in seen:
            errors += mark_declarative([duplicate(where, counter_set, key="name", repeated=counter_set.name)])
        seen.add(counter_set.name)
        errors += _validate_set_name(counter_set.name, f"{where}.name")
        errors += _validate_counters(counter_set.counters, f"{where}.counters", limits)
    return errors


def validate_all_consumed(devices: Sequence[v1.Device], path: str, release: Release) -> list[FieldError]:
    """Check how many counters the devices of one slice consume together; ``path`` is that of the devices."""
    consumed = [entry for device in devices for entry in device.consumes_counters]
    limit = slice_limits(release.version).all_consumed_counters
    return _too_many_in_total(consumed, limit, path, "counters in devices")


def _too_many_in_total(
    sets: Sequence[v1.CounterSet | v1.DeviceCounterConsumption], limit: int | None, path: str, what: str
) -> list[FieldError]:
    number = sum(len(one.counters) for one in sets)
    if limit is None or number <= limit:
        return []
    return [invalid(path, number, f"the total number of {what} must not exceed {limit}")]


def _validate_consumption(device: v1.Device, device_path: str, release: Release) -> list[FieldError]:
    """Check ``consumesCounters`` of one device."""
    entries, path, limits = device.consumes_counters, f"{device_path}.consumesCounters", slice_limits(release.version)
    if limits.consumed_sets is not None and len(entries) > limits.consumed_sets:
        return mark_declarative([too_many(path, len(entries), limits.consumed_sets)])
    errors = _too_many_in_total(entries, limits.consumed_counters, device_path, "counters")
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        where = f"{path}[{i}]"
        if entry.counter_set in seen:
            errors += mark_declarative([duplicate(where, entry, key="counterSet", repeated=entry.counter_set)])
        seen.add(entry.counter_set)
        errors += _validate_set_name(entry.counter_set, f"{where}.counterSet")
        errors += _validate_counters(entry.counters, f"{where}.counters", limits)
        errors += _validate_groups(entry.compatibility_groups, f"{where}.compatibilityGroups")
    return errors


def _validate_set_name(name: str, path: str) -> list[FieldError]:
    return mark_declarative([invalid(path, name, text) for text in names.dns_label(name)] if name else [required(path)])


def _validate_counters(counters: Mapping[str, v1.Counter], path: str, limits: SliceLimits) -> list[FieldError]:
    if not counters:
        return mark_declarative([required(path)])
    limit = limits.counters_in_set
    errors = [too_many(path, len(counters), limit)] if limit is not None and len(counters) > limit else []
    for name in counters:
        wrong = (invalid(path, name, text) for text in names.dns_label(name))
        errors += mark_declarative(mark_key(wrong, key_path("", name, names.LABEL_MAX_LENGTH)))
    return errors


def _validate_groups(groups: Sequence[str], path: str) -> list[FieldError]:
    if len(groups) > COMPATIBILITY_GROUPS_MAX:
        return mark_declarative([too_many(path, len(groups), COMPATIBILITY_GROUPS_MAX)])
    errors = []
    for i, group in enumerate(groups):
        errors += [invalid(f"{path}[{i}]", group, text) for text in names.dns_label(group)]
        if group in groups[:i]:
            errors.append(duplicate(f"{path}[{i}]", group))
    return mark_declarative(errors)


def _validate_node_mappings(device: v1.Device, path: str) -> list[FieldError]:
    """Check ``nodeAllocatableResourceMappings`` of one device, which Kubernetes 1.36 knows."""
    errors = []
    for name, mapping in device.node_allocatable_resource_mappings.items():
        where, key = key_path(path, name), mapping.capacity_key
        if "/" in name and "kubernetes.io/" not in name:
            errors.append(invalid(where, name, "must be a node allocatable resource name"))
        if mapping.allocation_multiplier is None and key is None:
            errors.append(invalid(where, "", "at least one of allocationMultiplier or capacityKey must be set"))
        errors += _positive(mapping.allocation_multiplier, f"{where}.allocationMultiplier")
        if key == "":
            errors.append(invalid(f"{where}.capacityKey", "", "capacityKey must not be an empty string"))
        elif key is not None and key not in device.capacity:
            errors.append(not_found(f"{where}.capacityKey", key))
    return errors


_MAPPING_MEMBERS = "`capacityKey`, `deviceMultiplier`"


def validate_node_allocatable(
    resources: Mapping[str, v1.NodeAllocatableResource], capacities: Container[str], path: str, release: Release
) -> list[FieldError]:
    """Check ``nodeAllocatableResources`` of one device; ``capacities`` are the keys of its capacities."""
    errors = []
    for name, resource in resources.items():
        where = key_path(path, name)
        if name not in {"cpu", "memory"} and not name.startswith("hugepages-"):
            errors.append(invalid(where, name, "must be a node allocatable resource name"))
        if resource.mapping is None and resource.overhead is None:
            errors.append(required(where, "at least one of mapping or overhead must be set"))
        if resource.mapping is not None:
            errors += _validate_mapping(resource.mapping, capacities, f"{where}.mapping", release)
        if resource.overhead is not None:
            errors += _validate_overhead(resource.overhead, f"{where}.overhead")
    return errors


def _validate_mapping(
    mapping: v1.NodeAllocatableResourceMapping, capacities: Container[str], path: str, release: Release
) -> list[FieldError]:
    key = mapping.capacity_key
    errors, unpaired = [], _unpaired(mapping, path, release)
    if key is not None:
        errors += _validate_capacity_key(key, capacities, f"{path}.capacityKey", release)
    errors += [error for error in unpaired if not error.declarative]
    errors += _positive(mapping.capacity_multiplier, f"{path}.capacityMultiplier")
    errors += _positive(mapping.device_multiplier, f"{path}.deviceMultiplier")
    if key is None and mapping.device_multiplier is None:
        errors += mark_declarative([invalid(path, "", f"must specify one of: {_MAPPING_MEMBERS}")])
    elif key is not None and mapping.device_multiplier is not None:
        shown = "{capacityKey, deviceMultiplier}"
        errors += mark_declarative([invalid(path, shown, f"must specify exactly one of: {_MAPPING_MEMBERS}")])
    return errors + [error for error in unpaired if error.declarative]


def _validate_capacity_key(key: str, capacities: Container[str], path: str, release: Release) -> list[FieldError]:
    if key == "":
        return [invalid(path, "", "capacityKey must not be an empty string")]
    if release.has(Change.CAPACITY_KEYS_ARE_NAMES) and (errors := qualified_name(key, path, release)):
        return errors
    return [] if key in capacities else [not_found(path, key)]


def _unpaired(mapping: v1.NodeAllocatableResourceMapping, path: str, release: Release) -> list[FieldError]:
    """Return the error about a capacity without a multiplier, or the reverse."""
    present, missing = "capacityKey", "capacityMultiplier"
    if mapping.capacity_key is None:
        present, missing = missing, present
    if (mapping.capacity_key is None) == (mapping.capacity_multiplier is None):
        return []
    if release.has(Change.MULTIPLIERS_ARE_DECLARED):
        return mark_declarative([required(f"{path}.{missing}", f"must be set when {present} is set")])
    return [required(f"{path}.{missing}", f"{missing} is required when {present} is set")]


def _validate_overhead(overhead: v1.NodeAllocatableResourceOverhead, path: str) -> list[FieldError]:
    if overhead.per_pod is None and overhead.per_container is None:
        return [invalid(path, "", "at least one of perPod or perContainer must be set")]
    amounts = {"perPod": overhead.per_pod, "perContainer": overhead.per_container}
    return [
        invalid(f"{path}.{name}", amount, "must be non-negative")
        for name, amount in amounts.items()
        if amount is not None and amount.sign < 0
    ]


def _positive(quantity: Quantity | None, path: str) -> list[FieldError]:
    return [invalid(path, quantity, "must be positive")] if quantity is not None and quantity.sign <= 0 else []
