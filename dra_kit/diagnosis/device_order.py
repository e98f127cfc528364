"""The order of devices: what the scheduler sees of it, and the search for one that leaves more room to large requests.

The scheduler takes the first device that fits: pools by driver and name, slices by name, and devices as listed
(Kubernetes 1.36 and newer, ``dynamicresources/internal/incubating``).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Final, Literal

from msgspec import Struct
from typing_extensions import override

from dra_kit.diagnosis.workload import (
    MEASUREMENTS,
    TOPOLOGY,
    Comparison,
    Measure,
    RequestKind,
    Simulation,
    Trace,
    WorkloadRequest,
    claim_of,
    large_of,
    mean_of,
    plain_value,
    random_trace,
)
from dra_kit.errors import AllocationError, ConfigurationError, Invalid
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, to_nano
from dra_kit.kubernetes.allocator.requests import RequestAlternative, request_alternatives
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.selectors import CelEvaluator, DeviceMatcher
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.matching import Node

Criterion = Literal["capacity", "attribute", "exclusions", "counter-set", "shared", "turns", "reverse"]
"""How devices are sorted; ``exclusions``: by counter set, then by the number of devices of the pool that cannot be
allocated beside a device; ``turns``: one device of each value of an attribute in turn."""
_NAMES: Final = 4
"""Maximum capacities, and maximum attributes, by which devices are sorted in a search."""
_GROUPS: Final = 16
"""Maximum values of an attribute by which devices are sorted."""
_EXCLUSIONS: Final = """\
limits = {(s.name, k): v for s in counter_sets for k, v in s.counters.items()}
needs = {d.name: {(c.counter_set, k): v for c in d.consumes_counters
                  for k, v in c.counters.items()} for d in devices}
def exclusions(d):  # how many devices cannot be allocated beside it
    return sum(any(needs[d.name].get(k, 0) + v > limits[k] for k, v in other.items()
                   if k in needs[d.name]) for name, other in needs.items() if name != d.name)
ranks = {d.name: exclusions(d) for d in devices}
"""


class SortStep(Struct, frozen=True):
    """One stable sort of the devices of a pool, of which steps before it decide ties.

    Attributes:
        criterion: how devices are sorted.
        name: of the capacity or attribute.
        descending: the largest first.
        missing: some devices do not have it; they come last.
    """

    criterion: Criterion
    name: str = ""
    descending: bool = False
    missing: bool = False

    def __str__(self) -> str:
        if self.criterion == "capacity":
            return f"from {'large to small' if self.descending else 'small to large'} by capacity {self.name}"
        if self.criterion == "attribute":
            return f"by attribute {self.name}{', descending' if self.descending else ''}"
        if self.criterion == "exclusions":
            first = "the most" if self.descending else "the fewest"
            return f"within each counter set, first those that exclude {first} other devices"
        return {
            "counter-set": "grouped by counter set",
            "shared": f"shared devices {'first' if self.descending else 'last'}",
            "turns": f"one of each {self.name} in turn",
            "reverse": "in reverse order",
        }[self.criterion]

    @property
    def helpers(self) -> str:
        """Python code that :attr:`code` needs before it."""
        return {"turns": "import collections, itertools\n", "exclusions": _EXCLUSIONS}.get(self.criterion, "")

    @property
    def code(self) -> str:
        """Python code that sorts ``devices``, a list of ``dra_kit.Device``, as :meth:`sort` does."""
        if self.criterion == "reverse":
            return "devices.reverse()\n"
        name, sign = json.dumps(self.name), "-" if self.descending else ""
        has, value = {
            "capacity": (f"{name} in d.capacity", f"d.capacity[{name}].value"),
            "attribute": (f"{name} in d.attributes", f"d.attributes[{name}]"),
            "turns": (f"{name} in d.attributes", f"next(turns[d.attributes[{name}]])"),
            "exclusions": ("d.consumes_counters", f"(d.consumes_counters[0].counter_set, {sign}ranks[d.name])"),
            "counter-set": ("d.consumes_counters", "d.consumes_counters[0].counter_set"),
            "shared": ("", "bool(d.allow_multiple_allocations)"),
        }[self.criterion]
        if self.missing:
            value = f"(1, {value}) if {has} else (0, 0)" if self._reversed else f"(0, {value}) if {has} else (1, 0)"
        before = "turns = collections.defaultdict(itertools.count)\n" if self.criterion == "turns" else ""
        return f"{before}devices.sort(key=lambda d: {value}{', reverse=True' if self._reversed else ''})\n"

    @property
    def _reversed(self) -> bool:
        """Whether the sort is descending; exclusions are negated, because counter sets stay ascending."""
        return self.descending and self.criterion != "exclusions"

    def values(self, pool: DevicePool) -> Sequence[Any]:
        """Return the value of each device by its position in the published order; None if it has none."""
        if self.criterion == "exclusions":
            sign = -1 if self.descending else 1
            return [None if known is None else (known[0], sign * known[1]) for known in pool.exclusions]
        return [self._value(device) for device in pool.devices]

    def _value(self, device: v1.Device) -> Any:
        if self.criterion == "capacity":
            amount = device.capacity.get(self.name)
            return None if amount is None else to_nano(amount.value)
        if self.criterion in {"attribute", "turns"}:
            return plain_value(device.attributes.get(self.name))
        if self.criterion == "counter-set":
            return next((each.counter_set for each in device.consumes_counters), None)
        return bool(device.allow_multiple_allocations)

    def sort(self, places: Sequence[int], values: Sequence[Any]) -> list[int]:
        """Sort positions of devices."""
        if self.criterion == "reverse":
            return list(reversed(places))
        if self.criterion == "turns":
            turns: Counter[Any] = Counter()
            ranks: dict[int, int] = {}
            for place in places:
                ranks[place] = turns[values[place]]
                turns[values[place]] += 1
            return sorted(places, key=lambda place: (values[place] is None, ranks[place]))
        if self._reversed:
            return sorted(
                places, key=lambda place: (0, 0) if values[place] is None else (1, values[place]), reverse=True
            )
        return sorted(places, key=lambda place: (1, 0) if values[place] is None else (0, values[place]))


class DevicePool:
    """The devices of a pool that have the same node scope.

    Attributes:
        name: of the pool.
        node_name: the node of its slices; None if they name none.
        slices: in the order of their names.
        devices: in the published order.
    """

    def __init__(self, slices: Sequence[v1.ResourceSlice], counter_sets: Iterable[v1.CounterSet]) -> None:
        self.slices: tuple[v1.ResourceSlice, ...] = tuple(slices)
        self.name: str = slices[0].spec.pool.name
        self.node_name: str | None = slices[0].spec.node_name
        self.devices: tuple[v1.Device, ...] = tuple(device for each in slices for device in each.spec.devices)
        self._limits = {
            (each.name, name): to_nano(counter.value)
            for each in counter_sets
            for name, counter in each.counters.items()
        }

    @cached_property
    def exclusions(self) -> list[tuple[str, int] | None]:
        """The first counter set of each device, and how many other devices cannot be allocated beside it."""
        needs = [
            {
                (each.counter_set, name): to_nano(counter.value)
                for each in device.consumes_counters
                for name, counter in each.counters.items()
            }
            for device in self.devices
        ]
        sharing: defaultdict[str, set[int]] = defaultdict(set)  # devices that consume the same counters
        for place, device in enumerate(self.devices):
            for each in device.consumes_counters:
                sharing[each.counter_set].add(place)
        found: list[tuple[str, int] | None] = []
        for place, mine in enumerate(needs):
            others = set().union(*(sharing[each.counter_set] for each in self.devices[place].consumes_counters))
            excluded = sum(
                any(key in mine and mine[key] + amount > self._limits.get(key, 0) for key, amount in other.items())
                for other in [needs[position] for position in others - {place}]
            )
            consumed = self.devices[place].consumes_counters
            found.append((consumed[0].counter_set, excluded) if consumed else None)
        return found

    def in_order(self, places: Sequence[int], name: str) -> Iterator[v1.ResourceSlice]:
        """Yield its slices with the devices in another order, as part of the pool ``name``; names stay."""
        start = 0
        for each in self.slices:
            end = start + len(each.spec.devices)
            pool = each.spec.pool.model_copy(update={"name": name})
            devices = tuple(self.devices[place] for place in places[start:end])
            yield each.model_copy(update={"spec": each.spec.model_copy(update={"pool": pool, "devices": devices})})
            start = end


class _SharedEvaluator(CelEvaluator):
    """Caches the results of selectors for all orders of the same devices, whose models must outlive it."""

    def __init__(self, version: KubernetesVersion) -> None:
        super().__init__(version)
        self._selected: dict[tuple[str, int], bool] = {}

    @override
    def selects(self, expression: str, device: AdvertisedDevice, *, sees_sharing: bool) -> bool:
        key = expression, id(device.device)
        known = self._selected.get(key)
        if known is None:
            known = self._selected[key] = super().selects(expression, device, sees_sharing=sees_sharing)
        return known


class Arrangement(Struct, frozen=True):
    """An order of the devices of each pool, and of the pools.

    Attributes:
        devices: for each pool, the positions of its devices in the published order.
        pools: positions of the pools.
    """

    devices: tuple[tuple[int, ...], ...]
    pools: tuple[int, ...]


class PublishedDevices:
    """The devices of a driver on some nodes, before any claim holds one.

    Args:
        slices: those of other drivers, whose devices claims may request as well, stay unchanged.
        classes: DeviceClasses; without one that selects a device of the driver, there is one named after the driver.
        driver: the driver's name.
        nodes: the nodes.
        release: of the cluster, with its feature gates.

    Raises:
        ConfigurationError: the driver publishes no devices for these nodes, or too many to simulate.
    """

    def __init__(
        self,
        slices: Iterable[v1.ResourceSlice],
        classes: Iterable[v1.DeviceClass],
        driver: str,
        nodes: Sequence[Node],
        release: Release,
    ) -> None:
        self.driver = driver
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.release = release
        self._rules = AllocatorRules.of(release)
        self._evaluator = _SharedEvaluator(release.version)
        self._selected: dict[str, list[v1.Device]] = {}
        newest = _newest(slices)
        self._others = [each for each in newest if each.spec.driver != driver]
        self.pools: tuple[DevicePool, ...] = tuple(_pools(each for each in newest if each.spec.driver == driver))
        if len(self) > _DEVICES_MAX:
            raise ConfigurationError(
                f"driver {driver}: {len(self)} devices are too many to simulate (limit {_DEVICES_MAX}); "
                "use fewer --nodes"
            )
        self._classes = {each.metadata.name: each for each in classes}
        if not any(self.selected(name) for name in self._classes):
            if not any(pool.devices for pool in self.pools):
                raise ConfigurationError(
                    f"driver {driver} publishes no devices for {self.nodes[0].name}; for devices that its controller "
                    "publishes, or that others must publish first, use --from with ResourceSlices of a cluster"
                )
            expression = v1.CELDeviceSelector(expression=f'device.driver == "{driver}"')
            spec = v1.DeviceClassSpec(selectors=(v1.DeviceSelector(cel=expression),))
            self._classes[driver] = v1.DeviceClass.model_validate({"metadata": {"name": driver}, "spec": spec})

    def __len__(self) -> int:
        return sum(len(pool.devices) for pool in self.pools)

    def class_names(self) -> list[str]:
        """Return the classes that select devices of the driver."""
        return [name for name in self._classes if self.selected(name)]

    def selected(self, name: str) -> list[v1.Device]:
        """Return the devices of the driver that a class selects; none if its selectors fail for one."""
        if name not in self._selected:
            self._selected[name] = self._select(name)
        return self._selected[name]

    def _select(self, name: str) -> list[v1.Device]:
        state = self._state(self.arranged(()))
        found: dict[AdvertisedDevice, None] = {}
        try:
            claim = claim_of(WorkloadRequest(name=name, device_class_name=name), self.release)
            [choice] = request_alternatives(claim, claim.spec.devices.requests[0], state.classes, self._rules)
            if not isinstance(choice, RequestAlternative):
                return []
            for node in self.nodes:
                matcher = DeviceMatcher(node, self._rules, self._evaluator)
                devices = [each for each in state.pools(node, self._rules).devices if each.id.driver == self.driver]
                found |= {device: None for device in devices if matcher.matches(choice, device)}
        except (AllocationError, Invalid):
            return []
        return [device.device for device in found]

    def first(self, claim: v1.ResourceClaim) -> Sequence[v1.DeviceRequestAllocationResult]:
        """Return the devices of a first claim on the empty nodes; none if it does not fit.

        Raises:
            AllocationError: the attempt fails, for example because of a selector.
        """
        return self._probes[0].first(claim)

    def fits(self, claim: v1.ResourceClaim) -> int:
        """Return how many equal claims the empty nodes can have, in the best of a few orders.

        Raises:
            AllocationError: as for :meth:`first`.
        """
        return max(simulation.count(claim) for simulation in self._probes)

    @cached_property
    def _probes(self) -> list[Simulation]:
        """Empty nodes in the published order, and in those that are best for equal claims: small devices first."""
        orders = [self.arranged(())]
        orders += [
            self.arranged((step,))
            for step in self.steps()
            if step.criterion in {"capacity", "exclusions"} and not step.descending
        ][:_PROBES]
        return [self.simulation(order) for order in dict.fromkeys(orders)]

    def simulation(self, arrangement: Arrangement) -> Simulation:
        """Return empty nodes with the devices in an order."""
        state = self._state(arrangement)
        return Simulation(state, Allocator(state, self._rules, evaluator=self._evaluator, max_steps=_STEPS), self.nodes)

    def _state(self, arrangement: Arrangement) -> AllocatorState:
        names = self.pool_names(arrangement)
        slices = [
            each
            for pool, places in zip(self.pools, arrangement.devices, strict=True)
            for each in pool.in_order(places, names[pool.name])
        ]
        return AllocatorState(
            slices=[*self._others, *slices], classes=self._classes.values(), version=self.release.version
        )

    def arranged(self, steps: Sequence[SortStep]) -> Arrangement:
        """Return the order after some sorts; pools follow their first device by each."""
        orders = [list(range(len(pool.devices))) for pool in self.pools]
        by_name = sorted(range(len(self.pools)), key=lambda place: self.pools[place].name)
        sequence = by_name
        for step in steps:
            values = [self._values(step, place) for place in range(len(self.pools))]
            orders = [step.sort(places, known) for places, known in zip(orders, values, strict=True)]
            if step.criterion == "turns":
                continue
            firsts = [
                known[places[0]] if places and known else None for places, known in zip(orders, values, strict=True)
            ]
            sequence = step.sort(sequence, firsts)
        names = [pool.name for pool in self.pools]
        if len(set(names)) < len(names) or not self._is_seen(sequence, by_name):
            sequence = by_name
        return Arrangement(tuple(map(tuple, orders)), tuple(sequence))

    def _is_seen(self, sequence: Sequence[int], by_name: Sequence[int]) -> bool:
        """Whether a node sees the pools in another order than by name."""

        def seen(places: Sequence[int], node: Node) -> list[int]:
            return [place for place in places if self.pools[place].node_name in {None, node.name}]

        return any(seen(sequence, node) != seen(by_name, node) for node in self.nodes)

    def _values(self, step: SortStep, place: int) -> Sequence[Any]:
        return () if step.criterion == "reverse" else step.values(self.pools[place])

    def pool_names(self, arrangement: Arrangement) -> dict[str, str]:
        """Return a name for each pool that sorts at its place; the published names if these do."""
        names = [self.pools[place].name for place in arrangement.pools]
        if names == sorted(names):
            return {name: name for name in names}
        return {name: f"{number:05d}-{name}" for number, name in enumerate(names)}

    def steps(self) -> list[SortStep]:
        """Return the sorts that change anything, by published capacities, attributes and counters."""
        devices = [device for pool in self.pools for device in pool.devices]
        found = [
            SortStep("capacity", name, descending, missing=any(name not in each.capacity for each in devices))
            for name in _varying(devices, lambda each: {n: offer.value for n, offer in each.capacity.items()})[:_NAMES]
            for descending in (False, True)
        ]
        if any(device.consumes_counters for device in devices):
            missing = not all(device.consumes_counters for device in devices)
            found += [SortStep("exclusions", descending=down, missing=missing) for down in (False, True)]
            found.append(SortStep("counter-set", missing=missing))
        found += [SortStep("shared", descending=down) for down in (False, True)]
        attributes = (self._attribute_steps(name) for name in _varying(devices, lambda each: each.attributes))
        for steps in [steps for steps in attributes if steps][:_NAMES]:
            found += steps
        found.append(SortStep("reverse"))
        unchanged = self.arranged(())
        distinct: dict[Arrangement, SortStep] = {}
        for step in found:
            distinct.setdefault(self.arranged((step,)), step)
        return [step for arrangement, step in distinct.items() if arrangement != unchanged]

    def _attribute_steps(self, name: str) -> list[SortStep]:
        """Return the sorts by an attribute; none for lists, versions, and values that few devices have in common."""
        values = [device.attributes.get(name) for pool in self.pools for device in pool.devices]
        plain = {plain_value(value) for value in values if value is not None}
        types = set(map(type, plain))
        if None in plain or len(types) != 1 or len(plain) > min(_GROUPS, len(values) - 1):
            return []
        missing = None in values
        steps = [SortStep("attribute", name, down, missing) for down in ((False,) if str in types else (False, True))]
        return [*steps, SortStep("turns", name, missing=missing)] if name in TOPOLOGY else steps


_DEVICES_MAX: Final = 2000
_PROBES: Final = 2
"""Orders, besides the published one, in which equal claims are counted."""
_STEPS: Final = 200_000
"""Maximum steps of one search for devices; a claim that needs more gets none, as after kube-scheduler's timeout."""


def _newest(slices: Iterable[v1.ResourceSlice]) -> list[v1.ResourceSlice]:
    """Return the slices of the newest generation of each pool."""
    known = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for each in known:
        key = each.spec.driver, each.spec.pool.name
        newest[key] = max(newest.get(key, 0), each.spec.pool.generation)
    return [each for each in known if each.spec.pool.generation == newest[each.spec.driver, each.spec.pool.name]]


def _pools(slices: Iterable[v1.ResourceSlice]) -> Iterator[DevicePool]:
    def key(each: v1.ResourceSlice) -> tuple[str, str]:
        spec = each.spec
        return spec.pool.name, repr(
            (spec.node_name, spec.all_nodes, spec.node_selector, spec.per_device_node_selection)
        )

    known = sorted(slices, key=lambda each: (key(each), each.metadata.name))
    for (name, _), members in groupby(known, key):
        sets = [each for item in known if item.spec.pool.name == name for each in item.spec.shared_counters]
        yield DevicePool(list(members), sets)


def _varying(devices: Sequence[v1.Device], of: Callable[[v1.Device], Mapping[str, Any]]) -> list[str]:
    """Return the names that have several values, ``memory`` and the standard ones first."""
    values: dict[str, set[str]] = {}
    for device in devices:
        for name, value in of(device).items():
            values.setdefault(name, set()).add(repr(value))
    names = [name for name, known in values.items() if len(known) > 1]
    return sorted(names, key=lambda name: ("memory" not in name.lower(), "kubernetes.io" not in name, name))


class OrderAdvice(Struct, frozen=True):
    """The result of a search.

    Attributes:
        devices: the devices as published.
        kinds: of the workload.
        steps: the sorts that lead to the best order that was found; empty if none seemed better.
        arrangement: that order.
        comparison: with the published order, by seeds that the search did not use.
        tried: number of other orders.
    """

    devices: PublishedDevices
    kinds: tuple[RequestKind, ...]
    steps: tuple[SortStep, ...]
    arrangement: Arrangement
    comparison: Comparison
    tried: int

    @property
    def helps(self) -> bool:
        """Whether the order is certainly better than the published one."""
        return bool(self.steps) and self.comparison.sure

    @property
    def description(self) -> str:
        """The order in words: the last sort first, because those before it decide ties."""
        return "; among equal ones ".join(map(str, reversed(self.steps)))

    @property
    def code(self) -> str:
        """Python code that puts ``devices``, the list of a pool, into the order."""
        helpers = dict.fromkeys(step.helpers for step in self.steps)
        return "".join((*helpers, *(step.code for step in self.steps)))

    @property
    def renamed_pools(self) -> list[str]:
        """The pools in the order, if their names do not sort in this order; else none."""
        names = [self.devices.pools[place].name for place in self.arrangement.pools]
        return [] if names == sorted(names) else names

    def orders(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield each pool with its devices in the published order and in the other one."""
        for pool, places in zip(self.devices.pools, self.arrangement.devices, strict=True):
            names = [device.name for device in pool.devices]
            yield pool.name, names, [names[place] for place in places]

    def document(self) -> dict[str, Any]:
        """Return the advice as JSON."""
        compared = self.comparison
        document: dict[str, Any] = {
            "driver": self.devices.driver,
            "nodes": [node.name for node in self.devices.nodes],
            "devices": len(self.devices),
            "requests": [{"name": kind.name, "weight": kind.weight, "fits": kind.fits} for kind in self.kinds],
            "helps": self.helps,
            "tried": self.tried,
            "published": self._measured(compared.before),
        }
        if self.steps:
            document["best"] = {
                **self._measured(compared.after),
                "order": self.description,
                "code": self.code,
                "gain": compared.gain,
                "spread": compared.spread,
                "seeds": len(compared.gains),
                "better": compared.better,
                "worse": compared.worse,
                "pools": [{"name": name, "devices": proposed} for name, _, proposed in self.orders()],
                "renamedPools": self.renamed_pools,
            }
        return document

    def _measured(self, measure: Measure) -> dict[str, Any]:
        large = large_of(self.kinds)
        return {
            "score": measure.score,
            "served": measure.served,
            "fitting": {kind.name: number for kind, number in zip(large, measure.fitting, strict=True)},
            "stranded": measure.stranded,
            "strandedByConstraints": measure.constrained,
        }


_PER_STEP: Final = 0.005
"""Gain that another sort must bring: a simple order is easier to explain."""
_DEPTH: Final = 3
"""Maximum sorts of an order."""
_BEAM: Final = 2
"""Orders that are extended by another sort."""
_SEEDS: Final = 4
"""Seeds of the search: all orders are measured with the first, promising ones with all."""
_PROMISING: Final = 4
_CHECKS: Final = 16
"""Seeds that compare the best order with the published one."""
_COST: Final = 1_500_000
"""Devices that a round of the search looks at, so that it ends in seconds."""
_RUNS: Final = (16, 200)
"""Minimum and maximum orders of a round."""


class OrderSearch:
    """Searches a better order.

    Args:
        devices: the devices as published.
        kinds: of claims.
        load: see :class:`~dra_kit.diagnosis.workload.ClaimWorkload`.
        seed: of all traces.
    """

    def __init__(self, devices: PublishedDevices, kinds: Sequence[RequestKind], load: float, seed: int) -> None:
        self._devices = devices
        self._kinds = kinds
        self._load = load
        self._seed = seed
        self._measures: dict[Arrangement, list[Measure]] = {}
        self._steps = devices.steps()
        claims = len(self._trace("search", 0).arrivals) + MEASUREMENTS * sum(kind.fits for kind in large_of(kinds))
        least, most = _RUNS
        self._runs = min(max(_COST // (claims * len(devices)), least), most)

    def _trace(self, purpose: str, number: int) -> Trace:
        return random_trace(f"{self._seed}/{purpose}/{number}", self._kinds, self._load, len(self._devices.nodes))

    def run(self) -> OrderAdvice:
        """Return the best order that was found, which may be none."""
        published = self._devices.arranged(())
        before = self._score(published, _SEEDS)
        found: list[tuple[float, tuple[SortStep, ...]]] = []
        frontier: list[tuple[SortStep, ...]] = [()]
        for _ in range(_DEPTH):
            scored = self._round(frontier)
            found += scored
            frontier = [steps for _, steps in scored[:_BEAM]]
        found.sort(key=lambda each: _PER_STEP * len(each[1]) - each[0])
        candidates = [steps for score, steps in found if score > before][:_BEAM]
        checked = self._measure(published, "check", _CHECKS)
        best = self._check(candidates[0] if candidates else (), checked)
        for steps in candidates[1:]:
            if best.helps:
                break
            best = max(self._check(steps, checked), best, key=lambda each: (each.helps, each.comparison.gain))
        return best

    def _round(self, frontier: Sequence[tuple[SortStep, ...]]) -> list[tuple[float, tuple[SortStep, ...]]]:
        """Return promising new orders, best first: with another sort, before or after those that are known."""
        fresh: dict[Arrangement, tuple[SortStep, ...]] = {}
        for steps in frontier:
            for step in self._steps:
                for longer in ((*steps, step), (step, *steps)) if step not in steps else ():
                    arrangement = self._devices.arranged(longer)
                    if arrangement not in self._measures:
                        fresh.setdefault(arrangement, longer)
        first = [(self._score(arrangement, 1), arrangement) for arrangement in list(fresh)[: self._runs]]
        first.sort(key=lambda each: -each[0])
        if frontier == [()]:  # the next rounds try the best sorts first, in case not all can be tried
            self._steps = [fresh[arrangement][0] for _, arrangement in first]
        scored = [(self._score(each, _SEEDS), fresh[each]) for _, each in first[:_PROMISING]]
        return sorted(scored, key=lambda each: -each[0])

    def _score(self, arrangement: Arrangement, seeds: int) -> float:
        known = self._measures.setdefault(arrangement, [])
        known += self._measure(arrangement, "search", seeds, len(known))
        return mean_of(known[:seeds]).score

    def _measure(self, arrangement: Arrangement, purpose: str, seeds: int, first: int = 0) -> list[Measure]:
        simulation = self._devices.simulation(arrangement)
        return [simulation.run(self._trace(purpose, number), self._kinds) for number in range(first, seeds)]

    def _check(self, steps: tuple[SortStep, ...], before: Sequence[Measure]) -> OrderAdvice:
        arrangement = self._devices.arranged(steps)
        after = self._measure(arrangement, "check", _CHECKS) if steps else before
        gains = tuple(new.score - old.score for old, new in zip(before, after, strict=True))
        comparison = Comparison(mean_of(before), mean_of(after), gains)
        return OrderAdvice(
            self._devices, tuple(self._kinds), steps, arrangement, comparison, tried=len(self._measures) - 1
        )
