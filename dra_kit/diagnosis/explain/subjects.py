"""Subjects of an explanation: a claim, a pod, or all pending ones; pods and workloads of manifests.

Pods of manifests are explained as written, and those that Deployments and other workloads create.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterDocuments, ClusterView
from dra_kit.diagnosis.explain.pods import PodSequence
from dra_kit.diagnosis.explain.verdicts import PlacedPod, PodExplanation
from dra_kit.errors import NotFound
from dra_kit.kubernetes.resource.matching import LabelSelector
from dra_kit.kubernetes.resource.objects import object_key, phase
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.kubernetes.scheduler.nodes import is_affine, is_tainted
from dra_kit.kubernetes.values.json import Object, ObjectView, value_at
from dra_kit.text import counted, did_you_mean

SubjectKind: TypeAlias = Literal["claim", "pod"]
_KINDS: Final[Mapping[SubjectKind, str]] = {"claim": "ResourceClaim", "pod": "Pod"}
_NAMES: Final = 8


class ExplainSubject(Struct, frozen=True):
    """One claim or pod."""

    kind: SubjectKind
    namespace: str
    name: str


def pending_subjects(cluster: ClusterView, kind: SubjectKind, namespace: str | None) -> list[ExplainSubject]:
    """Return the pods that do not run yet, or the claims without devices; of all namespaces for None.

    Raises:
        NotFound: they could not be read.
    """
    if (gap := cluster.gap(_KINDS[kind])) is not None and (namespace is None or not cluster.documents(_KINDS[kind])):
        raise NotFound(f"{gap.plural} could not be read: {gap.text}")
    if kind == "pod":
        pending = [object_key(pod) for pod in cluster.documents("Pod") if phase(pod) == "Pending"]
    else:
        pending = [key for key, claim in cluster.claims.items() if claim.status.allocation is None]
    return [ExplainSubject(kind, at, name) for at, name in pending if namespace in {None, at}]


def claims_of_manifests(
    given: Mapping[str, Sequence[ObjectView]],
) -> tuple[list[ExplainSubject], Mapping[str, Sequence[ObjectView]]]:
    """Return the claims of manifests, and those of the templates.

    Returns:
        The subjects, and the objects with those claims.
    """
    claims = [*given.get("ResourceClaim", ()), *map(_claim_of, given.get("ResourceClaimTemplate", ()))]
    return [ExplainSubject("claim", *object_key(claim)) for claim in claims], {**given, "ResourceClaim": claims}


def configured_drivers(given: Mapping[str, Sequence[ObjectView]]) -> list[str]:
    """Return the drivers for which manifests of claims, templates and classes have opaque configuration."""
    specs = [
        *(item["spec"].get("devices", {}) for item in given.get("ResourceClaim", ())),
        *(item["spec"].get("spec", {}).get("devices", {}) for item in given.get("ResourceClaimTemplate", ())),
        *(item["spec"] for item in given.get("DeviceClass", ())),
    ]
    entries = [entry for spec in specs for entry in spec.get("config") or ()]
    return sorted({str(entry["opaque"]["driver"]) for entry in entries if entry.get("opaque")})


def claim_of(cluster: ClusterView, subject: ExplainSubject) -> ResourceClaim:
    """Return the claim of a subject.

    Raises:
        NotFound: there is none, or it could not be read.
    """
    claim = cluster.claims.get((subject.namespace, subject.name))
    if claim is None:
        raise _missing(cluster, subject)
    return claim


def pod_of(cluster: ClusterView, subject: ExplainSubject) -> ObjectView:
    """Return the pod of a subject.

    Raises:
        NotFound: there is none, or it could not be read.
    """
    pod = cluster.find("Pod", subject.namespace, subject.name)
    if pod is None:
        raise _missing(cluster, subject)
    return pod


def _claim_of(template: ObjectView) -> ObjectView:
    """Return the claim that a template would create, with the template's name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": template["metadata"]["name"], "namespace": template["metadata"]["namespace"]},
        "spec": template["spec"]["spec"],
    }


def _missing(cluster: ClusterView, subject: ExplainSubject) -> NotFound:
    kind, namespace, name = _KINDS[subject.kind], subject.namespace, subject.name
    gap = cluster.gap(kind)
    if gap is not None:
        return NotFound(f"{kind} {namespace}/{name} could not be read: {gap.text}")
    found = [item["metadata"] for item in cluster.documents(kind)]
    names = [each.get("name", "") for each in found if each.get("namespace") == namespace]
    elsewhere = [each["namespace"] for each in found if each["name"] == name]
    hint = did_you_mean(name, names)
    if not hint and elsewhere:
        hint = f"; there is one in namespace {elsewhere[0]}: add -n {elsewhere[0]}"
    elif not hint:
        hint = f"; the namespace has {', '.join(sorted(names)[:_NAMES]) or 'none'}; -n selects another"
    return NotFound(f"{kind} {namespace}/{name} does not exist{hint}", status=404)


_DAEMON_TOLERATIONS: Final = tuple(
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect}
    for effect, names in (
        ("NoExecute", ("not-ready", "unreachable")),
        ("NoSchedule", ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
    )
    for name in names
)
"""Tolerations that the DaemonSet controller adds (Kubernetes 1.37, ``pkg/controller/daemon/util``)."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class Workload(Struct, frozen=True):
    """A pod of a manifest, or the pods that another object creates.

    Attributes:
        kind: kind of the object; ``Pod`` for a pod.
        pod: the pod, or one that the object creates, as the API server would store it; its name ends in ``-0`` then.
        path: path of the pod template in an object whose controller is not known; empty for others.
        replicas: how many pods it creates; 1 if unknown.
        per_node: it creates one pod for each suitable node.
        is_partial: only containers and claims of its pods are known.
        selector: selects its pods; None if it does not say.
    """

    kind: str
    namespace: str
    name: str
    pod: ObjectView
    path: str = ""
    replicas: int = 1
    per_node: bool = False
    is_partial: bool = False
    selector: LabelSelector | None = None

    @property
    def title(self) -> str:
        """Kind, namespace and name."""
        return f"{self.kind} {self.namespace}/{self.name}{f' ({self.path})' if self.path else ''}"

    def pods(self, cluster: ClusterView) -> tuple[int, Iterator[ObjectView]]:
        """Return how many pods it creates, and these one by one, with made-up names."""
        if self.kind == "Pod":
            return 1, iter([self.pod])
        if self.per_node and cluster.knows_nodes:
            specs = list(_daemon_specs(self.pod, cluster))
            return len(specs), self._numbered(specs)
        return self.replicas, self._numbered(repeat(self.pod["spec"], self.replicas))

    def _numbered(self, specs: Iterable[Mapping[str, Any]]) -> Iterator[ObjectView]:
        prefix = self.pod["metadata"]["name"].removesuffix("0")
        for number, spec in enumerate(specs):
            yield {**self.pod, "metadata": {**self.pod["metadata"], "name": f"{prefix}{number}"}, "spec": spec}


def _daemon_specs(pod: ObjectView, cluster: ClusterView) -> Iterator[dict[str, Any]]:
    """Yield the spec of the pod that the DaemonSet controller creates for each suitable node."""
    tolerations = [*(pod["spec"].get("tolerations") or ()), *_DAEMON_TOLERATIONS]
    spec = {**pod["spec"], "tolerations": tolerations}
    whole = {**pod, "spec": spec}
    for node in cluster.documents("Node"):
        if is_affine(whole, node) and not is_tainted(whole, node):
            field = {"key": "metadata.name", "operator": "In", "values": [node["metadata"]["name"]]}
            term = {"nodeSelectorTerms": [{"matchFields": [field]}]}
            affinity = {**(spec.get("affinity") or {}), "nodeAffinity": {_REQUIRED: term}}
            yield {**spec, "affinity": affinity}


class DroppedFields(NamedTuple):
    """Fields of a manifest that the API server drops, since a gate is off: their paths, and the object."""

    where: str
    title: str
    paths: Sequence[str]

    def __str__(self) -> str:
        return f"{', '.join(self.paths)} of {self.title} ({self.where})"


class Manifests(Struct, frozen=True):
    """The objects of manifests that explanations read, by kind, and their pods and workloads in order.

    Attributes:
        dropped: what the API server does not store of the objects.
    """

    objects: Mapping[str, Sequence[ObjectView]]
    workloads: Sequence[Workload]
    dropped: Sequence[DroppedFields] = ()


def qualified_names(obj: Object, slices: Iterable[ObjectView]) -> str:
    """Return the full names of published attributes whose names constraints of a claim give without a domain.

    The text is the end of a message; it is empty if there are none.
    """
    spec = obj.get("spec") or {}
    devices = value_at(spec, ("spec", "devices")) or spec.get("devices")
    devices = devices if isinstance(devices, dict) else {}  # a list in slices
    names = {str(each.get(rule) or "") for each in devices.get("constraints") or () for rule in _CONSTRAINTS}
    counts: dict[str, Counter[str]] = {name: Counter() for name in sorted(names) if name and "/" not in name}
    for slice_ in slices if counts else ():
        driver = slice_["spec"]["driver"]
        for device in slice_["spec"].get("devices") or ():
            for name in device.get("attributes") or ():
                full = name if "/" in name else f"{driver}/{name}"
                if (found := counts.get(full.partition("/")[2])) is not None:
                    found[full] += 1
    hints = [
        f"; {name} is published as "
        + " and ".join(f"{full} ({counted(n, 'device')})" for full, n in found.most_common())
        for name, found in counts.items()
        if found
    ]
    return "".join(hints)


_CONSTRAINTS: Final = ("matchAttribute", "distinctAttribute")


class WorkloadExplanation(Struct, frozen=True):
    """Why the pods of a workload can run, or which one cannot.

    Attributes:
        count: the number of pods.
        examined: how many of them were examined: all up to the first that does not fit, unless there are too many.
        explained: the first pod, and the first that does not fit.
        placed: the pods that fit, with the nodes on which they are assumed to run.
    """

    workload: Workload
    count: int
    examined: int
    explained: tuple[PodExplanation, ...]
    placed: tuple[PlacedPod, ...]

    @property
    def good(self) -> bool:
        """Whether all pods can run, and there is one."""
        return bool(self.count) and self.examined == self.count and all(each.good for each in self.explained)

    @property
    def undecided(self) -> bool:
        """Whether all pods may run, or may not."""
        return bool(self.count) and not self.good and all(each.good or each.undecided for each in self.explained)

    @property
    def text(self) -> str:
        """A sentence about all pods."""
        title = self.workload.title
        if not self.count:
            return f"{title} creates no pod: its node selector, affinity and tolerations suit no node"
        nodes = Counter(pod.node for pod in self.placed)
        where = ", ".join(f"{number} on {node}" for node, number in nodes.most_common(_SHOWN))
        where += f" and {counted(len(nodes) - _SHOWN, 'more node')}" if len(nodes) > _SHOWN else ""
        number = f"{len(self.placed)} of {counted(self.count, 'pod')}"
        is_cut = self.undecided and self.examined < self.count
        rest = f"; only the first {self.examined} were examined" if is_cut else ""
        return f"{number} of {title} can run{f': {where}' if where else ''}{rest}"

    @property
    def note(self) -> str:
        """A sentence about claims that its pods share; empty without any."""
        entries = self.workload.pod["spec"].get("resourceClaims") or ()
        shared = [each["resourceClaimName"] for each in entries if each.get("resourceClaimName")]
        if self.count < 2 or not shared:
            return ""
        return (
            f"all pods share ResourceClaim {' and '.join(shared)} and its devices; with resourceClaimTemplateName each "
            "pod gets devices of its own"
        )


_SHOWN: Final = 3
_EXAMINED: Final = 1000
"""How many pods of a workload are examined: about a minute of work on 5,000 nodes."""


def explain_workload(sequence: PodSequence, workload: Workload, explainer: ClaimExplainer) -> WorkloadExplanation:
    """Explain the first pod of a workload, and the first one for which nothing is left; errors as for a pod.

    Of very many pods, only the first ones are examined.
    """
    explained: list[PodExplanation] = []
    placed: list[PlacedPod] = []
    count, pods = workload.pods(explainer.cluster)
    examined = 0
    for number, pod in enumerate(islice(pods, _EXAMINED)):
        examined = number + 1
        explainer.renew_budget()
        if number and (found := sequence.place(pod)) is not None:
            placed.append(found)
            continue
        explanation, found = sequence.explain(pod)
        if workload.is_partial and explanation.outcome == "fits":
            missed = (f"node selectors, cpu and memory of the pods of a {workload.kind}",)
            explanation = replace(explanation, outcome="devices-fit", not_looked_at=missed)
        explained.append(explanation)
        if found is not None:
            placed.append(found)
        elif not explanation.good:
            break
    return WorkloadExplanation(workload, count, examined, tuple(explained), tuple(placed))


def without_former_pods(objects: ClusterDocuments, workloads: Sequence[Workload]) -> ClusterDocuments:
    """Return the objects without the present pods of workloads, which new ones replace, and without their claims."""
    former = [pod for pod in objects.documents.get("Pod", ()) if any(_replaces(each, pod) for each in workloads)]
    uids = {uid for pod in former if (uid := pod["metadata"].get("uid"))}
    if not former:
        return objects
    documents = dict(objects.documents)
    keys = {object_key(pod) for pod in former}
    documents["Pod"] = [pod for pod in documents["Pod"] if object_key(pod) not in keys]
    documents["ResourceClaim"] = [
        _released(claim, uids)
        for claim in documents.get("ResourceClaim", ())
        if all(owner.get("uid") not in uids for owner in claim["metadata"].get("ownerReferences") or ())
    ]
    return replace(objects, documents=documents)


def _replaces(workload: Workload, pod: ObjectView) -> bool:
    if pod["metadata"].get("namespace") != workload.namespace:
        return False
    if workload.kind == "Pod":
        return bool(pod["metadata"]["name"] == workload.name)
    return workload.selector is not None and workload.selector.matches(pod)


def _released(claim: ObjectView, uids: set[str]) -> ObjectView:
    """Return a claim without some of its consumers."""
    status = claim.get("status") or {}
    reserved = [each for each in status.get("reservedFor") or () if each.get("uid") not in uids]
    if len(reserved) == len(status.get("reservedFor") or ()):
        return claim
    return {**claim, "status": {**status, "reservedFor": reserved}}
