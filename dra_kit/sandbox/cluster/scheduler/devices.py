"""The devices of the cluster and who holds them, up to date for the allocator by events of informers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from dra_kit.client.informer import ObjectChange
from dra_kit.kubernetes.allocator.allocation import AllocationAttempt, Allocator
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.selectors import CelEvaluator, DeviceMatcher
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.scheduler.device_choice import DeviceChoice, explain_choices
from dra_kit.kubernetes.values.json import ObjectView


class Devices:
    """What is published and what is taken.

    While it is held still, another thread may look for devices: what changes meanwhile is applied afterwards.

    Args:
        gates: of the scheduler.
    """

    def __init__(self, gates: AllocatorRules) -> None:
        self._gates = gates
        self._evaluator = CelEvaluator()
        self._snapshot = AllocatorState()
        self._allocator = Allocator(self._snapshot, gates, evaluator=self._evaluator)
        self._held: dict[str, ObjectView] = {}  # allocation by the UID of its claim
        self._later: list[Callable[[], None]] | None = None  # changes to apply; None where it is not held still
        self._aborted = threading.Event()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keep everything unchanged as long as the context lasts."""
        self._later = []
        try:
            yield
        finally:
            changes, self._later = self._later, None
            for change in changes:
                change()

    def abort(self) -> None:
        """End every search for devices, for good."""
        self._aborted.set()

    def _apply(self, change: Callable[[], None]) -> None:
        if self._later is None:
            change()
        else:
            self._later.append(change)

    # --- what informers tell

    def slice_changed(self, change: ObjectChange) -> None:
        """Note that a ResourceSlice was created, changed or deleted."""
        if change.type == "DELETED":
            self._apply(lambda: self._snapshot.publish(remove=[change.object["metadata"]["name"]]))
        else:
            self._apply(lambda: self._snapshot.publish([change.object]))

    def class_changed(self, change: ObjectChange) -> None:
        """Note that a DeviceClass was created, changed or deleted."""
        if change.type == "DELETED":
            self._apply(lambda: self._snapshot.define(remove=[change.object["metadata"]["name"]]))
        else:
            self._apply(lambda: self._snapshot.define([change.object]))

    def rules_changed(self, rules: Iterable[ObjectView]) -> None:
        """Replace all DeviceTaintRules."""
        known = list(rules)
        self._apply(lambda: self._snapshot.taint(known))

    # --- who holds what

    def hold(self, claim: str, allocation: ObjectView | None) -> None:
        """Record that a claim holds these devices from now on, and no others.

        Args:
            claim: its UID, or another name that is its own.
            allocation: None: it holds nothing.
        """
        self._apply(lambda: self._hold(claim, allocation))

    def _hold(self, claim: str, allocation: ObjectView | None) -> None:
        former = self._held.pop(claim, None)
        if former is not None:
            self._snapshot.deallocate(former)
        if allocation is not None:
            self._snapshot.allocate(allocation)
            self._held[claim] = allocation

    # --- for one pod

    def attempt(self, claims: Sequence[ObjectView]) -> AllocationAttempt:
        """Return the attempt to allocate the claims of a pod, to be made on one node after the other."""
        return self._allocator.attempt(claims, is_aborted=self._aborted.is_set)

    def explain(
        self, node: Node, allocations: Sequence[tuple[ObjectView, ObjectView]]
    ) -> tuple[tuple[ObjectView, DeviceChoice], ...]:
        """Explain why the allocations of a pod, by claim, have these devices; to be called before they are held."""
        selection = DeviceMatcher(node, self._gates, self._evaluator)
        return tuple(explain_choices(self._snapshot, self._gates, selection, node, allocations))
