"""Verdicts on devices, requests, claims and pods: their reasons and outcomes, the sentence of each outcome.

A :class:`Reason` is made where a device is judged: ``devices.py``, and ``selectors.py`` for conditions of selectors.
``claims.py`` and ``pods.py`` decide the outcomes, ``text.py`` lays them out.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from dra_kit.diagnosis.explain.cluster import ClusterView, model_of_claim, named
from dra_kit.diagnosis.explain.drivers import DriverOnNode, PodDeletion
from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, AdvertisedSlice, DeviceID
from dra_kit.kubernetes.allocator.requests import RequestAlternative
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.v1 import AllocationResult, ResourceClaim
from dra_kit.kubernetes.scheduler.claims import IMPLICIT_RESOURCE, extended_resources
from dra_kit.kubernetes.scheduler.nodes import pod_requests
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.text import counted

_NATIVE: Final = "kubernetes.io/"


class ExtendedResource(Struct, frozen=True):
    """An extended resource that a pod requests (KEP-5004).

    Attributes:
        device_class: the DeviceClass that provides it on nodes without a device plugin for it; empty if none does.
        by_claim: names of the nodes on which kube-scheduler creates a claim for it.
        by_plugin: names of the nodes on which a device plugin provides it.
        others: further DeviceClasses with the same name of the resource, which kube-scheduler does not use.
        off_in: the release of a cluster in which DeviceClasses provide no extended resources; empty if they do.
        unseen_by: the release of a kube-scheduler that takes the resource to be on every node; empty for others.
    """

    name: str
    device_class: str
    by_claim: tuple[str, ...]
    by_plugin: tuple[str, ...]
    others: tuple[str, ...] = ()
    off_in: str = ""
    unseen_by: str = ""

    @property
    def text(self) -> str:
        """A sentence about what provides it."""
        ways = []
        if self.unseen_by:
            return (
                f"{self.name} is not provided: kube-scheduler {self.unseen_by} gives the pod a node, but no device of "
                f"class {self.device_class}; use a ResourceClaim, or give the class an extendedResourceName"
            )
        if self.by_claim:
            ways.append(f"by devices of class {self.device_class} on {named(self.by_claim)}")
        if self.by_plugin:
            ways.append(f"by a device plugin on {named(self.by_plugin)}")
        if not ways and self.off_in:
            return (
                f"{self.name} is not provided: no device plugin has it, and Kubernetes {self.off_in} drops "
                "extendedResourceName of DeviceClasses, as the feature gate DRAExtendedResource is off (on by default "
                "from 1.36); request the devices with a ResourceClaim, or switch the gate on"
            )
        if not ways:
            return (
                f"{self.name} is not provided: neither a device plugin nor a DeviceClass has it. A DeviceClass has it "
                f"with extendedResourceName: {self.name}, which Kubernetes 1.34 and 1.35 drop without an error unless "
                "the feature gate DRAExtendedResource is on"
            )
        others = f"; {', '.join(self.others)} has the same extendedResourceName, " if self.others else ""
        why = "but kube-scheduler uses the newest class (of equal age, the first by name)" if self.others else ""
        return f"{self.name} is provided {', '.join(ways)}{others}{why}"

    def to_json(self) -> dict[str, Any]:
        """Return the resource as JSON, for programs."""
        return {
            "name": self.name,
            "deviceClass": self.device_class,
            "byClaim": list(self.by_claim),
            "byDevicePlugin": list(self.by_plugin),
            "otherClasses": list(self.others),
        }


class ResourceProvision(Struct, frozen=True):
    """Nodes on which one claim provides the same extended resources of a pod.

    Attributes:
        resources: names of the resources.
        nodes: names of the nodes.
        claim: the claim that kube-scheduler creates there; None if it creates none.
    """

    resources: frozenset[str]
    nodes: tuple[str, ...]
    claim: ResourceClaim | None = None


def provisions(
    pod: ObjectView,
    classes: Sequence[ObjectView],
    allocatable: Mapping[str, Mapping[str, int]],
    gates: AllocatorRules,
) -> list[ResourceProvision]:
    """Group nodes by the claim that a pod needs there for its extended resources, the largest group first."""
    extended = extended_resources(pod, classes, gates.version)
    if extended is None:
        return [ResourceProvision(frozenset(), tuple(allocatable))]
    groups: dict[frozenset[str], list[str]] = {}
    for node, amounts in allocatable.items():
        groups.setdefault(extended.provided_on(amounts), []).append(node)
    if not groups:
        groups[extended.provided_on({})] = []
    found = []
    for resources, nodes in groups.items():
        claim = None
        if resources & extended.claimed.keys():
            document = extended.claim_on(allocatable[nodes[0]] if nodes else {}).document
            metadata = document["metadata"]
            named_claim = {**document, "metadata": {**metadata, "name": f"{metadata['generateName']}*"}}
            claim = model_of_claim(named_claim, gates)
        found.append(ResourceProvision(resources, tuple(nodes), claim))
    return sorted(found, key=lambda provision: -len(provision.nodes))


def provided_resources(
    pod: ObjectView, cluster: ClusterView, allocatable: Mapping[str, Mapping[str, int]]
) -> Iterator[ExtendedResource]:
    """Yield what provides each extended resource of a pod, on all nodes or on the pod's node."""
    version = cluster.gates.version
    asked = [name for name, amount in pod_requests(pod, version).items() if amount > 0 and _is_extended(name)]
    classes = cluster.extended_classes
    extended = extended_resources(pod, classes, version)
    providers = extended.claimed if extended is not None else {}
    unseen = extended.providers.keys() - providers.keys() if extended is not None else ()
    off_in = "" if cluster.extended_resources else cluster.version
    place = pod["spec"].get("nodeName")
    mappings = ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
    taken = {mapping.get("resourceName") for mapping in mappings}
    for name in sorted(asked):
        by_plugin = tuple(node for node, amounts in allocatable.items() if amounts.get(name))
        by_claim = tuple(node for node in allocatable if node not in by_plugin) if name in providers else ()
        if place:  # already decided
            by_claim, by_plugin = ((place,), ()) if name in taken else ((), by_plugin)
        provider = providers.get(name, "")
        if name in unseen and not by_plugin:
            yield ExtendedResource(
                name, name.removeprefix(IMPLICIT_RESOURCE), (), (), unseen_by=str(cluster.gates.version)
            )
            continue
        named_so = [each["metadata"]["name"] for each in classes if each["spec"].get("extendedResourceName") == name]
        others = tuple(each for each in sorted(named_so) if each != provider) if name in providers else ()
        yield ExtendedResource(name, provider, by_claim, by_plugin, others, off_in)


def _is_extended(name: str) -> bool:
    return name.startswith(IMPLICIT_RESOURCE) or ("/" in name and _NATIVE not in name)


class ReasonKind(StrEnum):
    """What a device is checked for, in the order in which reasons are given."""

    POOL = "pool"
    NODE = "node"
    FEATURE = "feature"
    CLASS = "class"
    SELECTOR = "selector"
    TAINT = "taint"
    ALLOCATED = "allocated"
    CAPACITY = "capacity"
    COUNTERS = "counters"
    ERROR = "error"


class RemedyKind(StrEnum):
    """What a remedy changes."""

    RELEASE = "release"
    """Other claims release devices; nothing in the claim changes."""
    CLASS_CONDITION = "class-condition"
    CLAIM_CONDITION = "claim-condition"
    TOLERATION = "toleration"
    NO_AMOUNT = "no-amount"
    NEW_AMOUNT = "new-amount"
    OTHER_AMOUNT = "other-amount"
    SMALLER_AMOUNT = "smaller-amount"
    SELECTOR = "selector"
    """A selector that fails is written correctly; no trial shows what it then selects."""


class Remedy(Struct, frozen=True):
    """A change after which a device fits.

    Attributes:
        kind: what changes.
        text: the change as a clause: ``without `memory >= 80Gi```. It may differ between devices, and a suggestion for
            several devices shows that of one of them.
        subject: which condition, taint or capacity changes; empty if the kind says all.
    """

    kind: RemedyKind
    text: str
    subject: tuple[str, ...] = ()

    @property
    def change(self) -> tuple[RemedyKind, tuple[str, ...]]:
        """The change without its text; equal for all devices that one change makes fit."""
        return self.kind, self.subject


@dataclasses.dataclass(
    slots=True, unsafe_hash=True
)  # not frozen: frozen ones take twice as long to create, and there are tens of thousands
class Reason:
    """A reason why a device does not fit a request. Never changed.

    Attributes:
        check: what the device was checked for.
        text: a clause about the device: ``cheese is "cheddar"``.
        brief: the common part for all devices with this reason: ``wrong cheese``.
        found: the value of this device: ``"cheddar"``; empty if ``brief`` is enough.
        wanted: the required value with an operator: ``≠ "mozzarella"``.
        remedy: the only change after which devices with just this reason fit; None if the user of the claim
            cannot change anything.
        details: the same in machine-readable form.
    """

    check: ReasonKind = dataclasses.field(hash=False)
    text: str
    _: dataclasses.KW_ONLY
    brief: str = dataclasses.field(hash=False)
    found: str = dataclasses.field(default="", hash=False)
    wanted: str = dataclasses.field(default="", hash=False)
    remedy: Remedy | None = dataclasses.field(default=None, hash=False)
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)


class DeviceVerdict(Struct, eq=False):
    """The verdict on one device for one choice of a request. Never changed.

    Attributes:
        nodes: names of the nodes that reach it, or of its intended nodes if they are unknown.
        reasons: why it does not fit, in the scheduler's order; empty if the allocator can choose it.
    """

    slice_: AdvertisedSlice
    position: int
    nodes: Sequence[str]
    reasons: tuple[Reason, ...]

    @property
    def device(self) -> AdvertisedDevice:
        """The device."""
        return self.slice_.devices[self.position]

    @property
    def id(self) -> DeviceID:
        """Driver, pool and name."""
        return DeviceID(self.driver, self.slice_.spec.pool.name, self.name)

    @property
    def shareable(self) -> bool:
        """Whether the device can be allocated several times; a usual one cannot."""
        return self.slice_.published.usual is None and self.device.shareable

    @property
    def driver(self) -> str:
        """Name of the driver."""
        return self.slice_.spec.driver

    @property
    def name(self) -> str:
        """Name of the device in its pool."""
        return self.slice_.published.name_of(self.position)

    @property
    def fits(self) -> bool:
        """Whether the allocator can choose it, as far as the device itself is concerned."""
        return not self.reasons

    @property
    def matches(self) -> bool:
        """Whether the device matches the request, available or not."""
        for reason in self.reasons:  # noqa: SIM110 - called for every device: all() takes longer
            if reason.check in UNMATCHED:
                return False
        return True


class JudgedChoice(Struct, frozen=True):
    """A request, or an alternative of it, with the verdicts on all devices.

    Attributes:
        name: the request's name, or ``request/subrequest``.
        choice: the parsed request; None if the scheduler cannot use it.
        error: why it cannot.
        devices: all devices of the cluster, by node and by the scheduler's preference.
        fitting: the number of fitting devices by node name; nodes without any are left out.
    """

    name: str
    choice: RequestAlternative | None
    error: AllocationError | None = None
    devices: tuple[DeviceVerdict, ...] = ()
    fitting: Mapping[str, int] = field(default_factory=dict)

    @property
    def fits(self) -> tuple[DeviceVerdict, ...]:
        """The devices that fit."""
        return tuple([verdict for verdict in self.devices if not verdict.reasons])


class JudgedRequest(Struct, frozen=True):
    """A request and the choices to satisfy it, best first."""

    name: str
    choices: tuple[JudgedChoice, ...]

    @property
    def errors(self) -> list[AllocationError]:
        """The errors of its choices."""
        return [choice.error for choice in self.choices if choice.error is not None]


class NodeOutcome(Struct, frozen=True):
    """The allocator's verdict on a node: allocations of all claims, None if they do not fit, or an error."""

    node: Node
    allocations: Sequence[AllocationResult] | None = None
    error: AllocationError | None = None


class SuggestedChange(Struct, frozen=True):
    """A change after which more devices fit.

    Attributes:
        change: ``without `memory >= 80Gi```.
        request: the name of the request or subrequest; empty for all requests.
        devices: how many devices fit then in total; None if the change is not about devices.
        enough: whether the claim, or its pod, can then be placed.
        manifests: the changed parts of objects: the claim's ``devices``, or a DeviceClass; empty if none changes.
    """

    change: str
    request: str
    devices: int | None
    enough: bool
    manifests: tuple[Mapping[str, Any], ...] = ()


Outcome: TypeAlias = Literal[
    "allocated", "deleting", "stale", "fits", "evicted", "devices-fit", "unknown", "does-not-fit", "error", "stopped"
]
CLAIM_VERDICTS: Final[Mapping[Outcome, str]] = {
    "allocated": "{claim} is allocated",
    "fits": "{claim} fits {where}",
    "evicted": "{claim} finds devices {where}, and its pods are evicted",
    "devices-fit": "{claim} finds devices {where}",
    "unknown": "{claim} may find devices on nodes that are not known",
    "does-not-fit": "{claim} cannot be allocated",
    "error": "{claim}: kube-scheduler gives up",
    "stopped": "{claim} would take too much work to explain",
}
"""What the report says about a claim; ``release`` of the explanation says it for the other outcomes."""


class ClaimExplanation(Struct, frozen=True):
    """Why a claim has its devices, gets them, or does not.

    Attributes:
        outcome: ``allocated``: it has devices; ``deleting``: it is being deleted; ``stale``: it has devices, and is
            reserved only for pods that are gone; ``fits``: some node has devices for it; ``evicted``: the same, but for
            these devices its pods are evicted; ``devices-fit``: the same, as
            far as is known; ``unknown``: the result depends on nodes that could not be read; ``error``: the scheduler
            fails on every node; ``stopped``: the search took too much work.
        requests: the requests of the claim; empty if it is allocated.
        nodes: the allocator's verdict on each node; empty if the claim is allocated.
        blockers: what blocks the whole claim, or what is wrong with its devices, one sentence each.
        nearest: changes that would help, best first.
        remedies: what to write instead of a wrong selector, or what to do.
        not_looked_at: what could not be read, or would have taken too much work to check.
        drivers: the drivers of its devices, on their node.
        release: a clause about why it should release its devices soon; empty if it keeps them.
    """

    claim: ResourceClaim
    outcome: Outcome
    requests: tuple[JudgedRequest, ...] = ()
    nodes: tuple[NodeOutcome, ...] = ()
    blockers: tuple[str, ...] = ()
    nearest: tuple[SuggestedChange, ...] = ()
    remedies: tuple[str, ...] = ()
    not_looked_at: tuple[str, ...] = ()
    drivers: tuple[DriverOnNode, ...] = ()
    release: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.claim.metadata.namespace}/{self.claim.metadata.name}"

    @property
    def allocated(self) -> bool:
        """Whether the claim has devices."""
        return self.claim.status.allocation is not None

    @property
    def good(self) -> bool:
        """Whether the claim has devices or can get them."""
        return self.outcome in {"allocated", "fits"}

    @property
    def undecided(self) -> bool:
        """Whether it can get devices, or not."""
        return self.outcome in {"devices-fit", "unknown", "stopped"}

    @property
    def finds_devices(self) -> bool:
        """Whether the claim has devices, or finds some as far as is known."""
        return self.allocated or self.good or self.outcome in {"devices-fit", "evicted"}

    @property
    def fitting_nodes(self) -> tuple[NodeOutcome, ...]:
        """The nodes on which it can get devices."""
        return tuple(outcome for outcome in self.nodes if outcome.allocations is not None)


PodOutcome: TypeAlias = Literal[
    "ended", "runs", "scheduled", "bypassed", "not-prepared", "not-running", "fits", "devices-fit", "unknown",
    "waits", "binding", "evicted", "does-not-fit", "error", "stopped", "ending", "terminating",
]  # fmt: skip
POD_VERDICTS: Final[Mapping[PodOutcome, str]] = {
    "ended": "has ended",
    "runs": "runs on {node}",
    "scheduled": "is scheduled to {node}",
    "bypassed": "is on {node} without having devices there",
    "not-prepared": "has its devices on {node}, and the kubelet cannot prepare them",
    "not-running": "has its devices on {node}, and does not run",
    "fits": "can run on {where}",
    "devices-fit": "finds its devices on {where}",
    "unknown": "may find its devices on nodes that are not known",
    "waits": "waits for a claim",
    "binding": "waits for its devices to become ready on {where}",
    "evicted": "is evicted as soon as it is scheduled to {where}",
    "does-not-fit": "cannot be scheduled",
    "error": "cannot be scheduled: kube-scheduler gives up",
    "stopped": "would take too much work to explain",
    "ending": "is being deleted since {since}, and {deletion}",
    "terminating": "is being deleted since {since}, and {deletion}",
}
"""What the report says about a pod."""


class PodClaimExplanation(Struct, frozen=True):
    """One claim of a pod.

    Attributes:
        entry: its name in ``spec.resourceClaims``; empty for the claim of extended resources.
        problem: why the claim cannot be explained; empty if it can.
        explanation: the explanation of the claim, which may not have been created yet.
        origin: the source of a claim that has not been created yet: ``template one-pizza``.
    """

    entry: str
    problem: str = ""
    explanation: ClaimExplanation | None = None
    origin: str = ""


class ReportedEvent(Struct, frozen=True):
    """An Event or condition of a pod: its reason, such as ``FailedScheduling``, and message."""

    reason: str
    note: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.note}"


class PlacedPod(Struct, frozen=True):
    """A pod (``namespace/name``) that is assumed to run on a node."""

    name: str
    node: str


class PodExplanation(Struct, frozen=True):
    """Why a pod runs, or why not.

    Attributes:
        name: ``namespace/name``.
        outcome: ``waits``: for a claim; ``binding``: for binding conditions of its devices; ``evicted``: it can be
            scheduled, and is then evicted from its devices; ``bypassed``: it has a node
            and no devices; ``not-prepared``: it has a node and devices, which the kubelet cannot prepare;
            ``not-running``: its devices are prepared, and a container fails; ``devices-fit``: its devices allow it to
            run, but not everything was checked; ``unknown``: the result depends on nodes that could not be read;
            ``stopped``: the search took too much work.
        problems: other reasons why it does not run than the devices of one claim, one sentence each.
        rejections: why nodes are unsuitable regardless of its devices, by node name.
        elsewhere: the claims whose devices nodes cannot use, and where these are, by node name.
        fitting: nodes on which it could run.
        events: the latest reports of controllers, scheduler and kubelet.
        resources: extended resources that it requests.
        foreword: what the reader must know first, one sentence each.
        not_looked_at: unchecked conditions that may still prevent it from running, a few words each.
        deletion: what its deletion waits for; None if it is not being deleted.
        remedies: what to do.
        after: the pods of the same files that are assumed to be scheduled before it.
    """

    name: str
    outcome: PodOutcome
    node: str = ""
    claims: tuple[PodClaimExplanation, ...] = ()
    problems: tuple[str, ...] = ()
    rejections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fitting: tuple[str, ...] = ()
    events: tuple[ReportedEvent, ...] = ()
    resources: tuple[ExtendedResource, ...] = ()
    foreword: tuple[str, ...] = ()
    not_looked_at: tuple[str, ...] = ()
    deletion: PodDeletion | None = None
    remedies: tuple[str, ...] = ()
    after: tuple[PlacedPod, ...] = ()

    @property
    def good(self) -> bool:
        """Whether it runs or can run."""
        return self.outcome in {"ended", "runs", "scheduled", "fits", "ending"}

    @property
    def undecided(self) -> bool:
        """Whether it may run, or may not."""
        return self.outcome in {"devices-fit", "unknown", "stopped"}


RELEASED: Final = Remedy(RemedyKind.RELEASE, "once other claims release their devices")
"""The remedy for devices that are in use."""


def feature(what: str, gate: str) -> Reason:
    """Return the reason against a device that has ``what``, which needs a feature gate that is off."""
    text = f"has {what}, and the feature gate {gate} is off"
    return Reason(ReasonKind.FEATURE, text, brief=f"with {what}", details={"gate": gate})


UNMATCHED: Final = frozenset(
    {ReasonKind.POOL, ReasonKind.NODE, ReasonKind.FEATURE, ReasonKind.CLASS, ReasonKind.SELECTOR, ReasonKind.ERROR}
)
"""Kinds of reasons why a device does not match; the others make a matching device unavailable."""
_VALUES: Final = 3
_GROUPS: Final = 6


def summarize(verdicts: Sequence[DeviceVerdict]) -> str:
    """Summarize verdicts: ``8 devices on 2 nodes: 5 wrong cheese ("cheddar" ≠ "mozzarella"), 1 tainted``.

    A device counts for the first reason against it.
    """
    if not verdicts:
        return "no devices at all"
    nodes = set().union(*{id(verdict.nodes): verdict.nodes for verdict in verdicts}.values())
    where = f" on {counted(len(nodes), 'node')}" if nodes else ""
    return f"{counted(len(verdicts), 'device')}{where}: {', '.join(groups_of(verdicts))}"


def groups_of(verdicts: Iterable[DeviceVerdict]) -> list[str]:
    """Return how many devices fit, and how many fail for each reason: ``5 wrong cheese ("cheddar" ≠ "mozzarella")``."""
    groups: dict[tuple[ReasonKind, str, str], list[Reason]] = {}
    same_reasons: dict[int, list[Reason]] = {}  # shared by equivalent devices
    fitting = 0
    for verdict in verdicts:
        reasons = verdict.reasons
        if not reasons:
            fitting += 1
            continue
        group = same_reasons.get(id(reasons))
        if group is None:
            first = reasons[0]
            group = same_reasons[id(reasons)] = groups.setdefault((first.check, first.brief, first.wanted), [])
        group.append(reasons[0])
    parts = [f"{fitting} fit" if fitting > 1 else "1 fits"] if fitting else []
    by_size = sorted(groups.items(), key=lambda item: -len(item[1]))
    parts += [f"{len(reasons)} {brief}{_values(reasons, wanted)}" for (_, brief, wanted), reasons in by_size[:_GROUPS]]
    rest = sum(len(reasons) for _, reasons in by_size[_GROUPS:])
    return [*parts, f"{rest} others do not fit"] if rest else parts


def _values(reasons: Sequence[Reason], wanted: str) -> str:
    found = Counter(reason.found for reason in reasons if reason.found)
    if not found:
        return ""
    values = [value for value, _ in found.most_common(_VALUES)]
    text = ", ".join(values) + (", …" if len(found) > _VALUES else "")
    if reasons[0].check is ReasonKind.ALLOCATED:
        return f" {text}"  # the brief ends with a preposition
    return f" ({' '.join(filter(None, (text, wanted)))})"
