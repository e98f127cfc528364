"""Workloads: kinds of claims that arrive and leave at random, on the allocator, and what their devices leave free."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from dra_kit.author.config_problems import describe_problems
from dra_kit.diagnosis.snapshot import admitted
from dra_kit.errors import AllocationError, ConfigurationError, Invalid
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.manifests.documents import read_values, source_file
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.conversion import V1
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.new_object import KINDS, complete_new_object
from dra_kit.kubernetes.resource.schema.types import StrictDecoding, TypeMismatch, decode
from dra_kit.kubernetes.values.quantity import Quantity

TOPOLOGY: Final = ("resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode")
"""Standard attributes of constraints (KEP-4381), those of small groups first."""


_REQUESTS: Final = 32
"""Maximum kinds of claims in a workload."""
_REQUEST: Final = "devices"
"""The name of the only request of a claim."""


class _WorkloadModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class WorkloadRequest(_WorkloadModel):
    """One kind of claim in a workload file.

    Attributes:
        name: for the report.
        weight: how often it arrives, in comparison with the other kinds.
        device_class_name: the class of its only request; or ``devices`` is given.
        count: number of devices.
        selectors: CEL expressions.
        capacity: amounts of shared devices, by name.
        match_attribute: all devices have the same value of this attribute.
        devices: ``spec.devices`` of a claim, for everything else.
    """

    name: str = Field(min_length=1, max_length=400)
    weight: int = Field(default=1, ge=1, le=1000)
    device_class_name: str = ""
    count: int = Field(default=1, ge=1, le=32)
    selectors: tuple[str, ...] = Field(default=(), max_length=32)
    capacity: dict[str, str | int] = {}
    match_attribute: str = ""
    devices: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_one_form(self) -> WorkloadRequest:
        if bool(self.device_class_name) == (self.devices is not None):
            raise ValueError("give either deviceClassName or devices (spec.devices of a claim)")
        if self.devices is not None and (others := self.model_fields_set - {"name", "weight", "devices"}):
            raise ValueError(f"devices cannot be combined with {', '.join(map(to_camel, sorted(others)))}")
        return self

    def spec(self) -> dict[str, Any]:
        """Return ``spec.devices`` of its claims."""
        if self.devices is not None:
            return self.devices
        exactly: dict[str, Any] = {"deviceClassName": self.device_class_name, "count": self.count}
        if self.selectors:
            exactly["selectors"] = [{"cel": {"expression": text}} for text in self.selectors]
        if self.capacity:
            exactly["capacity"] = {"requests": {name: str(amount) for name, amount in self.capacity.items()}}
        spec: dict[str, Any] = {"requests": [{"name": _REQUEST, "exactly": exactly}]}
        if self.match_attribute:
            spec["constraints"] = [{"matchAttribute": self.match_attribute}]
        return spec


class ClaimWorkload(_WorkloadModel):
    """Kinds of claims that arrive and leave at random.

    Attributes:
        load: the part of the devices that is in use on average, as far as the requests find any.
        requests: the kinds.
    """

    load: float = Field(default=0.6, gt=0, le=1)
    requests: tuple[WorkloadRequest, ...] = Field(min_length=1, max_length=_REQUESTS)

    @model_validator(mode="after")
    def _has_distinct_names(self) -> ClaimWorkload:
        names = Counter(request.name for request in self.requests)
        if repeated := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"two requests have the name {repeated[0]!r}; names must be unique")
        return self


class EmptyNodes(Protocol):
    """The devices of a driver that no claim holds yet, to make workloads for them.

    Attributes:
        driver: the driver's name.
        release: of the cluster.
    """

    driver: str
    release: Release

    def class_names(self) -> list[str]:
        """Return the DeviceClasses that select devices of the driver."""
        ...

    def selected(self, name: str) -> list[v1.Device]:
        """Return the devices of the driver that a class selects."""
        ...

    def first(self, claim: v1.ResourceClaim) -> Sequence[v1.DeviceRequestAllocationResult]:
        """Return the devices that a claim gets as the only one; none if it does not fit."""
        ...

    def fits(self, claim: v1.ResourceClaim) -> int:
        """Return how many equal claims fit."""
        ...


_KINDS: Final = 12
"""Maximum kinds of claims that are taken from a cluster."""
_SPECS: Final = 50
"""Maximum specs of claims that are tried, the most common ones."""
_SIZES: Final = 5
"""Maximum sizes of a class that are requested by default."""
_WEIGHT_MAX: Final = 32


def read_workload(path: Path) -> ClaimWorkload:
    """Return the workload of a YAML file.

    Raises:
        ConfigurationError: the file cannot be read, or is not a valid workload; names the field.
    """
    found = read_values(source_file(path))
    if len(found) != 1:
        raise ConfigurationError(f"workload {path}: it has {len(found)} documents; write one, with load and requests")
    try:
        return ClaimWorkload.model_validate(found[0], by_name=False)
    except ValidationError as error:
        fields = ", ".join(to_camel(name) for name in WorkloadRequest.model_fields)
        remedy = f"a workload has load and requests, and a request has {fields}"
        raise ConfigurationError(
            f"workload {path}: {describe_problems(error, ClaimWorkload, found[0], remedy)}"
        ) from None


def workload_of_claims(claims: Iterable[Mapping[str, Any]], devices: EmptyNodes) -> ClaimWorkload | None:
    """Return a workload of the claims that a cluster has, those with the most common specs; None without any.

    Claims with admin access, which take no device from others, and claims that cannot get devices of the driver are
    ignored.
    """
    specs: Counter[str] = Counter()
    of_spec: dict[str, tuple[str, dict[str, Any]]] = {}
    for claim in claims:
        asked = (claim.get("spec") or {}).get("devices") or {}
        spec = {key: value for key, value in asked.items() if key != "config"}
        if any((each.get("exactly") or {}).get("adminAccess") for each in spec.get("requests") or ()):
            continue
        key = repr(spec)
        specs[key] += 1
        of_spec.setdefault(key, (f"{claim['metadata'].get('namespace')}/{claim['metadata']['name']}", spec))
    requests = []
    for key, times in specs.most_common(_SPECS):
        name, spec = of_spec[key]
        request = WorkloadRequest(
            name=name if times == 1 else f"{name} and {times - 1} like it", weight=min(times, 1000), devices=spec
        )
        try:
            taken = devices.first(claim_of(request, devices.release))
        except (AllocationError, ConfigurationError, Invalid, ValidationError):
            continue  # its class is gone, for example
        if any(result.driver == devices.driver for result in taken):
            requests.append(request)
        if len(requests) == _KINDS:
            break
    return ClaimWorkload(requests=tuple(requests)) if requests else None


def claim_of(request: WorkloadRequest, release: Release) -> v1.ResourceClaim:
    """Return a claim of a kind, with the API's defaults.

    Raises:
        ConfigurationError: ``devices`` does not have the structure of ``spec.devices``.
        Invalid: the API server would reject it.
    """
    kind = KINDS["ResourceClaim"]
    document = {
        "apiVersion": V1,
        "kind": "ResourceClaim",
        "metadata": {"name": "workload", "namespace": "default"},
        "spec": {"devices": request.spec()},
    }
    strictness = StrictDecoding(release.version)
    try:
        decoded = decode(document, kind.types[V1], strictness)
    except TypeMismatch as error:
        raise ConfigurationError(f"request {request.name}: {error}") from None
    if strictness.problems:
        raise ConfigurationError(f"request {request.name}: {', '.join(strictness.problems)}")
    claim = complete_new_object(decoded, kind, release.version)
    admitted(kind, claim, release, V1, f"request {request.name}")
    # with the fields that the API server would drop: advice about another request would be misleading
    return v1.ResourceClaim.model_validate(claim)


def default_workload(devices: EmptyNodes) -> ClaimWorkload:
    """Return a workload for the classes of a driver: each size of device, and pairs with a common attribute.

    Small requests arrive more often: each kind is given the same part of the devices.

    Raises:
        ConfigurationError: no class selects a device.
    """
    kinds = [request for name in devices.class_names() for request in _requests_of(devices, name)]
    usable = []
    for request in kinds[:_REQUESTS]:
        with suppress(AllocationError, Invalid):  # saved devices may have names that no expression can contain
            if number := devices.fits(claim_of(request, devices.release)):
                usable.append((request, number))
    if not usable:
        raise ConfigurationError(
            f"driver {devices.driver}: no request for its devices can be made from its DeviceClasses; name the "
            "requests with --workload FILE"
        )
    least = min(number for _, number in usable)
    return ClaimWorkload(
        requests=tuple(
            request.model_copy(update={"weight": min(max(round(number / least), 1), _WEIGHT_MAX)})
            for request, number in usable
        )
    )


def _requests_of(devices: EmptyNodes, name: str) -> Iterator[WorkloadRequest]:
    """Yield requests for a class: by size, by amount of shared devices, or a device and a pair."""
    selected = devices.selected(name)
    found = [device for device in selected if not device.allow_multiple_allocations]
    if not found and (shares := list(_shares(name, selected))):
        yield from shares
        return
    whole = ("!device.allowMultipleAllocations",) if 0 < len(found) < len(selected) else ()
    capacity = _main_capacity(found)
    if capacity:
        sizes = sorted({device.capacity[capacity].value for device in found})
        steps = max(1, (len(sizes) - 1) // (_SIZES - 1)) if len(sizes) > _SIZES else 1
        for size in sorted({*sizes[::steps][: _SIZES - 1], sizes[-1]}):
            domain, _, identifier = capacity.rpartition("/")
            expression = (
                f'device.capacity["{domain or devices.driver}"]["{identifier}"].compareTo(quantity("{size}")) >= 0'
            )
            yield WorkloadRequest(
                name=f"{name}, {capacity} >= {size}", device_class_name=name, selectors=(*whole, expression)
            )
        return
    if found:
        yield WorkloadRequest(name=name, device_class_name=name, selectors=whole)
    for attribute in TOPOLOGY:
        values = Counter(
            value for device in found if (value := plain_value(device.attributes.get(attribute))) is not None
        )
        if len(values) > 1 and max(values.values()) > 1:
            text = f"2 {name}, same {attribute.rpartition('/')[2]}"
            yield WorkloadRequest(
                name=text, device_class_name=name, count=2, selectors=whole, match_attribute=attribute
            )
            return


def _shares(name: str, devices: Sequence[v1.Device]) -> Iterator[WorkloadRequest]:
    """Yield requests for an eighth, a half and all of the largest shared device."""
    capacity = _main_capacity(devices, differing=False)
    if not capacity:
        return
    largest = max(device.capacity[capacity].value for device in devices)
    for amount in dict.fromkeys(max(largest.value // part, 1) for part in (8, 2, 1)):
        size = largest + (Quantity(amount) - largest)  # with the suffix of the largest
        yield WorkloadRequest(
            name=f"{name}, {size} of {capacity}", device_class_name=name, capacity={capacity: str(size)}
        )


def _main_capacity(devices: Sequence[v1.Device], *, differing: bool = True) -> str:
    """Return the capacity that all devices have, ``memory`` or that with the most values; empty if all are equal."""
    common = set.intersection(*(set(device.capacity) for device in devices)) if devices else set()
    values = {name: len({device.capacity[name].value for device in devices}) for name in common}
    names = sorted(
        (name for name, number in values.items() if number > 1 or not differing),
        key=lambda name: ("memory" not in name.lower(), -values[name], name),
    )
    return names[0] if names else ""


def plain_value(attribute: v1.DeviceAttribute | None) -> str | int | bool | None:
    """Return the value of an attribute by which devices can be sorted; None for versions and lists."""
    if attribute is None:
        return None
    if attribute.string is not None:
        return attribute.string
    return attribute.int_ if attribute.int_ is not None else attribute.bool_


class RequestKind(Struct, frozen=True):
    """A kind of claim in a simulation.

    Attributes:
        fits: how many the empty nodes can have.
        unconstrained: the claim without constraints; None if it has none.
    """

    name: str
    weight: int
    claim: v1.ResourceClaim
    fits: int
    unconstrained: v1.ResourceClaim | None

    @property
    def size(self) -> float:
        """The part of the devices that a claim needs."""
        return 1 / self.fits


def kinds_of(workload: ClaimWorkload, devices: EmptyNodes) -> list[RequestKind]:
    """Return the kinds of claims of a workload.

    Raises:
        ConfigurationError: a request never fits, or is invalid.
    """
    kinds = []
    for request in workload.requests:
        claim = claim_of(request, devices.release)
        if any(each.exactly is not None and each.exactly.admin_access for each in claim.spec.devices.requests):
            raise ConfigurationError(f"request {request.name} has admin access, which takes no device; leave it out")
        try:
            fits = devices.fits(claim)
        except AllocationError as error:
            raise ConfigurationError(f"request {request.name}: {error}") from None
        if not fits:
            raise ConfigurationError(
                f"request {request.name} gets no devices, although none is in use; correct it: dra-kit explain shows "
                "which devices do not match, and why"
            )
        spec = claim.spec.devices
        free = spec.model_copy(update={"constraints": ()}) if spec.constraints else None
        unconstrained = claim.model_copy(update={"spec": v1.ResourceClaimSpec(devices=free)}) if free else None
        kinds.append(RequestKind(request.name, request.weight, claim, fits, unconstrained))
    return kinds


def large_of(kinds: Sequence[RequestKind]) -> list[RequestKind]:
    """Return the largest kinds, of which the fewest fit, with distinct sizes: at most two, and not the smallest."""
    distinct: dict[int, RequestKind] = {}
    for kind in sorted(kinds, key=lambda kind: kind.fits):
        distinct.setdefault(kind.fits, kind)
    return list(distinct.values())[: max(1, min(len(distinct) - 1, _LARGE))]


_LARGE: Final = 2


class Arrival(Struct, frozen=True):
    """A claim that arrives, stays for some arrivals, and looks for devices on the nodes in this order."""

    kind: int
    lifetime: int
    nodes: tuple[int, ...]


class Trace(Struct, frozen=True):
    """Arrivals, and the numbers of those after which the free devices are measured."""

    arrivals: tuple[Arrival, ...]
    measured: frozenset[int]


MEASUREMENTS: Final = 6
_APART: Final = 5
"""Minimum arrivals between two measurements, which should not depend on each other."""
_LIFETIME_MAX: Final = 300
"""Maximum mean lifetime of claims: thousands of devices get less than the load, so that a simulation ends."""


def random_trace(seed: str, kinds: Sequence[RequestKind], load: float, nodes: int) -> Trace:
    """Return random arrivals; equal for equal arguments.

    After two mean lifetimes the number of claims is steady. Nodes are in random order, as kube-scheduler selects one of
    those with equal scores.
    """
    source = random.Random(seed)  # noqa: S311 - a simulation
    weights = [kind.weight for kind in kinds]
    mean_size = sum(kind.weight * kind.size for kind in kinds) / sum(weights)
    mean = min(max(load / mean_size, 1.0), float(_LIFETIME_MAX))
    step = max(_APART, round(mean / 2))
    start = round(2 * mean)
    measured = frozenset(start + number * step for number in range(MEASUREMENTS))
    arrivals = []
    for _ in range(max(measured) + 1):
        [kind] = source.choices(range(len(kinds)), weights)
        order = list(range(nodes))
        source.shuffle(order)
        arrivals.append(Arrival(kind, max(1, round(source.expovariate(1 / mean))), tuple(order)))
    return Trace(tuple(arrivals), measured)


class Measure(Struct, frozen=True):
    """The outcome of one trace, or the mean of several.

    Attributes:
        score: from 0 to 1, the mean of ``served`` and of the part of the large requests that still fit.
        served: the part of the claims that got devices, by size.
        fitting: how many requests of each of the large kinds still fit at a random moment.
        stranded: how many more of the largest would fit into what is not in use, if claims could be moved and took
            only what they need; at least 0.
        constrained: how many of these only constraints prevent.
    """

    score: float
    served: float
    fitting: tuple[float, ...]
    stranded: float
    constrained: float


def mean_of(measures: Sequence[Measure]) -> Measure:
    """Return the mean of each value."""
    return Measure(
        score=statistics.fmean(each.score for each in measures),
        served=statistics.fmean(each.served for each in measures),
        fitting=tuple(map(statistics.fmean, zip(*(each.fitting for each in measures), strict=True))),
        stranded=statistics.fmean(each.stranded for each in measures),
        constrained=statistics.fmean(each.constrained for each in measures),
    )


class Simulation:
    """Empty nodes, on which claims get devices; each method leaves them empty, except ``allocate``."""

    def __init__(self, state: AllocatorState, allocator: Allocator, nodes: Sequence[Node]) -> None:
        self._state = state
        self._allocator = allocator
        self._nodes = nodes

    def allocate(self, claim: v1.ResourceClaim, nodes: Iterable[Node]) -> v1.AllocationResult | None:
        """Allocate the devices of a claim on the first node where it fits, and return them.

        Raises:
            AllocationError: the attempt fails.
        """
        attempt = self._allocator.attempt([claim])
        for node in nodes:
            try:
                found = attempt.on(node)
            except AllocationError as error:
                if error.node_only or error.kind == "search-limit":
                    continue
                raise
            if found is not None:
                self._state.allocate(found[0])
                return found[0]
        return None

    def first(self, claim: v1.ResourceClaim) -> Sequence[v1.DeviceRequestAllocationResult]:
        """Return the devices that a claim would get; none if it does not fit.

        Raises:
            AllocationError: as for :meth:`allocate`.
        """
        allocation = self.allocate(claim, self._nodes)
        if allocation is None:
            return ()
        self._state.deallocate(allocation)
        return allocation.devices.results

    def count(self, claim: v1.ResourceClaim) -> int:
        """Return how many more equal claims fit; none of them stays. At most 1,000 are counted."""
        found: list[v1.AllocationResult] = []
        while len(found) < _COUNTED and (allocation := self.allocate(claim, self._nodes)) is not None:
            found.append(allocation)
        for allocation in found:
            self._state.deallocate(allocation)
        return len(found)

    def run(self, trace: Trace, kinds: Sequence[RequestKind]) -> Measure:
        """Run a trace."""
        large = large_of(kinds)
        leaving: dict[int, list[tuple[v1.AllocationResult, float]]] = {}
        in_use = offered = served = 0.0
        fitting: list[list[int]] = []
        stranded, constrained = [], []
        for number, arrival in enumerate(trace.arrivals):
            for allocation, size in leaving.pop(number, ()):
                self._state.deallocate(allocation)
                in_use -= size
            kind = kinds[arrival.kind]
            offered += kind.size
            got = self.allocate(kind.claim, (self._nodes[place] for place in arrival.nodes))
            if got is not None:
                leaving.setdefault(number + arrival.lifetime, []).append((got, kind.size))
                in_use += kind.size
                served += kind.size
            if number in trace.measured:
                fitting.append([self.count(each.claim) for each in large])
                fits = fitting[-1][0]
                free = fits if large[0].unconstrained is None else self.count(large[0].unconstrained)
                stranded.append(max(0.0, large[0].fits * (1 - in_use) - fits))
                constrained.append(min(float(max(free - fits, 0)), stranded[-1]))
        for allocations in leaving.values():
            for allocation, _ in allocations:
                self._state.deallocate(allocation)
        served /= offered
        means = tuple(map(statistics.fmean, zip(*fitting, strict=True)))
        part = statistics.fmean(min(mean * each.size, 1.0) for mean, each in zip(means, large, strict=True))
        return Measure((served + part) / 2, served, means, statistics.fmean(stranded), statistics.fmean(constrained))


_COUNTED: Final = 1000


class Comparison(Struct, frozen=True):
    """Two orders, measured with the same traces.

    Attributes:
        before: the means of the published order.
        after: the means of the other one.
        gains: the differences of the scores, by seed.
    """

    before: Measure
    after: Measure
    gains: tuple[float, ...]

    @property
    def gain(self) -> float:
        """The mean of the gains."""
        return statistics.fmean(self.gains)

    @property
    def spread(self) -> float:
        """The standard deviation of the gains."""
        return statistics.stdev(self.gains) if len(self.gains) > 1 else 0.0

    @property
    def better(self) -> int:
        """In how many seeds the other order is better."""
        return sum(gain > _EQUAL for gain in self.gains)

    @property
    def worse(self) -> int:
        """In how many seeds the other order is worse."""
        return sum(gain < -_EQUAL for gain in self.gains)

    @property
    def sure(self) -> bool:
        """Whether the gain matters, and is more than chance: over two standard errors, and better in most seeds."""
        error = self.spread / len(self.gains) ** 0.5
        return self.gain >= _GAIN and self.gain > 2 * error and self.better > 2 * self.worse


_EQUAL: Final = 1e-9
_GAIN: Final = 0.01
"""Minimum gain of the score that is worth a change."""
