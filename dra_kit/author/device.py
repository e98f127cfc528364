"""``Device``: one resource that a claim can get, as the author describes it and as the API publishes it.

Every class and field has its name from resource.k8s.io/v1, in snake_case. Here are the Python types of its parts, such
as those of an attribute; the API's rules for their values are in ``kubernetes/resource/validation/devices.py``, which
:func:`valid_v1` applies.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import cache, lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeAlias, cast
from weakref import WeakValueDictionary

from pydantic import BaseModel, Field, JsonValue, PlainValidator, model_validator
from pydantic_core import to_jsonable_python
from typing_extensions import TypeVar

from dra_kit.author.model import AUTHOR_RELEASE, AuthorModel, QuantityLike, invalid_device, parse_quantity, short_repr
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.validation.devices import validate_device_fields
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.kubernetes.values.semver import Version

AttributeValue: TypeAlias = (
    bool | int | str | Version | Sequence[bool] | Sequence[int] | Sequence[str] | Sequence[Version]
)
"""A scalar, or a list of one type. Lists need the alpha gate DRAListTypeAttributes in the cluster."""


def _scalar(value: object) -> bool | int | str | Version | None:
    """Return the value as its plain type, without an author's subclass such as an enum; None if it is not a scalar."""
    if isinstance(value, bool | Version):
        return value
    if isinstance(value, int):
        number = int(value)
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"{short_repr(number)} does not fit into 64 bits, as an int attribute must")
        return number
    if isinstance(value, str):
        text = str.__str__(value)
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise ValueError(f"{short_repr(text)} is not valid Unicode: it contains half of a surrogate pair")
        return text
    return None


def _attribute(value: object) -> AttributeValue:
    scalar = _scalar(value)
    if scalar is not None:
        return scalar
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        msg = f"an attribute is a bool, int, str, dra_kit.Version or a list of one of these, not {short_repr(value)}"
        raise ValueError(msg)  # noqa: TRY004 - pydantic collects ValueErrors only
    items = [_scalar(item) for item in value]
    if not items:
        raise ValueError("a list attribute must have at least one item; leave the attribute out instead")
    if None in items:
        wrong = value[items.index(None)]
        raise ValueError(f"an item of a list attribute is a bool, int, str or dra_kit.Version, not {short_repr(wrong)}")
    kinds = sorted({type(item).__name__ for item in items})
    if len(kinds) > 1:
        raise ValueError(f"the items of a list attribute must be of one type, not {' and '.join(kinds)}")
    return tuple(items)  # type: ignore[return-value]


Attribute: TypeAlias = Annotated[AttributeValue, PlainValidator(_attribute)]


class CapacityRequestPolicyRange(AuthorModel):
    """A claim may request any amount from ``min`` to ``max``, in multiples of ``step`` above ``min``."""

    min: QuantityLike
    max: QuantityLike | None = None
    step: QuantityLike | None = None


class CapacityRequestPolicy(AuthorModel):
    """How much of a capacity one claim may take from a device with ``allow_multiple_allocations`` (KEP-5075).

    Claims that request no amount get ``default``; without it they take the whole capacity. Either
    ``valid_values`` (ascending, at most 10) or ``valid_range`` may restrict the amounts that can be requested.
    """

    default: QuantityLike | None = None
    valid_values: Sequence[QuantityLike] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(AuthorModel):
    """An amount of a device, and how it may be divided."""

    value: QuantityLike
    request_policy: CapacityRequestPolicy | None = None


def _capacity(value: object) -> DeviceCapacity:
    if isinstance(value, DeviceCapacity):
        return value
    # most devices of a driver share the same few quantities; a bool is not a quantity, although it equals one
    return _known_capacity(value) if type(value) in {str, int} else DeviceCapacity(value=parse_quantity(value))


@lru_cache(maxsize=256)
def _known_capacity(value: str | int) -> DeviceCapacity:
    return DeviceCapacity(value=parse_quantity(value))


Capacity: TypeAlias = Annotated[DeviceCapacity | Quantity | str | int, PlainValidator(_capacity)]
"""A plain quantity, or a DeviceCapacity if it may be divided; stored as DeviceCapacity."""


class CounterSet(AuthorModel):
    """Amounts that several devices of one pool draw on, for example the slices of a card (KEP-4815)."""

    name: str
    counters: Mapping[str, QuantityLike]


class DeviceCounterConsumption(AuthorModel):
    """What a device takes from a counter set when it is allocated.

    ``compatibility_groups`` (KEP-5963, alpha in 1.37): devices drawing on one set must have a group in common.
    """

    counter_set: str
    counters: Mapping[str, QuantityLike]
    compatibility_groups: Sequence[str] = ()


class DeviceTaint(AuthorModel):
    """Keeps away claims that do not tolerate it; NoExecute also evicts running pods (KEP-5055)."""

    key: str
    value: str = ""
    effect: Literal["None", "NoSchedule", "NoExecute"]
    time_added: datetime | None = None


class NodeSelectorRequirement(AuthorModel):
    """``key operator values`` over a node's labels or fields."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Sequence[str] = ()


class NodeSelectorTerm(AuthorModel):
    """All requirements together."""

    match_expressions: Sequence[NodeSelectorRequirement] = ()
    match_fields: Sequence[NodeSelectorRequirement] = ()


class NodeSelector(AuthorModel):
    """Which nodes may use a device or pool; the API allows exactly one term here."""

    node_selector_terms: Sequence[NodeSelectorTerm]


class NodeAllocatableResourceMapping(AuthorModel):
    """How much of a node resource a device accounts for.

    Either ``capacity_key`` with ``capacity_multiplier`` (by consumed capacity) or ``device_multiplier``.
    """

    capacity_key: str | None = None
    capacity_multiplier: QuantityLike | None = None
    device_multiplier: QuantityLike | None = None


class NodeAllocatableResourceOverhead(AuthorModel):
    """Resources that a pod, and each of its containers that refers to the claim, needs in addition."""

    per_pod: QuantityLike | None = None
    per_container: QuantityLike | None = None


class NodeAllocatableResource(AuthorModel):
    """How a device counts against cpu, memory or hugepages of its node (KEP-5517, alpha in 1.37)."""

    mapping: NodeAllocatableResourceMapping | None = None
    overhead: NodeAllocatableResourceOverhead | None = None


ValueT = TypeVar("ValueT")


class _Mark:
    """Marks an annotation; see :data:`Observed`."""

    def __repr__(self) -> str:
        return "dra_kit.Observed"


_MARK: Final = _Mark()
if TYPE_CHECKING:
    Observed: TypeAlias = Annotated[ValueT, _MARK]
else:

    class Observed:
        """A field of a Device subclass that is only observed, as in ``temperature: dra.Observed[float]``.

        Type checkers see the type in brackets. The field is not part of :meth:`dra_kit.Device.identity`: when its value
        changes, claims that have the device are not prepared again.
        """

        def __class_getitem__(cls, annotation: Any) -> Any:
            return Annotated[annotation, _MARK]


class ObservedValue:
    """A value marked by :func:`observed`, until the Device that receives it has recorded the mark."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"observed({short_repr(self.value)})"


def observed(value: ValueT) -> ValueT:
    """Mark the value of an attribute or capacity as only observed: ``attributes={"temperature": dra.observed(41)}``.

    It is published like any other value, but is not part of :meth:`dra_kit.Device.identity`. The device holds the
    plain value: ``device.attributes["temperature"] == 41``.
    """
    return cast("ValueT", ObservedValue(value))


def strip_observed(data: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return a device's arguments without the marks, and the keys of :func:`identity_values` that were marked."""
    marked: list[str] = []
    for field in ("attributes", "capacity"):
        given = data.get(field)
        if not isinstance(given, Mapping) or ObservedValue not in map(type, given.values()):
            continue
        names = [name for name, value in given.items() if isinstance(value, ObservedValue)]
        marked += [f"{field}[{name}]" for name in names]
        data = data | {field: {**given, **{name: given[name].value for name in names}}}
    return data, frozenset(marked)


def identity_values(published: Mapping[str, Any], own: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return everything of a device that may belong to its identity, by the place where it was defined."""
    found: dict[str, Any] = {}
    for field in ("attributes", "capacity"):
        found |= {f"{field}[{name}]": value for name, value in published.get(field, {}).items()}
    if counters := published.get("consumesCounters"):
        found["consumes_counters"] = counters
    return found | {name: stable_json(value) for name, value in own.items()}


def observed_fields(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of the fields that are annotated as Observed."""
    return frozenset(name for name, field in model.model_fields.items() if _MARK in field.metadata)


def stable_json(value: object) -> JsonValue:
    """Return an author's value as JSON that is equal in every process and release, because its hashes are stored."""
    if isinstance(value, Mapping):
        return {str(key): stable_json(item) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return cast("JsonValue", sorted(json.dumps(stable_json(item), sort_keys=True) for item in value))
    if isinstance(value, list | tuple):
        return [stable_json(item) for item in value]
    # a value without a JSON form, such as an open handle, is distinguished by its type alone
    return cast("JsonValue", to_jsonable_python(value, fallback=lambda item: type(item).__qualname__))


DeviceT = TypeVar("DeviceT", bound="Device")


class WholeCapacityWarning(UserWarning):
    """A device may be shared, but a capacity has no policy: the first claim that requests no amount takes all of it."""


class Device(AuthorModel):
    """A device that claims can be allocated. Each argument is the v1 field in snake_case.

    Subclass it to add your own fields. They are never published; read them as ``device.advertised.<field>``::

        class Gpu(dra.Device):
            uuid: str

    Args:
        name: a DNS label, unique in its pool. Prefer a stable identity (a UUID, a PCI address) over an index.
        attributes: values that selectors can match. A name without a domain belongs to the driver's own domain. Publish
            the same attributes on all devices of a type: selectors fail on devices that are missing one.
        capacity: amounts; a plain quantity, or a DeviceCapacity with a request policy.
        consumes_counters: what this device takes from the pool's counter sets.
        node_name: the node that has the device; only in a Pool with ``per_device_node_selection``.
        node_selector: like ``node_name``, for several nodes.
        all_nodes: like ``node_name``, for all nodes.
        taints: keep away claims that do not tolerate them.
        binds_to_node: the allocation is bound to the node that the pod was scheduled to.
        binding_conditions: conditions that must be true before the pod is bound (KEP-5007); the binder of
            ``Driver(binder=…)`` makes them true.
        binding_failure_conditions: conditions that abort the binding when true; set both lists or neither.
        allow_multiple_allocations: several claims may share the device (KEP-5075); a capacity without request policy
            then raises a :class:`WholeCapacityWarning`.
        node_allocatable_resources: how the device counts against cpu, memory and hugepages (KEP-5517).

    Raises:
        InvalidDevice: a name, value or limit violates the API's rules; the error names field, value and rule.
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
            data, observed = strip_observed(data)
            super().__init__(**data)
            if observed:
                self.__dict__[_OBSERVED_KEY] = observed
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
        """Return what identifies this device; when any of it changes, claims that have it are prepared again.

        By default the published attributes and capacity, the counters it consumes, and the fields of your subclass;
        not values marked :func:`dra_kit.observed` or :data:`dra_kit.Observed`, and never taints, binding conditions or
        nodes. Override it if fewer values are enough. It must return the same in every process::

            def identity(self) -> Mapping[str, JsonValue]:
                return {"uuid": self.uuid}

        Returns:
            JSON values by key. Only keys that both releases of a driver return are compared, so a release that adds a
            key does not cause claims to be prepared again.
        """
        cls = type(self)
        own = {name: getattr(self, name) for name in author_fields(cls)}
        left_out = self.__dict__.get(_OBSERVED_KEY, frozenset()) | observed_fields(cls)
        found = identity_values(self.to_v1().to_json(), own)
        return {key: value for key, value in found.items() if key not in left_out}

    def to_v1(self) -> v1.Device:
        """Return the device as published; fields of subclasses are omitted."""
        valid: _Valid | None = self.__dict__.get(_VALID)
        return valid.v1 if valid is not None else _to_v1(self)


_OBSERVED_KEY: Final = "_observed"
"""Where a device stores which attributes and capacities are marked: next to its fields, as a cached_property does."""
_VALID: Final = "_valid"
"""Where it stores its validated form; a copy, which may be modified, starts without it."""
_published = itemgetter(*Device.model_fields)


class _Valid:
    """The validated, published form of one device or of several equal ones."""

    __slots__ = ("__weakref__", "fields", "types", "v1")

    def __init__(self, device: Device) -> None:
        self.fields = _published(device.__dict__)
        self.types = _types(device.attributes)
        self.v1 = _to_v1(device)


_known: WeakValueDictionary[object, _Valid] = WeakValueDictionary()
"""Validated devices in use: an equal device, common when an inventory is found again, is not validated again."""


def valid_v1(device: Device) -> v1.Device:
    """Return the device as published, validated by all rules that concern it alone.

    Raises:
        InvalidDevice: it violates one. Other exceptions if values bypassed the constructor.
    """
    valid: _Valid | None = device.__dict__.get(_VALID)
    if valid is not None:
        return valid.v1
    key: object = device.name
    try:
        key = _likeness(device)
        valid = _known.get(key)
    except (AttributeError, TypeError):  # an object that bypassed the constructor may hold anything
        valid = None
    if valid is None or not _publishes(device, valid):
        valid = _Valid(device)
        errors = validate_device_fields(valid.v1, "", AUTHOR_RELEASE, per_device_node_selection=names_its_nodes(device))
        if errors:
            raise invalid_device(f"{type(device).__name__} {short_repr(device.name)}", errors)
        _known[key] = valid
    vars(device)[_VALID] = valid
    return valid.v1


def _likeness(device: Device) -> tuple[object, ...]:
    """Return a key that is equal for equal devices, and rarely equal for others."""
    amounts = [str(item.value) for item in device.capacity.values() if isinstance(item, DeviceCapacity)]
    counted = [item.counter_set for item in device.consumes_counters]
    return (device.name, *device.attributes.items(), *amounts, *counted)


def _undivided(device: Device) -> list[str]:
    """Return the capacities that a claim without a requested amount consumes completely."""
    capacities = device.capacity.items()
    return [name for name, item in capacities if isinstance(item, DeviceCapacity) and item.request_policy is None]


def is_validated(device: Device) -> bool:
    """Return whether it was validated already; objects that bypassed the constructor were not."""
    return _VALID in device.__dict__


def names_its_nodes(device: Device) -> bool:
    """Return whether the device itself names the nodes that may use it."""
    return device.node_name is not None or device.node_selector is not None or device.all_nodes is not None


def is_same_device(device: Device, other: Device) -> bool:
    """Return whether two devices are equal in all published values and in the author's own fields.

    Unlike ``==``, which treats True and 1 as equal. ``other`` must have been validated.
    """
    if device is other:
        return True
    mine, others = device.__dict__, other.__dict__
    return (
        type(device) is type(other)
        and _publishes(device, others[_VALID])
        and mine.get(_OBSERVED_KEY) == others.get(_OBSERVED_KEY)
        and all(mine[name] == others[name] for name in author_fields(type(device)))
    )


@cache
def author_fields(cls: type[Device]) -> tuple[str, ...]:
    """Return the fields of an author's subclass, which are never published."""
    return tuple(name for name in cls.model_fields if name not in Device.model_fields)


def _publishes(device: Device, valid: _Valid) -> bool:
    if device.__dict__.get(_VALID) is valid:
        return True
    try:
        return bool(_published(device.__dict__) == valid.fields) and _types(device.attributes) == valid.types
    except (KeyError, AttributeError, TypeError):  # an object that bypassed the constructor may hold anything
        return False


def _types(attributes: Mapping[str, AttributeValue]) -> list[object]:
    """Return what ``==`` does not distinguish, with the names in order."""
    found: list[object] = [*attributes, *map(type, attributes.values())]
    if tuple in found:  # a list, whose items are of one type
        found += [type(value[0]) for value in attributes.values() if isinstance(value, tuple)]
    return found


def _unchecked(copied: DeviceT) -> DeviceT:
    vars(copied).pop(_VALID, None)
    return copied


def _to_v1(device: Device) -> v1.Device:
    data: dict[str, Any] = {
        field: to_plain(value)
        for field in Device.model_fields
        if (value := getattr(device, field)) is not None and field not in {"attributes", "capacity"}
    }
    data["attributes"] = attributes_v1(device.attributes)
    data["capacity"] = to_plain(device.capacity)
    for consumption in data["consumes_counters"]:
        consumption["counters"] = counters_v1(consumption["counters"])
    return v1.Device.model_validate(data)


def counters_v1(counters: Mapping[str, Quantity | str | int]) -> dict[str, dict[str, Quantity]]:
    """Return counters in the API's form: each amount wrapped in an object."""
    return {name: {"value": Quantity(value)} for name, value in counters.items()}


def attributes_v1(attributes: Mapping[str, AttributeValue]) -> dict[str, dict[str, Any]]:
    """Return attributes in the API's form: each value under the name of its type."""
    return {name: _attribute_v1(value) for name, value in attributes.items()}


def to_plain(value: Any) -> Any:
    """Return an author's value as :mod:`dra_kit.kubernetes.resource.v1` reads it."""
    if isinstance(value, AuthorModel):
        return to_plain(value.model_dump(exclude_none=True))
    if isinstance(value, datetime):  # whole seconds, as in the API
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(item) for item in value]
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


PublishedDeviceT = TypeVar("PublishedDeviceT", bound=Device)


def device_from_published(cls: type[PublishedDeviceT], device: v1.Device) -> PublishedDeviceT:
    """Return the device as an instance of a class without its own fields.

    Raises:
        ValueError: it has a field that this release does not know.
    """
    data: dict[str, Any] = {
        name: value
        for name, value in device.model_dump(by_alias=False, exclude_none=True).items()
        if name in cls.model_fields
    }
    data["attributes"] = {name: _value(attribute) for name, attribute in device.attributes.items()}
    data["capacity"] = {
        name: DeviceCapacity.model_validate(capacity.model_dump(by_alias=False, exclude_none=True), strict=False)
        for name, capacity in device.capacity.items()
    }
    for taint in data.get("taints", ()):
        if "time_added" in taint:
            taint["time_added"] = datetime.fromisoformat(taint["time_added"])
    for consumption in data.get("consumes_counters", ()):
        consumption["counters"] = {name: counter["value"] for name, counter in consumption["counters"].items()}
    return cls.model_validate(data, strict=False)


def _value(attribute: v1.DeviceAttribute) -> AttributeValue:
    fields = attribute.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    kind, value = next(iter(fields.items()))
    match kind:
        case "version":
            return Version(value)
        case "versions":
            return [Version(item) for item in value]
        case _:
            known: AttributeValue = value
            return known


_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_PCIE_ROOT: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_NUMA_NODE_MAX: Final = 1023
_STANDARD_DOMAIN: Final = "resource.kubernetes.io"


def pci_attributes(function: Path) -> dict[str, str | int]:
    """Return the standard attributes of a PCI function: ``pciBusID``, ``pcieRoot`` and ``numaNode``.

    Drivers of different vendors publish them in the same form, so that one claim can require a GPU and a network
    interface of one PCIe root (``matchAttribute: resource.kubernetes.io/pcieRoot``). An attribute that is unknown is
    missing: an equal value for two unknown roots would align them::

        dra.Device(name="gpu-0", attributes={"model": model, **dra.pci_attributes(link)})

    Source: k8s.io/dynamic-resource-allocation/deviceattribute, Kubernetes 1.37.

    Args:
        function: the function's folder in sysfs, or a link to it, such as ``/sys/bus/pci/devices/0000:3b:00.0`` or
            ``/sys/class/drm/card0/device``.
    """
    folder = function.resolve()
    roots = [part for part in folder.parts if _PCIE_ROOT.fullmatch(part)]
    found: dict[str, str | int] = {}
    if _PCI_ADDRESS.fullmatch(folder.name):
        found["pciBusID"] = folder.name
    if roots:
        found["pcieRoot"] = roots[-1]
    try:
        node = int((folder / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        node = -1
    if 0 <= node <= _NUMA_NODE_MAX:  # -1: the machine has no NUMA nodes
        found["numaNode"] = node
    return {f"{_STANDARD_DOMAIN}/{name}": value for name, value in found.items()}
