"""Classes of devices that are alike for one choice of a request: a verdict on one of them holds for all."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import repeat
from typing import Final, TypeAlias

from dra_kit.errors import CelCompileError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, AdvertisedSlice
from dra_kit.kubernetes.allocator.requests import RequestAlternative
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.selectors import Likeness, SliceLikeness, likeness_of
from dra_kit.kubernetes.allocator.state import DeviceUsage
from dra_kit.kubernetes.cel.environment import STORED
from dra_kit.kubernetes.cel.program import compile_selector
from dra_kit.kubernetes.cel.tree import DeviceRead

Rest: TypeAlias = tuple[bool, bool, Hashable, Hashable, Hashable]
"""What the allocator reads of a device beside what selectors see: whether it has binding conditions and is held, its
taints, those of rules, and its capacity where that matters."""

Class: TypeAlias = tuple[Likeness, Rest]
"""A class of like devices: what selectors see of them, and the rest."""

_ALONE: Final = None

_HELD: Final = 1

_UNTOUCHED: Final[Rest] = (False, False, (), (), ())
"""What a usual device is, beside what selectors see of it, that nobody holds and no rule taints."""


class Alikeness:
    """Puts devices into classes by what the allocator reads of them for one choice.

    A device is on its own where the answer depends on its pool (counters), on the node, or on who has shares of it.

    Args:
        choice: what devices are wanted for.
        gates: of the scheduler.
        usage: what claims hold.

    Attributes:
        usual: what selectors see of usual devices; None where that is not known.
    """

    def __init__(self, choice: RequestAlternative, gates: AllocatorRules, usage: DeviceUsage) -> None:
        self._choice = choice
        self._gates = gates
        self._usage = usage
        self._blocked = frozenset() if choice.admin_access else usage.blocked(gates)
        self._reads = _reads(choice)
        self.usual: SliceLikeness | None = None if self._reads is None else SliceLikeness(self._reads)

    def is_held(self, device: AdvertisedDevice) -> bool:
        """Whether claims hold the device so that the choice cannot have it."""
        return bool(self._blocked) and device.id in self._blocked

    def of_slice(self, slice_: AdvertisedSlice) -> tuple[Class, ...] | None:
        """Classes of the usual devices of a slice, by position; None where devices have to be looked at one by one."""
        spec, usual = slice_.spec, slice_.published.usual
        if self.usual is None or usual is None or spec.skip_node_operations or spec.per_device_node_selection:
            return None
        if not slice_.whole:
            return None  # what is wrong with the capacity of a device names it
        seen = self.usual.of(slice_)
        used = bool(self._usage.changes((spec.driver, spec.pool.name)))
        if used and any(self._usage.consumed(device.id) for device in slice_.devices):
            return None
        if used or slice_.has_rule_taints or self._choice.capacity:
            return tuple(zip(seen, map(self._rest, slice_.devices), strict=True))
        return tuple(zip(seen, repeat(_UNTOUCHED, len(seen)), strict=True))

    def holds_any(self, classes: Iterable[Class]) -> bool:
        """Whether claims hold a device of these, so that reasons name claims."""
        return bool(self._blocked) and any(rest[_HELD] for _, rest in classes)

    def _rest(self, device: AdvertisedDevice) -> Rest:
        """Return what a usual device is beside what selectors see of it."""
        rules = tuple([id(taint) for taint in device.rule_taints])
        return False, self.is_held(device), (), rules, device.form if self._choice.capacity else ()

    def of(self, device: AdvertisedDevice) -> Class | None:
        """Return the class of a device; None if it is on its own."""
        published, spec = device.device, device.spec
        if self._reads is None or device.demands or not device.whole:
            return _ALONE
        if spec.skip_node_operations or spec.per_device_node_selection or self._usage.consumed(device.id):
            return _ALONE
        seen = None
        if device.has_plain_attributes:
            seen = likeness_of(device, self._reads, sees_sharing=self._gates.variant.knows_sharing)
        if seen is None:
            return _ALONE
        return seen, (
            bool(published.binding_conditions),
            self.is_held(device),
            tuple([(taint.key, taint.value, taint.effect) for taint in device.taints]),
            tuple([id(taint) for taint in device.rule_taints]),  # that of a rule is the same object everywhere
            tuple([(name, str(offer.value)) for name, offer in published.capacity.items()])
            if self._choice.capacity
            else (),
        )


def _reads(choice: RequestAlternative) -> tuple[DeviceRead, ...] | None:
    """Return what the selectors read of a device; None if that is not known."""
    found: dict[DeviceRead, None] = {}
    for expression in (*choice.class_selectors, *choice.selectors):
        try:
            reads = compile_selector(expression, environment=STORED).reads
        except CelCompileError:
            return None
        if reads is None:
            return None
        found.update(dict.fromkeys(reads))
    return tuple(found)
