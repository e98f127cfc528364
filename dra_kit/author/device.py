"""``Device``: one thing a claim can get, as the author describes it and as the API publishes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue, PrivateAttr, model_validator

from dra_kit.author.identity import identity_of, observed_fields, plain_values
from dra_kit.author.model import AuthorModel
from dra_kit.author.rules import invalid
from dra_kit.author.vocabulary import (
    Attribute,
    AttributeValue,
    Capacity,
    DeviceCounterConsumption,
    DeviceTaint,
    NodeAllocatableResource,
    NodeSelector,
)
from dra_kit.resource import v1
from dra_kit.resource.validation.devices import validate_device
from dra_kit.values.quantity import Quantity
from dra_kit.values.semver import Version


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
        binding_conditions: conditions that must be true before the pod is bound (KEP-5007).
        binding_failure_conditions: conditions that end the attempt when true.
        allow_multiple_allocations: several claims may share the device (KEP-5075).
        node_allocatable_resources: how the device counts against cpu, memory and hugepages (KEP-5517).

    Raises:
        InvalidDevice: when a name, value or limit of the API is broken, naming field, value and rule.
    """

    name: str
    attributes: Mapping[str, Attribute] = {}
    capacity: Mapping[str, Capacity] = {}
    consumes_counters: Sequence[DeviceCounterConsumption] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: Sequence[DeviceTaint] = ()
    binds_to_node: bool | None = None
    binding_conditions: Sequence[str] = ()
    binding_failure_conditions: Sequence[str] = ()
    allow_multiple_allocations: bool | None = None
    node_allocatable_resources: Mapping[str, NodeAllocatableResource] = {}
    _observed: frozenset[str] = PrivateAttr(default=frozenset())

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **data: Any) -> None:
            data, observed = plain_values(data)
            super().__init__(**data)
            if observed:
                self._observed = observed

    @model_validator(mode="after")
    def _obeys_the_api(self) -> Self:
        scoped = self.node_name is not None or self.node_selector is not None or self.all_nodes is not None
        errors = validate_device(self.to_v1(), "", per_device_node_selection=scoped)
        if errors:
            raise invalid(f"{type(self).__name__} {self.name!r}", errors)
        return self

    def identity(self) -> Mapping[str, JsonValue]:
        """What makes this the same device; when any of it changes, claims that have it are prepared again.

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
        own = {name: getattr(self, name) for name in cls.model_fields if name not in Device.model_fields}
        left_out = self._observed | observed_fields(cls)
        found = identity_of(self.to_v1().to_json(), own)
        return {key: value for key, value in found.items() if key not in left_out}

    def to_v1(self) -> v1.Device:
        """The device as it is published; fields of subclasses are left out."""
        data: dict[str, Any] = {
            field: _plain(value)
            for field in Device.model_fields
            if (value := getattr(self, field)) is not None and field not in {"attributes", "capacity"}
        }
        data["attributes"] = attributes_v1(self.attributes)
        data["capacity"] = _plain(self.capacity)
        for consumption in data["consumes_counters"]:
            consumption["counters"] = counters_v1(consumption["counters"])
        return v1.Device.model_validate(data)


def counters_v1(counters: Mapping[str, Quantity | str | int]) -> dict[str, dict[str, Quantity]]:
    """Counters in the API's form: each amount wrapped in an object."""
    return {name: {"value": Quantity(value)} for name, value in counters.items()}


def attributes_v1(attributes: Mapping[str, AttributeValue]) -> dict[str, dict[str, Any]]:
    """Attributes in the API's form: each value under the name of its type."""
    return {name: _attribute_v1(value) for name, value in attributes.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, AuthorModel):
        return value.model_dump(exclude_none=True)
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
