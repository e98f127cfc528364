"""Subjects of an explanation: a claim, a pod, or all pending ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.errors import NotFound
from dra_kit.kubernetes.resource.objects import object_key, phase
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.text import did_you_mean

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
