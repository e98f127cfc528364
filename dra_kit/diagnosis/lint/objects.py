"""Which objects the documents are, in the form of v1, and what is wrong with them as objects of the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from dra_kit.kubernetes.manifests.documents import ManifestDocument, looks_like_object
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import APIModel
from dra_kit.kubernetes.resource.conversion import to_v1
from dra_kit.kubernetes.resource.new_object import (
    GROUP,
    KINDS,
    POD_SPECS,
    RESOURCE_KINDS,
    ManifestKind,
    complete_new_object,
)
from dra_kit.kubernetes.resource.schema.decode import decode
from dra_kit.kubernetes.values.json import value_at
from dra_kit.lint.fixes.remedy import Rewrite
from dra_kit.lint.structure.fields import Problem, check_structure
from dra_kit.lint.structure.old_versions import classic_claim, in_v1, requests_of_v1, withdrawn
from dra_kit.text import did_you_mean, unambiguous_correction

_METADATA: Final = "meta/v1.ObjectMeta"


class Manifest(Struct):
    """An object of a file.

    Attributes:
        document: where it is written.
        kind: as it is written.
        api_version: likewise.
        known: what is known of its kind; None if the API server cannot be asked what it says to the object.
        content: the object as the API server completes it, in v1, with values of the right types.
        obj: the same as a model; None for kinds without one.
        pod_spec: the path of a pod's spec in it, and that, with values of the right types; None if it has none.
        problems: what is wrong with its structure.
    """

    document: ManifestDocument
    kind: str
    api_version: str
    known: ManifestKind | None = None
    content: dict[str, Any] = field(default_factory=dict)
    obj: APIModel | None = None
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


def manifest(document: ManifestDocument) -> Manifest:
    """Return what a document is."""
    body = document.body
    if not document.file.explicit and not looks_like_object(body):
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
    known = KINDS.get(made.kind)
    if known is not None and made.api_version in known.types:
        if known.model is not None:
            _decode(made, body, known)
        elif known.pod:
            _decode_pod(made, known)
    return made


def _unknown_kind(made: Manifest) -> Iterator[Problem]:
    group, _, version = made.api_version.rpartition("/")
    known = RESOURCE_KINDS.get(made.kind)
    if known is not None and group != GROUP:
        wish = f"write apiVersion: {next(iter(known.types))}"
        # a kind of that name may also be a custom resource of somebody's
        if group == "" or did_you_mean(group, [GROUP]):
            right = f"{GROUP}/{version}"
            certain = (not group or unambiguous_correction(group, [GROUP])) and right in known.types
            sure = (Rewrite("apiVersion", right),) if certain else ()
            text = f"{made.api_version} has no kind {made.kind}"
            yield Problem("apiVersion", "unknown-kind", text, wish, remedies=sure)
    elif group == GROUP and (gone := withdrawn(made.kind, made.document.body)) is not None:
        yield Problem("kind", "unknown-kind", *gone)
    elif group == GROUP and known is None:
        wish = (
            did_you_mean(made.kind, RESOURCE_KINDS).removeprefix("; ") or f"it has {', '.join(sorted(RESOURCE_KINDS))}"
        )
        intended = unambiguous_correction(made.kind, RESOURCE_KINDS)
        sure = (Rewrite("kind", intended),) if intended else ()
        yield Problem("kind", "unknown-kind", f"{GROUP} has no kind {made.kind}", wish, remedies=sure)
    elif known is not None and made.api_version not in known.types:
        wish = f"write apiVersion: {next(iter(known.types))}"
        if version == "v1alpha2" and (spec := classic_claim(made.kind, made.document.body)):
            wish += f" and spec: {spec}"
        text = f"Kubernetes 1.37 does not serve {made.kind} in {made.api_version}"
        yield Problem("apiVersion", "unknown-kind", text, wish, remedies=in_v1(made.kind, version, made.document.body))
    elif not group and made.kind not in POD_SPECS:
        near = did_you_mean(made.kind, RESOURCE_KINDS) and next(iter(_near(made.kind)), "")
        if near:
            wish = f"write apiVersion: {next(iter(RESOURCE_KINDS[near].types))} and kind: {near}"
            yield Problem("kind", "unknown-kind", f"{made.api_version} has no kind {made.kind}", wish)


def _near(kind: str) -> Iterator[str]:
    return (name for name in RESOURCE_KINDS if f'"{name}"' in did_you_mean(kind, RESOURCE_KINDS))


def _decode(made: Manifest, body: Mapping[str, Any], known: ManifestKind) -> None:
    newest = next(iter(known.types))
    version = made.api_version.rpartition("/")[2]
    type_name = known.types[made.api_version]
    cleaned, problems = check_structure(body, type_name)
    if made.api_version != newest:
        wish = f"write apiVersion: {newest}"
        if version == "v1beta1":
            requests = requests_of_v1(made.kind, to_v1(cleaned, made.kind, made.api_version))
            wish += (
                f" and requests: {requests}"
                if requests
                else ", with the fields of a request below exactly, and those of a device without basic"
            )
        text = f"{made.api_version} is deprecated: Kubernetes 1.39 and newer do not serve it"
        sure = in_v1(made.kind, version, body)
        made.problems.append(Problem("apiVersion", "deprecated-version", text, wish, remedies=sure))
    made.problems += problems
    made.known = known
    made.content = complete_new_object(decode(cleaned, type_name), known)
    assert known.model is not None  # noqa: S101 - kinds of resource.k8s.io have one
    made.obj = known.model.model_validate(made.content)


def _decode_pod(made: Manifest, known: ManifestKind) -> None:
    body = made.document.body
    metadata: Any = {}
    if known.part:
        metadata = body.get("metadata")
        metadata, made.problems = check_structure({} if metadata is None else metadata, _METADATA, "metadata")
    part = value_at(body, known.part)
    if part is None:
        return
    type_name = known.types[made.api_version]
    cleaned, problems = check_structure(part, type_name, ".".join(known.part))
    made.problems += problems
    spec = value_at(cleaned, known.pod[len(known.part) :])
    if spec is None and problems:
        return
    made.known = known
    made.pod_spec = ".".join(known.pod), spec or {}
    content: Any = decode(cleaned, type_name)
    for key in reversed(known.part):
        content = {key: content}
    head = {"apiVersion": made.api_version, "kind": made.kind}
    if known.part:
        head["metadata"] = decode(metadata or {}, _METADATA)
    made.content = complete_new_object({**content, **head}, known)
