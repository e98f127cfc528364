"""The parts of a device: every class and field has its name from resource.k8s.io/v1, in snake_case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Literal, TypeAlias

from pydantic import PlainValidator

from dra_kit.author.model import AuthorModel, QuantityLike, parse_quantity, short_repr
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
