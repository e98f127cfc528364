"""Which objects the documents are, in the form of v1, and what is wrong with them as objects of the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dra_kit.lint.fixes.remedy import Rewrite
from dra_kit.lint.structure.fields import Problem, check_structure
from dra_kit.lint.structure.old_versions import classic_claim, in_v1, requests_of_v1, withdrawn
from dra_kit.manifests.documents import Document, is_meant
from dra_kit.resource import v1, v1alpha3
from dra_kit.resource.conversion import to_v1
from dra_kit.resource.defaults import fill_in_defaults
from dra_kit.resource.schema.decode import zero
from dra_kit.resource.v1 import APIModel
from dra_kit.values.nearest import did_you_mean, one_slip
from dra_kit.values.paths import value_at

GROUP: Final = "resource.k8s.io"
_SINCE_134: Final = ("v1", "v1beta2", "v1beta1")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource.k8s.io.

    Attributes:
        model: of its newest version.
        versions: that Kubernetes 1.37 serves, the newest first.
        namespaced: whether its objects live in namespaces.
    """

    model: type[APIModel]
    versions: tuple[str, ...] = _SINCE_134
    namespaced: bool = False


KINDS: Final = {
    "DeviceClass": Kind(v1.DeviceClass),
    "DeviceTaintRule": Kind(v1.DeviceTaintRule, ("v1", "v1beta2", "v1alpha3")),
    "ResourceClaim": Kind(v1.ResourceClaim, namespaced=True),
    "ResourceClaimTemplate": Kind(v1.ResourceClaimTemplate, namespaced=True),
    "ResourcePoolStatusRequest": Kind(v1alpha3.ResourcePoolStatusRequest, ("v1alpha3",)),
    "ResourceSlice": Kind(v1.ResourceSlice),
}
"""The kinds whose fields are checked, of Kubernetes 1.37."""


@dataclass(frozen=True, slots=True)
class PodKind:
    """A kind with a pod's spec.

    Attributes:
        version: its apiVersion.
        type: of the part whose fields are checked, in the schema table.
        part: where that is.
        spec: where the pod's spec is in it.
    """

    version: str
    type: str
    part: tuple[str, ...] = ()
    spec: tuple[str, ...] = ("spec",)


_METADATA: Final = "meta/v1.ObjectMeta"
_OWNER: Final = "meta/v1.OwnerReference"
_TEMPLATE: Final = "core/v1.PodTemplateSpec"
_POD_KINDS: Final = {
    "Pod": PodKind("v1", "core/v1.Pod"),
    "PodTemplate": PodKind("v1", _TEMPLATE, ("template",)),
    "ReplicationController": PodKind("v1", _TEMPLATE, ("spec", "template")),
    **{
        kind: PodKind("apps/v1", f"apps/v1.{kind}", spec=("spec", "template", "spec"))
        for kind in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
    },
    "Job": PodKind("batch/v1", _TEMPLATE, ("spec", "template")),
    "CronJob": PodKind("batch/v1", _TEMPLATE, ("spec", "jobTemplate", "spec", "template")),
}
_V1: Final = f"{GROUP}/v1"
_TIME: Final = "2000-01-01T00:00:00Z"  # a default that no rule looks at


@dataclass(slots=True)
class Manifest:
    """An object of a file.

    Attributes:
        document: where it is written.
        kind: as it is written.
        api_version: likewise.
        content: what it says in v1, with the defaults of the API server, as JSON.
        obj: the same as a model; None for kinds without one.
        metadata: ``metadata``, with values of the right types.
        pod_spec: the path of a pod's spec in it, and that, with values of the right types; None if it has none.
        problems: what is wrong with its structure.
    """

    document: Document
    kind: str
    api_version: str
    content: dict[str, Any] = field(default_factory=dict)
    obj: APIModel | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    pod_spec: tuple[str, Mapping[str, Any]] | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``metadata.name``, empty if there is none."""
        return _text(self.document.body, "metadata", "name")

    @property
    def namespace(self) -> str:
        """``metadata.namespace``, empty if it is the one that kubectl is set to."""
        return _text(self.document.body, "metadata", "namespace")

    @property
    def claim(self) -> tuple[str, v1.ResourceClaimSpec] | None:
        """The spec of a claim or template with its path."""
        match self.obj:
            case v1.ResourceClaim(spec=spec):
                return "spec", spec
            case v1.ResourceClaimTemplate(spec=template):
                return "spec.spec", template.spec
            case _:
                return None


def _text(value: Any, *keys: str) -> str:
    found = value_at(value, keys)
    return found if isinstance(found, str) else ""


def manifest(document: Document) -> Manifest:
    """What a document is."""
    body = document.body
    if not document.file.chosen and not is_meant(body):
        return Manifest(document, "", "")
    if not isinstance(body, Mapping) or not ({"apiVersion", "kind"} & body.keys()):
        problem = Problem("", "not-an-object", "is no Kubernetes object: it has neither apiVersion nor kind")
        return Manifest(document, "", "", problems=[problem])
    kind, api_version = body.get("kind"), body.get("apiVersion")
    made = Manifest(document, str(kind), str(api_version))
    for name, value in (("apiVersion", api_version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            made.problems.append(Problem(name, "unknown-kind", f"the object has no {name}, which must be a text"))
    if made.problems:
        return made
    made.problems += _unknown_kind(made)
    if made.problems:
        return made
    if made.kind in KINDS and made.api_version.startswith(f"{GROUP}/"):
        _decode(made, body)
    elif made.kind in _POD_KINDS and made.api_version == _POD_KINDS[made.kind].version:
        _decode_pod(made, _POD_KINDS[made.kind])
    return made


def _unknown_kind(made: Manifest) -> Iterator[Problem]:
    group, _, version = made.api_version.rpartition("/")
    known = KINDS.get(made.kind)
    if known is not None and group != GROUP:
        wish = f"write apiVersion: {GROUP}/{known.versions[0]}"
        # a kind of that name may also be a custom resource of somebody's
        if group == "" or did_you_mean(group, [GROUP]):
            meant = not group or one_slip(group, [GROUP])
            sure = (Rewrite("apiVersion", f"{GROUP}/{version}"),) if meant and version in known.versions else ()
            text = f"{made.api_version} has no kind {made.kind}"
            yield Problem("apiVersion", "unknown-kind", text, wish, remedies=sure)
    elif group == GROUP and (gone := withdrawn(made.kind, made.document.body)) is not None:
        yield Problem("kind", "unknown-kind", *gone)
    elif group == GROUP and known is None:
        wish = did_you_mean(made.kind, KINDS).removeprefix("; ") or f"it has {', '.join(sorted(KINDS))}"
        meant = one_slip(made.kind, KINDS)
        sure = (Rewrite("kind", meant),) if meant else ()
        yield Problem("kind", "unknown-kind", f"{GROUP} has no kind {made.kind}", wish, remedies=sure)
    elif known is not None and version not in known.versions:
        wish = f"write apiVersion: {GROUP}/{known.versions[0]}"
        if version == "v1alpha2" and (spec := classic_claim(made.kind, made.document.body)):
            wish += f" and spec: {spec}"
        text = f"Kubernetes 1.37 does not serve {made.kind} in {made.api_version}"
        yield Problem("apiVersion", "unknown-kind", text, wish, remedies=in_v1(made.kind, version, made.document.body))
    elif not group and made.kind not in _POD_KINDS:
        near = did_you_mean(made.kind, KINDS) and next(iter(_near(made.kind)), "")
        if near:
            wish = f"write apiVersion: {GROUP}/{KINDS[near].versions[0]} and kind: {near}"
            yield Problem("kind", "unknown-kind", f"{made.api_version} has no kind {made.kind}", wish)


def _near(kind: str) -> Iterator[str]:
    return (name for name in KINDS if f'"{name}"' in did_you_mean(kind, KINDS))


def _decode(made: Manifest, body: Mapping[str, Any]) -> None:
    known = KINDS[made.kind]
    version = made.api_version.rpartition("/")[2]
    cleaned, problems = check_structure(body, f"resource/{version}.{made.kind}")
    content = to_v1(cleaned, made.kind, made.api_version)
    if version != known.versions[0]:
        wish = f"write apiVersion: {GROUP}/{known.versions[0]}"
        if version == "v1beta1":
            requests = requests_of_v1(made.kind, content)
            wish += (
                f" and requests: {requests}"
                if requests
                else ", with the fields of a request below exactly, and those of a device without basic"
            )
        text = f"{made.api_version} is deprecated: Kubernetes 1.39 and newer do not serve it"
        sure = in_v1(made.kind, version, body)
        made.problems.append(Problem("apiVersion", "deprecated-version", text, wish, remedies=sure))
    made.problems += problems
    made.metadata = cleaned.setdefault("metadata", {})
    if owners := made.metadata.get("ownerReferences"):
        made.metadata["ownerReferences"] = [{**zero(_OWNER), **owner} for owner in owners]
    content["metadata"] = made.metadata
    fill_in_defaults(content, made.kind, _V1, _TIME)
    made.content = content
    made.obj = known.model.model_validate(content)


def _decode_pod(made: Manifest, known: PodKind) -> None:
    body = made.document.body
    if known.part:
        metadata = body.get("metadata")
        made.metadata, made.problems = check_structure({} if metadata is None else metadata, _METADATA, "metadata")
    part = value_at(body, known.part)
    if part is None:
        return
    cleaned, problems = check_structure(part, known.type, ".".join(known.part))
    made.problems += problems
    if not known.part:
        made.metadata = value_at(cleaned, ("metadata",))
    made.metadata = made.metadata or {}
    spec = value_at(cleaned, known.spec)
    if spec is not None or not problems:
        made.pod_spec = ".".join((*known.part, *known.spec)), spec or {}
