"""``Device``: one thing a claim can get, as the author describes it and as the API publishes it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakValueDictionary

from pydantic import Field, JsonValue, model_validator
from typing_extensions import TypeVar

from dra_kit.author.devices.identity import identity_of, observed_fields, plain_values
from dra_kit.author.devices.vocabulary import (
    Attribute,
    AttributeValue,
    Capacity,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    NodeAllocatableResource,
    NodeSelector,
)
from dra_kit.author.models.model import AuthorModel, shown
from dra_kit.author.models.rules import invalid
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.validation.devices import validate_device
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.kubernetes.values.semver import Version

DeviceT = TypeVar("DeviceT", bound="Device")


class WholeCapacityWarning(UserWarning):
    """A device may be shared, and a capacity of it says not how: the first claim that asks for nothing takes it all."""


class Device(AuthorModel):
    """A device that claims can be allocated. Every argument is the snake_case of the v1 field.

    Subclass it with fields of your own; they are never published, and come back as ``device.advertised.<field>``::

        class Gpu(dra.Device):
            uuid: str

    Args:
        name: a DNS label, unique in its pool. Prefer a stable identity (a UUID, a PCI address) over an index.
        attributes: what selectors can ask for. A name without domain belongs to the driver's own domain. Publish
            the same attributes on all devices of a type: selectors fail on devices that lack one.
        capacity: amounts; a plain quantity, or a DeviceCapacity with a request policy.
        consumes_counters: what this device takes from the pool's counter sets.
        node_name: the node that has the device; only in a Pool with ``per_device_node_selection``.
        node_selector: like ``node_name``, for several nodes.
        all_nodes: like ``node_name``, for all nodes.
        taints: keep claims away that do not tolerate them.
        binds_to_node: the allocation is bound to the node that the pod was scheduled to.
        binding_conditions: conditions that must be true before the pod is bound (KEP-5007); they become so by what
            ``Driver(binder=…)`` does.
        binding_failure_conditions: conditions that end the attempt when true; both lists or none.
        allow_multiple_allocations: several claims may share the device (KEP-5075); a capacity without request policy
            is a :class:`WholeCapacityWarning` then.
        node_allocatable_resources: how the device counts against cpu, memory and hugepages (KEP-5517).

    Raises:
        InvalidDevice: when a name, value or limit of the API is broken, naming field, value and rule.
    """

    name: str
    attributes: Mapping[str, Attribute] = Field(default_factory=dict)
    capacity: Mapping[str, Capacity] = Field(default_factory=dict)
    consumes_counters: Sequence[DeviceCounterConsumption] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: Sequence[DeviceTaint] = ()
    binds_to_node: bool | None = None
    binding_conditions: Sequence[str] = ()
    binding_failure_conditions: Sequence[str] = ()
    allow_multiple_allocations: bool | None = None
    node_allocatable_resources: Mapping[str, NodeAllocatableResource] = Field(default_factory=dict)

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **data: Any) -> None:
            data, observed = plain_values(data)
            super().__init__(**data)
            if observed:
                self.__dict__[_OBSERVED] = observed
            if self.allow_multiple_allocations and (whole := _undivided(self)):
                text = (
                    f"{type(self).__name__}: allow_multiple_allocations with capacity {', '.join(whole)} without "
                    "request_policy: the first share takes all of it; give it a CapacityRequestPolicy(default=…)"
                )
                warnings.warn(text, WholeCapacityWarning, stacklevel=2)

    @model_validator(mode="after")
    def _obeys_the_api(self) -> Self:
        valid_v1(self)
        return self

    def __copy__(self) -> Self:
        return _unchecked(super().__copy__())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return _unchecked(super().__deepcopy__(memo))

    def identity(self) -> Mapping[str, JsonValue]:
        """Return what makes this the same device; when any of it changes, claims that have it are prepared again.

        By default the published attributes and capacity, what it takes from counters, and the fields of your subclass;
        not what is :func:`dra_kit.observed` or :data:`dra_kit.Observed`, and never taints, binding conditions or nodes.
        Override it where less says it all, with the same answer in every process::

            def identity(self) -> Mapping[str, JsonValue]:
                return {"uuid": self.uuid}

        Returns:
            JSON values by key. Only keys are compared that both releases of a driver give, so that one which adds a
            key prepares nothing again.
        """
        cls = type(self)
        own = {name: getattr(self, name) for name in own_fields(cls)}
        left_out = self.__dict__.get(_OBSERVED, frozenset()) | observed_fields(cls)
        found = identity_of(self.to_v1().to_json(), own)
        return {key: value for key, value in found.items() if key not in left_out}

    def to_v1(self) -> v1.Device:
        """Return the device as it is published; fields of subclasses are left out."""
        valid: _Valid | None = self.__dict__.get(_VALID)
        return valid.v1 if valid is not None else _to_v1(self)


_OBSERVED: Final = "_observed"
"""Where a device keeps which attributes and capacities are marked: beside its fields, as a cached_property does."""
_VALID: Final = "_valid"
"""Where it keeps what was found valid of it; a copy, which may be changed, begins without."""

_published = itemgetter(*Device.model_fields)


class _Valid:
    """What is published of one device or of several equal ones, and was found valid."""

    __slots__ = ("__weakref__", "fields", "types", "v1")

    def __init__(self, device: Device) -> None:
        self.fields = _published(device.__dict__)
        self.types = _types(device.attributes)
        self.v1 = _to_v1(device)


_known: WeakValueDictionary[object, _Valid] = WeakValueDictionary()
"""Of devices in use: an equal one, as most are of an inventory that is found again, is not looked at again."""


def valid_v1(device: Device) -> v1.Device:
    """Return the device as it is published, by all rules that concern it alone.

    Raises:
        InvalidDevice: it breaks one. Other exceptions where something else passed by the constructor.
    """
    valid: _Valid | None = device.__dict__.get(_VALID)
    if valid is not None:
        return valid.v1
    key: object = device.name
    try:
        key = _likeness(device)
        valid = _known.get(key)
    except (AttributeError, TypeError):  # what passed by the constructor may hold anything
        valid = None
    if valid is None or not _publishes(device, valid):
        valid = _Valid(device)
        errors = validate_device(valid.v1, "", per_device_node_selection=is_scoped(device))
        if errors:
            raise invalid(f"{type(device).__name__} {shown(device.name)}", errors)
        _known[key] = valid
    vars(device)[_VALID] = valid
    return valid.v1


def _likeness(device: Device) -> tuple[object, ...]:
    """Return a key that is equal for equal devices, and seldom for others."""
    amounts = [str(item.value) for item in device.capacity.values() if isinstance(item, DeviceCapacity)]
    counted = [item.counter_set for item in device.consumes_counters]
    return (device.name, *device.attributes.items(), *amounts, *counted)


def _undivided(device: Device) -> list[str]:
    """Return the capacities of which a claim that asks for nothing takes all."""
    capacities = device.capacity.items()
    return [name for name, item in capacities if isinstance(item, DeviceCapacity) and item.request_policy is None]


def is_valid(device: Device) -> bool:
    """Return whether it was found valid already; what passed by the constructor was not."""
    return _VALID in device.__dict__


def is_scoped(device: Device) -> bool:
    """Return whether the device says for itself which nodes may use it."""
    return device.node_name is not None or device.node_selector is not None or device.all_nodes is not None


def same(device: Device, other: Device) -> bool:
    """Return whether two devices are alike in all that is published and in the author's own fields.

    Other than ``==``, which takes True for 1. ``other`` was found valid.
    """
    if device is other:
        return True
    mine, others = device.__dict__, other.__dict__
    return (
        type(device) is type(other)
        and _publishes(device, others[_VALID])
        and mine.get(_OBSERVED) == others.get(_OBSERVED)
        and all(mine[name] == others[name] for name in own_fields(type(device)))
    )


@cache
def own_fields(cls: type[Device]) -> tuple[str, ...]:
    """Return the fields of an author's subclass, which are never published."""
    return tuple(name for name in cls.model_fields if name not in Device.model_fields)


def _publishes(device: Device, valid: _Valid) -> bool:
    if device.__dict__.get(_VALID) is valid:
        return True
    try:
        return bool(_published(device.__dict__) == valid.fields) and _types(device.attributes) == valid.types
    except (KeyError, AttributeError, TypeError):  # what passed by the constructor may hold anything
        return False


def _types(attributes: Mapping[str, AttributeValue]) -> list[object]:
    """Return what ``==`` does not distinguish, with the names in their order."""
    found: list[object] = [*attributes, *map(type, attributes.values())]
    if tuple in found:  # a list, whose items are of one type
        found += [type(value[0]) for value in attributes.values() if isinstance(value, tuple)]
    return found


def _unchecked(copied: DeviceT) -> DeviceT:
    vars(copied).pop(_VALID, None)
    return copied


def _to_v1(device: Device) -> v1.Device:
    data: dict[str, Any] = {
        field: _plain(value)
        for field in Device.model_fields
        if (value := getattr(device, field)) is not None and field not in {"attributes", "capacity"}
    }
    data["attributes"] = attributes_v1(device.attributes)
    data["capacity"] = _plain(device.capacity)
    for consumption in data["consumes_counters"]:
        consumption["counters"] = counters_v1(consumption["counters"])
    return v1.Device.model_validate(data)


def counters_v1(counters: Mapping[str, Quantity | str | int]) -> dict[str, dict[str, Quantity]]:
    """Return counters in the API's form: each amount wrapped in an object."""
    return {name: {"value": Quantity(value)} for name, value in counters.items()}


def attributes_v1(attributes: Mapping[str, AttributeValue]) -> dict[str, dict[str, Any]]:
    """Return attributes in the API's form: each value under the name of its type."""
    return {name: _attribute_v1(value) for name, value in attributes.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, AuthorModel):
        return _plain(value.model_dump(exclude_none=True))
    if isinstance(value, datetime):  # whole seconds, as the API has them
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _attribute_v1(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, tuple | list):
        singular = next(iter(_attribute_v1(value[0])))
        return {f"{singular}s": [next(iter(_attribute_v1(item).values())) for item in value]}
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"version": str(value)} if isinstance(value, Version) else {"string": value}
