"""The words a device is described with: every class and field is named as in resource.k8s.io/v1, in snake_case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import PlainValidator

from dra_kit.author.model import AuthorModel, QuantityLike, as_quantity
from dra_kit.values.quantity import Quantity
from dra_kit.values.semver import Version

AttributeValue: TypeAlias = (
    bool | int | str | Version | Sequence[bool] | Sequence[int] | Sequence[str] | Sequence[Version]
)
"""A scalar, or a list of one type. Lists need the alpha gate DRAListTypeAttributes in the cluster."""

_SCALARS = (bool, str, Version)  # int is asked apart, since bool is an int to Python


def _scalar_type(value: object) -> type | None:
    for kind in _SCALARS:
        if isinstance(value, kind):
            return kind
    return int if isinstance(value, int) else None


def _attribute(value: object) -> AttributeValue:
    if _scalar_type(value) is not None:
        if type(value) is int and not -(2**63) <= value < 2**63:
            msg = f"{value} does not fit into 64 bits, as an int attribute must"
            raise ValueError(msg)
        return value  # type: ignore[return-value]
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        items = tuple(_attribute(item) for item in value)
        kinds = {_scalar_type(item) for item in items}
        if not items:
            msg = "a list attribute must have at least one item; leave the attribute out instead"
            raise ValueError(msg)
        if len(kinds) == 1 and None not in kinds:
            return items  # type: ignore[return-value]
        msg = f"the items of a list attribute must be of one type, not {sorted(str(k and k.__name__) for k in kinds)}"
        raise ValueError(msg)
    msg = f"an attribute is a bool, int, str, dra_kit.Version or a list of one of these, not {value!r}"
    raise ValueError(msg)


Attribute: TypeAlias = Annotated[AttributeValue, PlainValidator(_attribute)]


class CapacityRequestPolicyRange(AuthorModel):
    """A claim may ask for anything from ``min`` to ``max``, in multiples of ``step`` above ``min``."""

    min: QuantityLike
    max: QuantityLike | None = None
    step: QuantityLike | None = None


class CapacityRequestPolicy(AuthorModel):
    """How much of a capacity one claim may take from a device with ``allow_multiple_allocations`` (KEP-5075).

    ``default`` is taken by claims that ask for nothing; without it they take the whole capacity. Either
    ``valid_values`` (ascending, at most 10) or ``valid_range`` may restrict what can be asked for.
    """

    default: QuantityLike | None = None
    valid_values: Sequence[QuantityLike] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(AuthorModel):
    """How much of something a device has, and how it may be divided."""

    value: QuantityLike
    request_policy: CapacityRequestPolicy | None = None


def _capacity(value: object) -> DeviceCapacity:
    return value if isinstance(value, DeviceCapacity) else DeviceCapacity(value=as_quantity(value))


Capacity: TypeAlias = Annotated[DeviceCapacity | Quantity | str | int, PlainValidator(_capacity)]
"""A plain quantity, or a DeviceCapacity when it may be divided; kept as DeviceCapacity."""


class CounterSet(AuthorModel):
    """Amounts that several devices of one pool draw on, for example the slices of a card (KEP-4815)."""

    name: str
    counters: Mapping[str, QuantityLike]


class DeviceCounterConsumption(AuthorModel):
    """What a device takes from a counter set when it is allocated.

    ``compatibility_groups`` (KEP-5963, alpha in 1.37): devices drawing on one set need a group in common.
    """

    counter_set: str
    counters: Mapping[str, QuantityLike]
    compatibility_groups: Sequence[str] = ()


class DeviceTaint(AuthorModel):
    """Keeps claims away that do not tolerate it; NoExecute also evicts running pods (KEP-5055)."""

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
    """How much of a node resource a device stands for.

    Either ``capacity_key`` with ``capacity_multiplier`` (by consumed capacity) or ``device_multiplier``.
    """

    capacity_key: str | None = None
    capacity_multiplier: QuantityLike | None = None
    device_multiplier: QuantityLike | None = None


class NodeAllocatableResourceOverhead(AuthorModel):
    """What a pod, and each of its containers that refers to the claim, needs besides."""

    per_pod: QuantityLike | None = None
    per_container: QuantityLike | None = None


class NodeAllocatableResource(AuthorModel):
    """How a device counts against cpu, memory or hugepages of its node (KEP-5517, alpha in 1.37)."""

    mapping: NodeAllocatableResourceMapping | None = None
    overhead: NodeAllocatableResourceOverhead | None = None
