"""Devices that are alike for one choice of a request: what is said of one of them holds for all."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeAlias

from dra_kit import cel
from dra_kit.allocator import Gates
from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.cluster.usage import Usage
from dra_kit.allocator.requests.requests import Choice
from dra_kit.allocator.selectors.likeness import likeness_of
from dra_kit.cel.syntax.reads import Read
from dra_kit.errors import CelCompileError

Class: TypeAlias = tuple[Hashable, ...]
"""A class of like devices."""

_ALONE: Final = None


class Alikeness:
    """Puts devices into classes by what the allocator reads of them for one choice.

    A device is on its own where the answer depends on its pool (counters), on the node, or on who has shares of it.

    Args:
        choice: what devices are wanted for.
        gates: of the scheduler.
        usage: what claims hold.
    """

    def __init__(self, choice: Choice, gates: Gates, usage: Usage) -> None:
        self._choice = choice
        self._gates = gates
        self._usage = usage
        self._blocked = frozenset() if choice.admin_access else usage.blocked(gates)
        self._reads = _reads(choice)

    def is_held(self, device: AdvertisedDevice) -> bool:
        """Whether claims hold the device so that the choice cannot have it."""
        return device.id in self._blocked

    def of(self, device: AdvertisedDevice) -> Class | None:
        """The class of a device; None if it is on its own."""
        published = device.device
        if self._reads is None or device.demands or not device.whole:
            return _ALONE
        if device.spec.skip_node_operations or device.spec.per_device_node_selection:
            return _ALONE
        if self._usage.consumed(device.id) or not device.has_plain_attributes:
            return _ALONE
        seen = likeness_of(device, self._reads, sees_sharing=self._gates.variant.knows_sharing)
        if seen is None:
            return _ALONE
        return (
            seen,
            bool(published.binding_conditions),
            self.is_held(device),
            tuple([(taint.key, taint.value, taint.effect) for taint in device.taints]),
            tuple([id(taint) for taint in device.rule_taints]),  # that of a rule is the same object everywhere
            tuple([(name, str(offer.value)) for name, offer in published.capacity.items()])
            if self._choice.capacity
            else (),
        )


def _reads(choice: Choice) -> tuple[Read, ...] | None:
    """What the selectors read of a device; None if that is not known."""
    found: dict[Read, None] = {}
    for expression in (*choice.class_selectors, *choice.selectors):
        try:
            reads = cel.compile_selector(expression, environment=cel.STORED).reads
        except CelCompileError:
            return None
        if reads is None:
            return None
        found.update(dict.fromkeys(reads))
    return tuple(found)
