"""Judges the devices of a cluster for one choice of a request: each either fits, or has reasons against it.

What decides is the allocator's own code; the reasons only put into words what it looks at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dra_kit import cel
from dra_kit.allocator import Node
from dra_kit.allocator.cluster.devices import AdvertisedDevice, AdvertisedSlice, DeviceID
from dra_kit.allocator.cluster.nodes import node_matches
from dra_kit.allocator.cluster.pools import NodePool
from dra_kit.allocator.cluster.taints import covers, tolerates
from dra_kit.allocator.requests.requests import Choice
from dra_kit.allocator.search.holding import OPTIONAL_NODE_OPERATIONS, Holding
from dra_kit.allocator.selectors.expressions import CelEvaluator
from dra_kit.allocator.selectors.likeness import Likeness
from dra_kit.allocator.selectors.selection import Selection
from dra_kit.errors import AllocationError, CelCompileError, CelRuntimeError
from dra_kit.explain.cluster.cluster import Cluster
from dra_kit.explain.devices.alike import Alikeness, Class
from dra_kit.explain.devices.amounts import PoolCounters, capacity_reasons
from dra_kit.explain.devices.conditions import reason_of
from dra_kit.explain.devices.selectors import remedy
from dra_kit.explain.devices.unreachable import unreachable
from dra_kit.explain.reasons import RELEASED, Check, Reason, feature
from dra_kit.explain.verdicts import DeviceVerdict, JudgedChoice
from dra_kit.resource.v1 import DeviceTaint


def judge(cluster: Cluster, choice: Choice, evaluator: CelEvaluator) -> JudgedChoice:
    """Judge all devices.

    Args:
        cluster: where they are.
        choice: what they are wanted for.
        evaluator: remembers what selectors say of devices.
    """
    judge_ = _Judge(cluster, choice, evaluator)
    found: dict[AdvertisedSlice | AdvertisedDevice, _Judged] = {}
    fitting: dict[str, int] = {}
    for node in cluster.nodes:
        try:
            pools = cluster.snapshot.pools(node, cluster.gates).ordered
        except AllocationError:
            continue  # the allocator's verdict on this node tells
        on_node = _OnNode(judge_, node, pools)
        for pool, slice_ in ((pool, slice_) for pool in pools for slice_ in pool.slices):
            for reached, positions in on_node.reached(slice_):
                known = found.get(reached)
                if known is None:
                    known = found[reached] = _Judged(slice_, positions, on_node.reasons(slice_, positions, pool))
                elif not known.fit and on_node.matters(slice_, pool):
                    known.improve(on_node.reasons(slice_, positions, pool))
                known.nodes.append(node.name)
                if known.fitting:
                    fitting[node.name] = fitting.get(node.name, 0) + known.fitting
    verdicts = [verdict for judged in found.values() for verdict in judged.verdicts()]
    slices = {judged.slice_.published for judged in found.values() if len(judged.positions) == len(judged.slice_)}
    single = {(judged.slice_.published, position) for judged in found.values() for position in judged.positions} if len(
        slices
    ) < len(found) else set()
    return JudgedChoice(choice.name, choice, None, (*verdicts, *unreachable(cluster, slices, single)), fitting)


class _Judged:
    """Devices of a slice that the same nodes reach.

    Args:
        slice_: the slice.
        positions: of the devices.
        reasons: what stands against each.

    Attributes:
        nodes: names of the nodes that reach them.
        fitting: how many of them fit.
    """

    __slots__ = ("fitting", "nodes", "positions", "reasons", "slice_")

    def __init__(
        self, slice_: AdvertisedSlice, positions: Sequence[int], reasons: Sequence[tuple[Reason, ...]]
    ) -> None:
        self.slice_ = slice_
        self.positions = positions
        self.nodes: list[str] = []
        self.reasons = reasons
        self.fitting = reasons.count(())

    @property
    def fit(self) -> bool:
        """Whether all of them fit."""
        return self.fitting == len(self.positions)

    def improve(self, reasons: Sequence[tuple[Reason, ...]]) -> None:
        """Take what another node finds of the devices that do not fit yet: it is enough that one fits on one node."""
        self.reasons = [known and new for known, new in zip(self.reasons, reasons, strict=True)]
        self.fitting = self.reasons.count(())

    def verdicts(self) -> Iterator[DeviceVerdict]:
        """The verdict on each."""
        for position, reasons in zip(self.positions, self.reasons, strict=True):
            yield DeviceVerdict(self.slice_, position, self.nodes, reasons)


@dataclass(frozen=True, slots=True)
class _Reasons:
    """What stands against a device, and against all that are alike.

    Attributes:
        first: before that claims hold it, in the scheduler's order.
        last: after that.
        is_barred: the device cannot be had, whether it matches or not.
    """

    first: tuple[Reason, ...]
    last: tuple[Reason, ...] = ()
    is_barred: bool = False


@dataclass(frozen=True, slots=True)
class _Bar:
    """Why a device cannot be had, whether it matches or not.

    Attributes:
        taints: that are not tolerated.
        rest: after that claims hold it.
    """

    taints: tuple[Reason, ...]
    rest: tuple[Reason, ...]


class _Judge:
    """What is the same on all nodes."""

    def __init__(self, cluster: Cluster, choice: Choice, evaluator: CelEvaluator) -> None:
        self.cluster = cluster
        self.choice = choice
        self.evaluator = evaluator
        self.sees_sharing = cluster.gates.variant.knows_sharing
        class_name = f"class {choice.device_class.metadata.name}"
        self._selectors = [
            *((Check.CLASS, class_name, expression) for expression in choice.class_selectors),
            *((Check.SELECTOR, f"request {choice.name}", expression) for expression in choice.selectors),
        ]
        self.alikeness = Alikeness(choice, cluster.gates, cluster.snapshot.usage)
        self.known: dict[Class, _Reasons] = {}
        self.known_slices: dict[tuple[Class, ...], Sequence[tuple[Reason, ...]]] = {}
        self.bars: dict[Hashable, _Bar | None] = {}
        self._explainers: dict[str, cel.Explainer] = {}
        self._alike: dict[tuple[Check, str, Likeness], tuple[Reason, ...]] = {}

    def mismatches(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """Why a device does not match the request, on whatever node."""
        if device.device.binding_conditions and not self.cluster.gates.device_binding_and_status:
            yield feature("binding conditions", "DRADeviceBindingConditions")
        yield from self._unmatched(device)

    def _unmatched(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """Why selectors do not select a device; looked for once for devices that look the same to a selector."""
        for check, where, expression in self._selectors:
            try:
                likeness = self.evaluator.likeness(expression, device, sees_sharing=self.sees_sharing)
            except CelCompileError:
                likeness = None
            found = self._alike.get((check, expression, likeness)) if likeness is not None else None
            if found is None:
                found = tuple(self._unmet(check, where, expression, device))
                if likeness is not None:
                    self._alike[check, expression, likeness] = found
            yield from found
            if found and found[-1].check is Check.ERROR:
                return

    def _unmet(self, check: Check, where: str, expression: str, device: AdvertisedDevice) -> Iterator[Reason]:
        """What a selector says of a device that it does not select."""
        try:
            conjuncts = self._conjuncts(expression, device)
        except CelCompileError as error:
            yield Reason(Check.ERROR, f"a selector of {where} is no CEL: {error}", f"invalid selector of {where}",
                         remedy=self._remedy(expression, where))  # fmt: skip
            return
        except CelRuntimeError as error:
            yield _error(error, where, expression, self._remedy(expression, where, device))
            return
        for conjunct in conjuncts:
            yield reason_of(conjunct, check, where)

    def _remedy(self, expression: str, where: str, device: AdvertisedDevice | None = None) -> str:
        """What to write instead of a selector that fails."""
        try:
            view = self._view(expression, device) if device is not None else None
        except CelRuntimeError:
            view = None
        return remedy(self.cluster, expression, where, view)

    def _conjuncts(self, expression: str, device: AdvertisedDevice) -> tuple[cel.Conjunct, ...]:
        """The conditions of a selector that a device does not meet; none if it is selected.

        Raises:
            CelCompileError: the expression is none.
            CelRuntimeError: it fails for this device.
        """
        explainer = self._explainers.get(expression)
        if explainer is None:
            explainer = self._explainers[expression] = cel.Explainer(
                cel.compile_selector(expression), self.evaluator.meter
            )
        # what does not cost too much as a whole is what its conditions are, where none of them fails
        found = explainer.unmet(self._view(expression, device)) if explainer.is_admitted else None
        if found is None or any(conjunct.result is None for conjunct in found):
            if self.evaluator.selects(expression, device, sees_sharing=self.sees_sharing):
                return ()
            found = explainer.unmet(self._view(expression, device)) if found is None else found
        return found

    def _view(self, expression: str, device: AdvertisedDevice) -> cel.Device:
        return self.evaluator.view(expression, device, sees_sharing=self.sees_sharing)

    def untolerated(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """The taints of a device that keep it away."""
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
        for rule in self.cluster.rules:
            if rule.spec.taint is taint and covers(rule.spec.device_selector, device):
                return rule.metadata.name
        return ""

    def held(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """The claims that hold a device that cannot be shared."""
        if not self.alikeness.is_held(device):
            return
        claims = sorted({holder.claim for holder in self.cluster.holders.get(device.id, ())})
        by = ", ".join(claims) or "a claim"
        yield Reason(
            Check.ALLOCATED, f"allocated to {by}", "allocated", found=by, remedy=RELEASED, details={"claims": claims}
        )


class _OnNode:
    """The devices that one node can reach."""

    def __init__(self, judge_: _Judge, node: Node, pools: Sequence[NodePool]) -> None:
        self._judge = judge_
        self._node = node
        self._pools = pools
        self._ledgers: dict[NodePool, PoolCounters] = {}

    @cached_property
    def _selection(self) -> Selection:
        return Selection(self._node, self._judge.cluster.gates, self._judge.evaluator)

    @cached_property
    def _holding(self) -> Holding:
        cluster = self._judge.cluster
        return Holding(self._node, cluster.gates, cluster.snapshot.usage, self._pools)

    def reached(self, slice_: AdvertisedSlice) -> Iterator[tuple[AdvertisedSlice | AdvertisedDevice, Sequence[int]]]:
        """The devices of a slice of this node that are for it, by their positions: all at once, or one by one."""
        if not slice_.spec.per_device_node_selection:
            yield slice_, range(len(slice_))
            return
        for position, device in enumerate(slice_.devices):
            if self._reaches(device):
                yield device, (position,)

    def _reaches(self, device: AdvertisedDevice) -> bool:
        """Whether a device with a node scope of its own is for the node."""
        try:
            return node_matches(self._node, *device.node_scope)
        except ValueError:
            return True  # the allocator stumbles over it here

    def matters(self, slice_: AdvertisedSlice, pool: NodePool) -> bool:
        """Whether verdicts may be others than on a node that was looked at before."""
        return bool(pool.invalid or slice_.spec.skip_node_operations)

    def reasons(
        self, slice_: AdvertisedSlice, positions: Sequence[int], pool: NodePool
    ) -> Sequence[tuple[Reason, ...]]:
        """What stands against devices that the node reaches, each; nothing where the allocator can choose it."""
        classes = None if pool.invalid else self._judge.alikeness.of_slice(slice_)
        if classes is None:
            return [self._of_device(slice_.devices[position], pool) for position in positions]
        known = self._judge.known_slices.get(classes)
        if known is None:
            known = [self._of_class(slice_, position, pool, alike) for position, alike in enumerate(classes)]
            if not self._judge.alikeness.holds_any(classes):
                self._judge.known_slices[classes] = known
        return known

    def _of_device(self, device: AdvertisedDevice, pool: NodePool) -> tuple[Reason, ...]:
        if pool.invalid:
            text = f"its pool {pool.id.name} is invalid: {pool.invalid}"
            return (Reason(Check.POOL, text, "in an invalid pool"), *self._judge.mismatches(device))
        alike = self._judge.alikeness.of(device)
        found = self._judge.known.get(alike) if alike is not None else None
        if found is None:
            found = self._reasons(device, pool, alike)
            if alike is not None:
                self._judge.known[alike] = found
        if not found.is_barred:
            return found.first
        return (*found.first, *self._judge.held(device), *found.last)

    def _of_class(self, slice_: AdvertisedSlice, position: int, pool: NodePool, alike: Class) -> tuple[Reason, ...]:
        found = self._judge.known.get(alike)
        if found is None:
            found = self._judge.known[alike] = self._reasons(slice_.devices[position], pool, alike)
        if not found.is_barred:
            return found.first
        return (*found.first, *self._judge.held(slice_.devices[position]), *found.last)

    def _reasons(self, device: AdvertisedDevice, pool: NodePool, alike: Class | None) -> _Reasons:
        mismatches: tuple[Reason, ...] | None = None
        if alike is None:
            try:
                if self._selection.matches(self._judge.choice, device):
                    mismatches = ()
            except AllocationError as error:
                if error.kind == "node-selector-invalid":
                    return _Reasons((Reason(Check.ERROR, str(error), "with an invalid node selector"),))
        if mismatches is None:  # with none, a device that its node scope does not keep away matches
            mismatches = tuple(self._judge.mismatches(device))
        try:
            bar = self._bar(device, pool, alike)
        except AllocationError as error:
            text = "error in the capacity request"
            return _Reasons((*mismatches, Reason(Check.ERROR, str(error), text)))
        if bar is None:
            return _Reasons(mismatches)
        return _Reasons((*mismatches, *bar.taints), bar.rest, is_barred=True)

    def _bar(self, device: AdvertisedDevice, pool: NodePool, alike: Class | None) -> _Bar | None:
        """Why a device cannot be had; None if it can, or one that is like it in all but what selectors see.

        Raises:
            AllocationError: the request cannot be computed with.
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
                Check.FEATURE,
                f"asks the kubelet to skip calls of its driver, which node {self._node.name} cannot",
                "not served by the node's kubelet",
            )
        yield from capacity_reasons(self._judge.choice, device, cluster)
        if not device.demands:
            return
        if not gates.partitionable_devices:
            yield feature("shared counters", "DRAPartitionableDevices")
        elif not (self._holding.is_shareable(device) and cluster.snapshot.usage.is_shared(device.id, gates)):
            counters = self._ledgers.get(pool)
            if counters is None:
                counters = self._ledgers[pool] = PoolCounters(pool, cluster)
            yield from counters.reasons(device)


def _error(error: CelRuntimeError, where: str, expression: str, mended: str) -> Reason:
    if error.kind == "no-such-key":
        text = f"has no {error.key}, for which a selector of {where} asks without has()"
        return Reason(Check.ERROR, text, f"without {error.key}", remedy=mended, details={"selector": expression})
    text = f"a selector of {where} fails: {error.message}"
    return Reason(Check.ERROR, text, f"error in a selector of {where}", remedy=mended, details={"selector": expression})


def _taint(taint: DeviceTaint, rule: str) -> Reason:
    shown = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
    by = f" (by DeviceTaintRule {rule})" if rule else ""
    return Reason(
        Check.TAINT,
        f"tainted {shown}{by}",
        "tainted",
        found=shown,
        remedy=f"with a toleration of the taint {taint.key}",
        details={"key": taint.key, "value": taint.value, "effect": taint.effect, **({"rule": rule} if rule else {})},
    )
