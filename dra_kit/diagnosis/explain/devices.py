"""Judge each device for each request: node, pool, taints, the claims that hold it, capacity, counters.

The allocator's own code decides; the reasons, each with its remedy, describe its criteria. Those of selectors are made
in ``selectors.py``. Equivalent devices are judged once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import repeat
from typing import Final, TypeAlias

from msgspec import Struct

from dra_kit.diagnosis.explain.allocated import pending_release
from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.diagnosis.explain.selectors import SelectorMismatches
from dra_kit.diagnosis.explain.verdicts import (
    RELEASED,
    DeviceVerdict,
    JudgedChoice,
    Reason,
    ReasonKind,
    Remedy,
    RemedyKind,
    feature,
)
from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.devices import (
    AdvertisedDevice,
    AdvertisedSlice,
    DeviceID,
    asked_and_offered,
    capacity_share,
)
from dra_kit.kubernetes.allocator.picks import CounterLedger, PickedDevices
from dra_kit.kubernetes.allocator.pools import NodePool
from dra_kit.kubernetes.allocator.requests import RequestAlternative
from dra_kit.kubernetes.allocator.rules import OPTIONAL_NODE_OPERATIONS
from dra_kit.kubernetes.allocator.selectors import CelEvaluator, DeviceMatcher, Likeness, SliceLikeness, likeness_of
from dra_kit.kubernetes.cel.tree import DeviceRead
from dra_kit.kubernetes.resource.matching import Node, node_matches, tolerates
from dra_kit.kubernetes.resource.slice_reader import LazySlice
from dra_kit.kubernetes.resource.v1 import CapacityRequestPolicy, Device, DeviceCapacity, DeviceTaint
from dra_kit.kubernetes.values.quantity import INT64_MAX, NANO, Quantity

_UNKNOWN: Final = object()


def judge_devices(cluster: ClusterView, choice: RequestAlternative, evaluator: CelEvaluator) -> JudgedChoice:
    """Judge all devices of the cluster for a choice."""
    judge_ = DeviceJudge(cluster, choice, evaluator)
    found: dict[AdvertisedSlice | AdvertisedDevice, _Judged] = {}
    fitting: dict[str, int] = {}
    for node in cluster.nodes:
        try:
            pools = cluster.snapshot.pools(node, cluster.gates).ordered
        except AllocationError:
            continue  # the allocator's verdict on this node has the error
        on_node = _OnNode(judge_, node, pools)
        for pool, slice_ in ((each, slice_) for each in pools for slice_ in each.slices):
            for reached, positions in on_node.reached(slice_):
                known = found.get(reached)
                matters = bool(pool.invalid or slice_.spec.skip_node_operations)
                if known is None:
                    known = found[reached] = _Judged(slice_, positions, on_node.reasons(slice_, positions, pool))
                    known.node_matters, here = matters, known.fitting
                elif matters or known.node_matters:
                    here = known.improve(on_node.reasons(slice_, positions, pool))
                    known.node_matters &= matters
                else:
                    here = known.fitting
                known.nodes.append(node.name)
                if here:
                    fitting[node.name] = fitting.get(node.name, 0) + here
    verdicts = [verdict for judged in found.values() for verdict in judged.verdicts()]
    slices = {judged.slice_.published for judged in found.values() if len(judged.positions) == len(judged.slice_)}
    single = (
        {(judged.slice_.published, position) for judged in found.values() for position in judged.positions}
        if len(slices) < len(found)
        else set()
    )
    return JudgedChoice(choice.name, choice, None, (*verdicts, *unreachable_devices(cluster, slices, single)), fitting)


class _Judged:
    """Devices of a slice that the same nodes reach.

    Attributes:
        nodes: names of the nodes that reach them.
        fitting: how many of them fit.
        node_matters: whether the reasons may differ between nodes.
    """

    __slots__ = ("fitting", "node_matters", "nodes", "positions", "reasons", "slice_")

    def __init__(
        self, slice_: AdvertisedSlice, positions: Sequence[int], reasons: Sequence[tuple[Reason, ...]]
    ) -> None:
        self.slice_ = slice_
        self.positions = positions
        self.nodes: list[str] = []
        self.reasons = reasons
        self.fitting = reasons.count(())
        self.node_matters = False

    def improve(self, reasons: Sequence[tuple[Reason, ...]]) -> int:
        """Use the reasons on another node for devices that do not fit; return how many fit on that node."""
        self.reasons = [known and new for known, new in zip(self.reasons, reasons, strict=True)]
        self.fitting = self.reasons.count(())
        return reasons.count(())

    def verdicts(self) -> Iterator[DeviceVerdict]:
        """Yield the verdict on each device."""
        for position, reasons in zip(self.positions, self.reasons, strict=True):
            yield DeviceVerdict(self.slice_, position, self.nodes, reasons)


class _Reasons(Struct, frozen=True):
    """The reasons against a device and all equivalent ones.

    Attributes:
        first: reasons before its holders, in the scheduler's order.
        last: reasons after its holders.
        is_barred: whether the device is unavailable, matching or not.
    """

    first: tuple[Reason, ...]
    last: tuple[Reason, ...] = ()
    is_barred: bool = False


class _Bar(Struct, frozen=True):
    """Why a device is unavailable, matching or not: untolerated taints, and the reasons after its holders."""

    taints: tuple[Reason, ...]
    rest: tuple[Reason, ...]


class DeviceJudge:
    """Judges devices, as far as the node does not matter."""

    def __init__(self, cluster: ClusterView, choice: RequestAlternative, evaluator: CelEvaluator) -> None:
        self.cluster = cluster
        self.choice = choice
        self.evaluator = evaluator
        self.alikeness: EquivalentDevices = EquivalentDevices(choice, cluster, evaluator)
        self.matching: SelectorMismatches = SelectorMismatches(cluster, choice, evaluator, self.alikeness.usual)
        self.known: dict[Class, _Reasons] = {}
        self.known_slices: dict[tuple[Class, ...], Sequence[tuple[Reason, ...]]] = {}
        self.bars: dict[Hashable, _Bar | None] = {}

    def untolerated(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """List the taints of a device that the request does not tolerate."""
        gates = self.cluster.gates
        if not gates.device_taints:
            return
        sources = [(taint, "") for taint in device.taints]
        if gates.device_taint_rules:
            sources += [(taint, self._rule(device.id, taint)) for taint in device.rule_taints]
        for taint, rule in sources:
            if not any(tolerates(toleration, taint) for toleration in self.choice.tolerations):
                yield _taint(taint, rule)

    def _rule(self, device: DeviceID, taint: DeviceTaint) -> str:
        rules = self.cluster.snapshot.rules_of(device)
        return next((rule.metadata.name for rule in rules if rule.spec.taint is taint), "")

    def held(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """Name the claims that hold a device that cannot be shared."""
        if not self.alikeness.is_held(device):
            return
        claims = sorted({holder.claim for holder in self.cluster.holders.get(device.id, ())})
        by = ", ".join(claims) or "a claim"
        yield Reason(
            ReasonKind.ALLOCATED,
            f"allocated to {', '.join(map(self._holder, claims)) or by}",
            brief="allocated to",
            found=by,
            remedy=RELEASED,
            details={"claims": claims},
        )

    def _holder(self, key: str) -> str:
        """Return the name of a claim, and whether it should release its devices."""
        namespace, _, name = key.partition("/")
        release = pending_release(self.cluster, self.cluster.claims[namespace, name])
        return f"{key} ({release.brief})" if release is not None else key


class _OnNode:
    """Judge the devices that one node can reach."""

    def __init__(self, judge_: DeviceJudge, node: Node, pools: Sequence[NodePool]) -> None:
        self._judge = judge_
        self._node = node
        self._pools = pools
        self._ledgers: dict[tuple[NodePool, str], PoolCounters] = {}

    @cached_property
    def _selection(self) -> DeviceMatcher:
        return DeviceMatcher(self._node, self._judge.cluster.gates, self._judge.evaluator)

    @cached_property
    def _holding(self) -> PickedDevices:
        cluster = self._judge.cluster
        return PickedDevices(self._node, cluster.gates, cluster.snapshot.usage, self._pools)

    def reached(self, slice_: AdvertisedSlice) -> Iterator[tuple[AdvertisedSlice | AdvertisedDevice, Sequence[int]]]:
        """Yield the devices of a slice that this node reaches, with their positions: together or one by one."""
        if not slice_.spec.per_device_node_selection:
            yield slice_, range(len(slice_))
            return
        for position, device in enumerate(slice_.devices):
            if self._reaches(device):
                yield device, (position,)

    def _reaches(self, device: AdvertisedDevice) -> bool:
        """Return whether a device with its own node scope is for the node."""
        try:
            return node_matches(self._node, *device.node_scope)
        except ValueError:
            return True  # the allocator reports the error

    def reasons(
        self, slice_: AdvertisedSlice, positions: Sequence[int], pool: NodePool
    ) -> Sequence[tuple[Reason, ...]]:
        """Return the reasons against each device that the node reaches; empty if the allocator can choose it."""
        classes = None if pool.invalid else self._judge.alikeness.of_slice(slice_)
        if classes is None:
            return [self._of_device(slice_.devices[position], pool) for position in positions]
        known, bars = self._judge.known_slices.get(classes), self._judge.bars
        if known is None:
            mismatches = self._judge.matching.of_usual(slice_, [seen for seen, _ in classes])
            known = [
                # usually nothing else bars them
                unmatched
                if bars.get(alike[1], _UNKNOWN) is None
                else self._of_class(slice_.devices[position], pool, alike, unmatched)
                for position, (alike, unmatched) in enumerate(zip(classes, mismatches, strict=True))
            ]
            if not self._judge.alikeness.holds_any(classes):
                self._judge.known_slices[classes] = known
        return known

    def _of_device(self, device: AdvertisedDevice, pool: NodePool) -> tuple[Reason, ...]:
        if pool.invalid:
            text = f"its pool {pool.id.name} is invalid: {pool.invalid}"
            return (Reason(ReasonKind.POOL, text, brief="in an invalid pool"), *self._judge.matching.mismatches(device))
        alike = self._judge.alikeness.of(device)
        found = self._judge.known.get(alike) if alike is not None else None
        if found is None:
            found = self._reasons(device, pool, alike)
            if alike is not None:
                self._judge.known[alike] = found
        return self._whole(found, device)

    def _of_class(
        self, device: AdvertisedDevice, pool: NodePool, alike: Class, mismatches: tuple[Reason, ...]
    ) -> tuple[Reason, ...]:
        found = self._judge.known.get(alike)
        if found is None:
            found = self._judge.known[alike] = self._with_bar(mismatches, device, pool, alike)
        return self._whole(found, device)

    def _whole(self, found: _Reasons, device: AdvertisedDevice) -> tuple[Reason, ...]:
        """Join the reasons of a class of devices and the claims that hold this one."""
        if not found.is_barred:
            return found.first
        return (*found.first, *self._judge.held(device), *found.last)

    def _reasons(self, device: AdvertisedDevice, pool: NodePool, alike: Class | None) -> _Reasons:
        mismatches: tuple[Reason, ...] | None = None
        if alike is None:
            try:
                if self._selection.matches(self._judge.choice, device):
                    mismatches = ()
            except AllocationError as error:
                if error.kind == "node-selector-invalid":
                    return _Reasons((Reason(ReasonKind.ERROR, str(error), brief="with an invalid node selector"),))
        if mismatches is None:  # without mismatches, a device of this node matches
            mismatches = tuple(self._judge.matching.mismatches(device))
        return self._with_bar(mismatches, device, pool, alike)

    def _with_bar(
        self, mismatches: tuple[Reason, ...], device: AdvertisedDevice, pool: NodePool, alike: Class | None
    ) -> _Reasons:
        try:
            bar = self._bar(device, pool, alike)
        except AllocationError as error:
            reason = Reason(ReasonKind.ERROR, str(error), brief="error in the capacity request")
            return _Reasons((*mismatches, reason))
        if bar is None:
            return _Reasons(mismatches)
        return _Reasons((*mismatches, *bar.taints), bar.rest, is_barred=True)

    def _bar(self, device: AdvertisedDevice, pool: NodePool, alike: Class | None) -> _Bar | None:
        """Return why a device is unavailable, matching or not; None if it is available.

        Raises:
            AllocationError: the amounts of the request are invalid.
        """
        if alike is not None and alike[1] in self._judge.bars:
            return self._judge.bars[alike[1]]
        taken = self._holding.take(self._judge.choice, device, 0, (), must=False)
        bar: _Bar | None = None
        if taken is not None:
            _, undo = taken
            undo()
        else:
            bar = _Bar(tuple(self._judge.untolerated(device)), tuple(self._unserved(device, pool)))
        if alike is not None:
            self._judge.bars[alike[1]] = bar
        return bar

    def _unserved(self, device: AdvertisedDevice, pool: NodePool) -> Iterator[Reason]:
        cluster, gates = self._judge.cluster, self._judge.cluster.gates
        skips = device.spec.skip_node_operations and gates.variant.skips_operations
        works = gates.optional_node_operations and OPTIONAL_NODE_OPERATIONS in self._node.declared_features
        if skips and not works:
            yield Reason(
                ReasonKind.FEATURE,
                f"needs a kubelet that can skip calls of its driver, unlike that of node {self._node.name}",
                brief="not served by the node's kubelet",
            )
        yield from capacity_reasons(self._judge.choice, device, cluster)
        if not device.demands:
            return
        if not gates.partitionable_devices:
            yield feature("shared counters", "DRAPartitionableDevices")
        elif not (self._holding.is_shareable(device) and cluster.snapshot.usage.is_shared(device.id, gates)):
            scope = pool.counter_scope(device)
            counters = self._ledgers.get((pool, scope))
            if counters is None:
                counters = self._ledgers[pool, scope] = PoolCounters(pool, scope, cluster)
            yield from counters.reasons(device)


_WITH_EFFECT: Final = " (effect: NoExecute)"


def _taint(taint: DeviceTaint, rule: str) -> Reason:
    shown = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
    by = f" (by DeviceTaintRule {rule})" if rule else ""
    return Reason(
        ReasonKind.TAINT,
        f"tainted {shown}{by}",
        brief="tainted",
        found=shown,
        # without the effect, pods are scheduled and evicted
        remedy=Remedy(
            RemedyKind.TOLERATION,
            f"with a toleration of the taint {taint.key}{_WITH_EFFECT if taint.effect == 'NoExecute' else ''}",
            (taint.key, taint.effect),
        ),
        details={"key": taint.key, "value": taint.value, "effect": taint.effect, **({"rule": rule} if rule else {})},
    )


Rest: TypeAlias = tuple[bool, bool, Hashable, Hashable, Hashable]
"""What the allocator reads of a device in addition to selectors: whether it has binding conditions and is held, its
taints, those of rules, and its capacity if relevant."""
Class: TypeAlias = tuple[Likeness, Rest]
"""A class of equivalent devices: what selectors read, and the rest."""
_ALONE: Final = None
_HELD: Final = 1
_UNTOUCHED: Final[Rest] = (False, False, (), (), ())
"""What distinguishes a usual device, which no claim holds and no rule taints, besides what selectors see."""


class EquivalentDevices:
    """Groups devices into classes by what the allocator reads of them for one choice.

    A device is judged alone if the verdict depends on its pool (counters), the node, or its shares.

    Attributes:
        usual: what selectors read of usual devices; None if unknown.
    """

    def __init__(self, choice: RequestAlternative, cluster: ClusterView, evaluator: CelEvaluator) -> None:
        self._choice = choice
        self._gates = cluster.gates
        self._usage = cluster.snapshot.usage
        self._blocked = self._usage.blocked(self._gates)
        self._reads = _reads(choice, evaluator)
        self.usual: SliceLikeness | None = None if self._reads is None else SliceLikeness(self._reads)

    def is_held(self, device: AdvertisedDevice) -> bool:
        """Return whether claims hold the device, so that no other claim can have it without admin access."""
        return not self._choice.admin_access and (
            device.id in self._blocked or self._usage.is_left_to_shares(device, self._gates)
        )

    def of_slice(self, slice_: AdvertisedSlice) -> tuple[Class, ...] | None:
        """Return the classes of a slice's usual devices, by position; None if devices must be examined one by one."""
        spec, usual = slice_.spec, slice_.published.usual
        if self.usual is None or usual is None or spec.skip_node_operations or spec.per_device_node_selection:
            return None
        if not slice_.whole:
            return None  # problems of capacity name the device
        seen = self.usual.of(slice_)
        used = bool(self._usage.changes((spec.driver, spec.pool.name)))
        if used and any(self._usage.consumed(device.id, self._gates) for device in slice_.devices):
            return None
        if used or slice_.has_rule_taints or self._choice.capacity:
            return tuple(zip(seen, map(self._rest, slice_.devices), strict=True))
        return tuple(zip(seen, repeat(_UNTOUCHED, len(seen)), strict=True))

    def holds_any(self, classes: Iterable[Class]) -> bool:
        """Return whether claims hold a device of these classes, so that reasons name claims."""
        return any(rest[_HELD] for _, rest in classes)

    def _rest(self, device: AdvertisedDevice) -> Rest:
        """Return the rest of a usual device's class."""
        rules = tuple([id(taint) for taint in device.rule_taints])
        return False, self.is_held(device), (), rules, device.form if self._choice.capacity else ()

    def of(self, device: AdvertisedDevice) -> Class | None:
        """Return the class of a device; None if it is judged alone."""
        published, spec = device.device, device.spec
        if self._reads is None or device.demands or not device.whole:
            return _ALONE
        if spec.skip_node_operations or spec.per_device_node_selection or self._usage.consumed(device.id, self._gates):
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
            tuple([id(taint) for taint in device.rule_taints]),  # a rule's taint is the same object everywhere
            tuple([(name, str(offer.value)) for name, offer in published.capacity.items()])
            if self._choice.capacity
            else (),
        )


def _reads(choice: RequestAlternative, evaluator: CelEvaluator) -> tuple[DeviceRead, ...] | None:
    """Return what the selectors read of a device; None if unknown."""
    found: dict[DeviceRead, None] = {}
    for expression in (*choice.class_selectors, *choice.selectors):
        reads = evaluator.selector_reads(expression)
        if reads is None:
            return None
        found.update(dict.fromkeys(reads))
    return tuple(found)


def unreachable_devices(
    cluster: ClusterView, slices: Collection[LazySlice], devices: Collection[tuple[LazySlice, int]]
) -> Iterator[DeviceVerdict]:
    """Yield the devices of the newest generation of each pool that no node reaches, and why."""
    reached_ids: Collection[tuple[str, str, str]] = ()
    pools: dict[tuple[str, str], list[LazySlice]] = defaultdict(list)
    for slice_ in cluster.slices:
        pools[slice_.spec.driver, slice_.spec.pool.name].append(slice_)
    for pool, published in pools.items():
        newest = max(slice_.spec.pool.generation for slice_ in published)
        current = [slice_ for slice_ in published if slice_.spec.pool.generation == newest]
        for slice_ in current:
            if slice_ in slices:
                continue
            advertised = AdvertisedSlice(slice_)
            for position, device in enumerate(slice_.devices):
                if (slice_, position) in devices:
                    continue
                # another slice may have a device of the same name
                reached_ids = reached_ids or {
                    *(_id(each, number) for each in slices for number in range(len(each))),
                    *(_id(*place) for place in devices),
                }
                if (*pool, device.name) not in reached_ids:
                    reason = _reason(cluster, slice_, device, current)
                    scope = slice_.spec.node_name or device.node_name
                    yield DeviceVerdict(advertised, position, (scope,) if scope else (), (reason,))


def _id(slice_: LazySlice, position: int) -> tuple[str, str, str]:
    return slice_.spec.driver, slice_.spec.pool.name, slice_.name_of(position)


def _reason(cluster: ClusterView, slice_: LazySlice, device: Device, current: Sequence[LazySlice]) -> Reason:
    spec = slice_.spec
    announced = spec.pool.resource_slice_count
    if len(current) != announced:
        return Reason(
            ReasonKind.POOL,
            f"its pool {spec.pool.name} is incomplete: {len(current)} of {announced} slices are published",
            brief="in an incomplete pool",
            details={"slices": len(current), "announced": announced},
        )
    if not cluster.gates.partitionable_devices and (spec.shared_counters or spec.per_device_node_selection is not None):
        return feature("shared counters or its own node scope", "DRAPartitionableDevices")
    grouped = any(demand.compatibility_groups for each in slice_.devices for demand in each.consumes_counters)
    if grouped and not cluster.gates.compatibility_groups:
        return feature("compatibility groups", "DRADeviceCompatibilityGroups")
    node = spec.node_name or device.node_name
    if node and node not in cluster.node_names:
        return Reason(ReasonKind.NODE, f"on node {node}, which does not exist", brief="on a node that does not exist")
    if spec.node_selector is not None or device.node_selector is not None:
        if not cluster.knows_nodes:
            return Reason(ReasonKind.NODE, "for nodes that could not be read", brief="for unknown nodes")
        return Reason(ReasonKind.NODE, "for nodes with labels that no node has", brief="for no node of the cluster")
    return Reason(ReasonKind.NODE, "offered to no node", brief="for no node of the cluster")


def capacity_reasons(choice: RequestAlternative, device: AdvertisedDevice, cluster: ClusterView) -> Iterator[Reason]:
    """Yield the capacities of a device that are insufficient for a request, or not available in that amount.

    Raises:
        AllocationError: the amounts of the request are invalid.
    """
    if not cluster.gates.consumable_capacity:
        return
    requested, offers = asked_and_offered(choice.capacity, device, cluster.gates)
    missing = [name for name in requested if name not in offers]
    for name in missing:
        yield Reason(
            ReasonKind.CAPACITY,
            f"has no capacity {name}",
            brief=f"without capacity {name}",
            remedy=Remedy(RemedyKind.NO_AMOUNT, f"without a request for capacity {name}", (name,)),
        )
    if missing:
        return
    share = capacity_share(requested, device, cluster.gates)
    if share is None:
        refused = [name for name in requested if capacity_share({name: requested[name]}, device, cluster.gates) is None]
        for name in refused:
            allowed = _allowed(offers[name].request_policy)
            yield Reason(
                ReasonKind.CAPACITY,
                f"gives {name} only {allowed}, not {requested[name]}",
                brief=f"{name} not available in this amount",
                found=allowed,
                wanted=f"≠ {requested[name]}",
                remedy=Remedy(RemedyKind.OTHER_AMOUNT, f"with another amount of {name}", (name,)),
                details={"capacity": name, "requested": str(requested[name]), "allowed": allowed},
            )
        if not refused:
            yield Reason(
                ReasonKind.CAPACITY,
                "has a capacity whose default amount its own policy does not allow",
                brief="with a capacity that must be requested",
                remedy=Remedy(RemedyKind.NEW_AMOUNT, "with an amount of each capacity"),
            )
        return
    consumed = cluster.snapshot.usage.consumed(device.id, cluster.gates)
    for name, needed in share.nanos.items():
        left = device.capacity[name] - consumed.get(name, 0)
        if needed <= left:
            continue
        whole = offers[name].value
        wanted, short, rest = (_like(whole, nanos) for nanos in (needed, needed - left, left))
        claims = sorted({holder.claim for holder in cluster.holders.get(device.id, ())})
        by = f", the rest went to {', '.join(claims)}" if claims else ""
        untouched = left == device.capacity[name]
        there = f"it has {whole}" if untouched else f"{rest} of {whole} left{by}"
        yield Reason(
            ReasonKind.CAPACITY,
            f"{name} is short by {short}: {_needed(name, wanted, choice, offers[name])}, {there}",
            brief=f"short of {name}",
            found=f"has {rest}" if untouched else f"{rest} left",
            wanted=f"< {wanted}",
            remedy=Remedy(RemedyKind.NEW_AMOUNT, f"with an amount of {name} in capacity.requests", (name,))
            if name not in requested
            else RELEASED
            if needed <= device.capacity[name]
            else Remedy(RemedyKind.SMALLER_AMOUNT, f"with a smaller request for {name}", (name,)),
            details={"capacity": name, "requested": wanted, "left": rest, "short": short, "claims": claims},
        )


class PoolCounters:
    """Counter sets of a pool on one node, those of ``scope`` in its counters, and what devices in use consume."""

    def __init__(self, pool: NodePool, scope: str, cluster: ClusterView) -> None:
        held = [
            device for device in pool.drawing(scope) if cluster.snapshot.usage.uses_counters(device.id, cluster.gates)
        ]
        self._whole = dict(pool.counters.get(scope, {}))
        self._ledger = CounterLedger(self._whole, held, groups=cluster.gates.compatibility_groups)
        self._left = dict(self._whole)
        self._claims: dict[str, set[str]] = {}
        for device in held:
            holders = {holder.claim for holder in cluster.holders.get(device.id, ())}
            for demand in device.demands:
                self._claims.setdefault(demand.counter_set, set()).update(holders)
                for name, amount in demand.amounts:
                    if (demand.counter_set, name) in self._left:
                        self._left[demand.counter_set, name] -= amount

    def reasons(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """Yield the counters that do not suffice for a device."""
        if self._ledger.take(device):
            self._ledger.give_back(device)
            return
        found = False
        for demand in device.demands:
            units = {
                name: counter.value
                for consumption_ in device.device.consumes_counters
                if consumption_.counter_set == demand.counter_set
                for name, counter in consumption_.counters.items()
            }
            for name, amount in demand.amounts:
                left = self._left.get((demand.counter_set, name))
                if left is not None and amount > left:
                    found = True
                    yield self._short(demand.counter_set, name, units[name], amount - left)
        if not found:
            overdrawn = [f"{name} of {counter_set}" for (counter_set, name), left in self._left.items() if left < 0]
            if overdrawn:
                text = f"counters of its pool are overdrawn: {', '.join(overdrawn)}"
            else:
                text = "devices in use that draw on its counters have no compatibility group in common with it"
            brief = "blocked by devices in use of the same hardware"
            yield Reason(ReasonKind.COUNTERS, text, brief=brief, remedy=RELEASED)

    def _short(self, counter_set: str, name: str, unit: Quantity, short: int) -> Reason:
        whole, left = self._whole[counter_set, name], max(self._left[counter_set, name], 0)
        claims = sorted(self._claims.get(counter_set, ()))
        by = f" (devices of {', '.join(claims)})" if claims else ""
        lacking, rest = _like(unit, short), _like(unit, left)
        return Reason(
            ReasonKind.COUNTERS,
            f"{counter_set} is short of {name} by {lacking}: {unit} needed, {rest} left{by}",
            brief=f"short of {name} in a shared counter",
            found=f"{rest} left",
            wanted=f"< {unit}",
            remedy=RELEASED if claims else None,
            details={"counterSet": counter_set, "counter": name, "needed": str(unit), "left": rest, "short": lacking,
                     "whole": _like(unit, whole), "claims": claims},
        )  # fmt: skip


def _allowed(policy: CapacityRequestPolicy | None) -> str:
    if policy is None:
        return "as published"
    if policy.valid_values:
        return f"in amounts of {', '.join(map(str, policy.valid_values))}"
    valid = policy.valid_range
    if valid is None:
        return "as published"
    bounds = [f"from {valid.min}" if valid.min is not None else "", f"to {valid.max}" if valid.max is not None else ""]
    step = f"in steps of {valid.step}" if valid.step is not None else ""
    return " ".join(filter(None, (*bounds, step))) or "as published"


def _needed(name: str, amount: str, choice: RequestAlternative, offer: DeviceCapacity) -> str:
    """Explain why a claim consumes an amount, which it may not have requested."""
    if name in (choice.capacity or {}):
        return f"{amount} requested"
    if offer.request_policy is not None and offer.request_policy.default is not None:
        return f"the default of {amount} needed, as the request names no amount"
    return "all of it needed, as the request names no amount and the device has no request policy with a default"


def _like(model: Quantity, nanos: int) -> str:
    """Return billionths as a quantity with the suffixes of ``model``; a number beyond int64 with a power of ten."""
    exact = Decimal(nanos).scaleb(NANO)
    if abs(exact) > INT64_MAX:
        return f"{exact.normalize():E}".replace("E+", "e")
    number = Quantity(exact)
    return str(number if not model.sign else model + (number - model))
