"""An object of a manifest: its kind and version, decoded, validated, as resource.k8s.io/v1."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, field

from dra_kit.diagnosis.lint.structure import (
    Enclose,
    FieldProblem,
    Remedy,
    Rename,
    Rewrite,
    Unwrap,
    check_structure,
    correction,
    in_another_case,
    is_misspelt,
)
from dra_kit.kubernetes.manifests.documents import ManifestDocument, looks_like_object
from dra_kit.kubernetes.manifests.pod_templates import PodTemplate, pod_templates
from dra_kit.kubernetes.release import OLDEST, SUPPORTED, KubernetesVersion, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import APIModel
from dra_kit.kubernetes.resource.conversion import (
    GATED_FIELDS,
    OUTSIDE_EXACTLY,
    V1,
    V1BETA1,
    history_of_field,
    ignored_fields,
    to_v1,
)
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError
from dra_kit.kubernetes.resource.new_object import (
    GROUP,
    KINDS,
    POD_SPECS,
    RESOURCE_KINDS,
    ManifestKind,
    NewObjectResult,
    check_new_object,
    complete_new_object,
)
from dra_kit.kubernetes.resource.schema.types import decode
from dra_kit.kubernetes.resource.validation.pods import validate_pod_spec
from dra_kit.kubernetes.scheduler.claims import IMPLICIT_RESOURCE
from dra_kit.kubernetes.values.json import value_at
from dra_kit.text import probable_names, suggest_names, unambiguous_correction

if TYPE_CHECKING:
    from dra_kit.apiserver.api import RuntimeConfig
    from dra_kit.apiserver.kinds.kind import Kind

_METADATA: Final = "meta/v1.ObjectMeta"


class LintedObject(Struct):
    """An object of a file.

    Attributes:
        kind: as written.
        api_version: as written.
        version: the release by which it is decoded.
        known: its kind; None if the object cannot be validated.
        content: the object as the API server completes it, in v1, with values of the right types.
        obj: the same as a model; None for kinds without one.
        pods: the pods that it contains or describes, with values of the right types.
        problems: the problems of its structure.
    """

    document: ManifestDocument
    kind: str
    api_version: str
    version: KubernetesVersion
    known: ManifestKind | None = None
    content: dict[str, Any] = field(default_factory=dict)
    obj: APIModel | None = None
    pods: tuple[PodTemplate, ...] = ()
    problems: list[FieldProblem] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``metadata.name``; empty if it is not set."""
        return _text(self.document.body, "metadata", "name")

    @property
    def namespace(self) -> str:
        """``metadata.namespace``; empty for kubectl's current namespace."""
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


def lint_object(document: ManifestDocument, version: KubernetesVersion) -> LintedObject:
    """Decode a document as a release does, and check its structure."""
    body: Any = document.body
    renamed = _in_another_case(body, ("apiVersion", "kind")) if isinstance(body, Mapping) else {}
    if renamed:
        body = {**body, **{name: body[key] for name, key in renamed.items()}}
    if not document.file.explicit and not looks_like_object(body):
        return LintedObject(document, "", "", version)
    if not isinstance(body, Mapping) or not ({"apiVersion", "kind"} & body.keys()):
        problem = FieldProblem("", "not-an-object", "is not a Kubernetes object: it has neither apiVersion nor kind")
        return LintedObject(document, "", "", version, problems=[problem])
    kind, api_version = body.get("kind"), body.get("apiVersion")
    made = LintedObject(document, str(kind), str(api_version), version)
    for name, value in (("apiVersion", api_version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            where = renamed.get(name, name)
            made.problems.append(
                FieldProblem(where, "unknown-kind", f"the object lacks {name}, which must be a string")
            )
    if made.problems:
        return made
    made.problems += _unknown_kind(made)
    if not made.problems:
        body = {key: value for key, value in body.items() if key not in renamed.values()}
        known = KINDS.get(made.kind)
        if known is not None and made.api_version in known.types:
            if known.model is not None:
                _decode(made, body, known)
            elif known.pod:
                _decode_pod(made, body, known)
        elif known is None or made.api_version.partition("/")[0] != next(iter(known.types)).partition("/")[0]:
            _decode_templates(made, body)
    made.problems += [in_another_case(key, name, key) for name, key in renamed.items()]
    return made


def _in_another_case(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """Return the keys of an object that are missing fields in another case, by field."""
    keys = {name: [key for key in body if key.casefold() == name.casefold()] for name in names if name not in body}
    return {name: found[0] for name, found in keys.items() if len(found) == 1}


def _unknown_kind(made: LintedObject) -> Iterator[FieldProblem]:
    group, _, version = made.api_version.rpartition("/")
    known = RESOURCE_KINDS.get(made.kind)
    if known is not None and group != GROUP:
        wish = f"write apiVersion: {next(iter(known.types))}"
        # a custom resource may have a kind of the same name
        if group == "" or probable_names(group, [GROUP]):
            right = f"{GROUP}/{version}"
            certain = (not group or unambiguous_correction(group, [GROUP])) and right in known.types
            sure = (Rewrite("apiVersion", right),) if certain else ()
            text = f"{made.api_version} has no kind {made.kind}"
            yield FieldProblem("apiVersion", "unknown-kind", text, wish, remedies=sure)
    elif group == GROUP and (gone := removed_kind_problem(made.kind, made.document.body)) is not None:
        yield FieldProblem("kind", "unknown-kind", *gone)
    elif group == GROUP and known is None:
        wish = suggest_names(made.kind, RESOURCE_KINDS) or f"it has {', '.join(sorted(RESOURCE_KINDS))}"
        remedies = correction("kind", made.kind, RESOURCE_KINDS)
        yield FieldProblem("kind", "unknown-kind", f"{GROUP} has no kind {made.kind}", wish, remedies=remedies)
    elif known is not None and made.api_version not in known.types:
        wish = f"write apiVersion: {next(iter(known.types))}"
        if version == "v1alpha2" and (spec := classic_claim_problem(made.kind, made.document.body)):
            wish += f" and spec: {spec}"
        text = f"Kubernetes {OLDEST} and newer does not serve {made.kind} in {made.api_version}"
        yield FieldProblem("apiVersion", "unknown-kind", text, wish, remedies=in_v1(made, version))
    elif kinds := [name for name, each in KINDS.items() if _is_in_another_case(made, name, each)]:
        wish, sure = f'did you mean "{kinds[0]}"?', (Rewrite("kind", kinds[0]),)
        yield FieldProblem("kind", "unknown-kind", f"{made.api_version} has no kind {made.kind}", wish, remedies=sure)
    elif not group and made.kind not in POD_SPECS:
        # other kinds of the core group, such as ResourceQuota, are not known here
        near = probable_names(made.kind, RESOURCE_KINDS)
        if near:
            wish = f"write apiVersion: {next(iter(RESOURCE_KINDS[near[0]].types))} and kind: {near[0]}"
            yield FieldProblem("kind", "unknown-kind", f"{made.api_version} has no kind {made.kind}", wish)


def _is_in_another_case(made: LintedObject, name: str, kind: ManifestKind) -> bool:
    """Return whether the kind of an object is one that its version has, in another case: ``pod``."""
    return made.kind != name and made.kind.casefold() == name.casefold() and made.api_version in kind.types


@cache
def _served_kind(name: str) -> tuple[Kind, RuntimeConfig]:
    """Return a kind of resource.k8s.io, as the API server serves it, and the configuration with alpha features."""
    # 0.2 s and 40 modules, which only manifests of other versions than v1 need
    from dra_kit.apiserver.api import ALPHA_VERSIONS, KINDS, RuntimeConfig

    kind = next(kind for kind in KINDS if (kind.group, kind.kind) == (GROUP, name))
    return kind, RuntimeConfig.parse(ALPHA_VERSIONS)


def _served(kind: str, release: Release) -> tuple[str, ...]:
    """Return the ``apiVersion``s that an API server can serve a kind of resource.k8s.io in, the newest first."""
    served = _served_kind(kind)[0].in_release(release)
    return tuple(map(served.api_version, served.types)) if not served.gate or served.gate in release else ()


def is_on(kind: str, api_version: str, release: Release) -> bool:
    """Return whether an API server serves a version that it can serve by default, or with its alpha features."""
    if api_version == V1 and kind in _IN_V1:
        return True
    served, alpha = _served_kind(kind)
    version = api_version.rpartition("/")[2]
    has_alpha = Release.alpha(release.version).enabled <= release.enabled
    return alpha.serves(served, version) if has_alpha else version not in served.off_by_default


def unserved(kind: str, api_version: str, release: Release) -> str | None:
    """Return what to write instead if a release cannot serve a known kind in a version; None if it can.

    Args:
        kind: a kind of resource.k8s.io.
        api_version: one of its versions in some release.
        release: with the gates that are on; a version that is off by default can be served.
    """
    if api_version == V1 and kind in _IN_V1:
        return None  # served by all releases
    served = _served(kind, release)
    if api_version in served:
        return None
    since = next((each for each in SUPPORTED if api_version in _served(kind, Release.alpha(each))), None)
    on = [one for one in served if is_on(kind, one, release)]
    if served:
        return f"write apiVersion: {(on or served)[0]}"
    return f"it exists since Kubernetes {since}" if since else ""


def version_problems(manifest: LintedObject, release: Release) -> Iterator[FieldProblem]:
    """Yield a problem if a release does not serve a known version, or only if it is asked to."""
    kind, version = manifest.kind, manifest.api_version
    if manifest.obj is None or (version == V1 and kind in _IN_V1):
        return  # of another group, or served by all releases
    served = _served(kind, release)
    if (wish := unserved(kind, version, release)) is not None:
        sure = in_v1(manifest, version.rpartition("/")[2]) if V1 in served else ()
        text = f"an API server does not serve {kind} in {version}"
        yield FieldProblem("apiVersion", "unknown-kind", text, wish, remedies=sure)
    elif version != served[0] and (is_on(kind, served[0], release) or not is_on(kind, version, release)):
        yield _deprecated(manifest, served[0])  # unless the newer one is off, and this one is on
    elif not is_on(kind, version, release):
        text = f"{version} is off by default: an API server serves it only with --runtime-config={version}=true"
        yield FieldProblem("apiVersion", "version-off", text)


def _deprecated(manifest: LintedObject, newest: str) -> FieldProblem:
    version = manifest.api_version.rpartition("/")[2]
    wish = f"write apiVersion: {newest}"
    if version == "v1beta1":
        cleaned, _ = check_structure(manifest.document.body, f"resource/{version}.{manifest.kind}", manifest.version)
        requests = requests_of_v1(manifest.kind, to_v1(cleaned, manifest.kind, manifest.api_version))
        wish += (
            f" and requests: {requests}"
            if requests
            else ", with the fields of a request below exactly, and those of a device without basic"
        )
    life = _served_kind(manifest.kind)[0].lives.get(version)
    gone = "" if life is None or life.removed is None else f", from Kubernetes 1.{life.removed} on not at all"
    text = (
        f"{manifest.api_version} is deprecated: an API server serves it only with "
        f"--runtime-config={manifest.api_version}=true{gone}"
    )
    sure = in_v1(manifest, version)
    return FieldProblem("apiVersion", "deprecated-version", text, wish, remedies=sure)


def _decode(made: LintedObject, body: Mapping[str, Any], known: ManifestKind) -> None:
    type_name = known.types[made.api_version]
    cleaned, problems = check_structure(body, type_name, made.version)
    made.problems += problems
    made.known = known
    content = decode(cleaned, type_name, made.version)
    made.content = complete_new_object(content, known, made.version)
    assert known.model is not None  # noqa: S101 - kinds of resource.k8s.io have one
    made.obj = known.model.model_validate(made.content)


_OF_PODS: Final = frozenset({"containers", "initContainers", "resourceClaims"})
"""Fields of pods that are noticed above a pod template, where the other fields are not known."""


def _decode_pod(made: LintedObject, body: Mapping[str, Any], known: ManifestKind) -> None:
    metadata: Any = {}
    part: Any = body
    where = ""
    if known.part:
        metadata = body.get("metadata")
        metadata, made.problems = check_structure(
            {} if metadata is None else metadata, _METADATA, made.version, "metadata"
        )
        for name in known.part:
            for key in _OF_PODS & part.keys() if isinstance(part, Mapping) else ():
                wish = f"it belongs deeper: {'.'.join(known.pod)}.{key}"
                misplaced = f"{where}.{key}".lstrip(".")
                text = f"unknown field {key}"
                made.problems.append(FieldProblem(misplaced, "unknown-field", text, wish, key=True))
            key = name
            if isinstance(part, Mapping) and (renamed := _in_another_case(part, [name])):
                key = renamed[name]
                made.problems.append(in_another_case(f"{where}.{key}".lstrip("."), name, key))
            where = f"{where}.{key}".lstrip(".")
            part = value_at(part, [key])
    if part is None:
        return
    type_name = known.types[made.api_version]
    cleaned, problems = check_structure(part, type_name, made.version, where)
    made.problems += problems
    spec = value_at(cleaned, known.pod[len(known.part) :])
    if spec is None and problems:
        return
    made.known = known
    made.pods = (PodTemplate(".".join(known.pod), spec or {}),)
    content: Any = decode(cleaned, type_name, made.version)
    for key in reversed(known.part):
        content = {key: content}
    head = {"apiVersion": made.api_version, "kind": made.kind}
    if known.part:
        head["metadata"] = decode(metadata or {}, _METADATA, made.version)
    made.content = complete_new_object({**content, **head}, known, made.version)


def _decode_templates(made: LintedObject, body: Mapping[str, Any]) -> None:
    """Decode the pods of a custom resource, and keep the problems of claims: controllers complete the rest."""
    pods = []
    for template in pod_templates(body):
        prefix = template.path if template.is_embedded else ""
        cleaned, problems = check_structure(template.spec, _POD_SPEC, made.version, prefix)
        for problem in filter(partial(_is_about_claims, prefix), problems):
            if template.is_embedded:
                made.problems.append(problem)
            else:  # its paths are those of the pod
                made.problems.append(msgspec.structs.replace(problem, path=template.place(problem.path), remedies=()))
        pods.append(msgspec.structs.replace(template, spec=cleaned))
    made.pods = tuple(pods)


_POD_SPEC: Final = "core/v1.PodSpec"
_OF_CLAIMS: Final = re.compile(
    r"resourceClaims(\[|$)|(initContainers|containers)\[\d+\]\.(claims|resourceClaims|resources\.claims)(\[|$)"
)
"""The fields of a pod spec that name claims, also one level too high."""


def _is_about_claims(path: str, problem: FieldProblem) -> bool:
    """Return whether a problem of a pod spec is about claims, or a field with one typo that may name them."""
    below = problem.path.removeprefix(path).removeprefix(".")
    misspelt = problem.rule == "unknown-field" and any(isinstance(one, Rename) for one in problem.remedies)
    return misspelt or _OF_CLAIMS.match(below) is not None


def template_problems(manifest: LintedObject, release: Release) -> Iterator[FieldProblem]:
    """Yield the errors of an API server about the claims of the pods of a custom resource."""
    for template in manifest.pods:
        errors = [
            replace(error, path=template.place(error.path.removeprefix("spec.")))
            for error in validate_pod_spec(decode(template.spec, _POD_SPEC, release.version), release)
            if _OF_CLAIMS.match(error.path.removeprefix("spec.")) and not _is_reference(error)
        ]
        yield from _problems(manifest, errors, {}, release)


_LONGEST: Final = 300
"""Maximum length of JSON in a remedy."""
_IN_TEMPLATE: Final = {"ResourceClaimTemplate": ("spec",)}
"""Path of a claim's spec below ``spec`` of a template."""
_IN_V1: Final = frozenset({"DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"})
_LIKE_V1BETA1: Final = frozenset({"v1beta1", "v1alpha3"})
"""Versions in which a request has the fields of ``exactly`` itself (v1alpha3 as of Kubernetes 1.31)."""
REMOVED_KINDS: Final = {
    "ResourceClass": "ResourceClass was removed in Kubernetes 1.31",
    "ResourceClaimParameters": "ResourceClaimParameters were removed in Kubernetes 1.31",
    "ResourceClassParameters": "ResourceClassParameters were removed in Kubernetes 1.31",
    "PodSchedulingContext": "PodSchedulingContext was removed in Kubernetes 1.32",
}
"""Removed kinds of classic DRA."""


def removed_kind_problem(kind: str, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return when a kind of classic DRA was removed, and what to write instead; None for other kinds."""
    if kind not in REMOVED_KINDS:
        return None
    if kind == "PodSchedulingContext":
        return REMOVED_KINDS[kind], "remove it: the scheduler allocates devices itself"
    if kind != "ResourceClass":
        return REMOVED_KINDS[kind], "write the parameters below spec.devices.config[].opaque of the claim or class"
    named = body.get("driverName")
    driver = named if isinstance(named, str) else "<driver>"
    expression = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}
    remedy = f"write apiVersion: resource.k8s.io/v1, kind: DeviceClass, spec: {json.dumps(expression)}"
    return REMOVED_KINDS[kind], remedy


def classic_claim_problem(kind: str, body: Mapping[str, Any]) -> str:
    """Return the v1 ``spec`` for a claim or template of v1alpha2, and remaining manual steps; empty if unknown."""
    is_template = kind == "ResourceClaimTemplate"
    path = ("spec", *_IN_TEMPLATE.get(kind, ()))
    named = value_at(body, (*path, "resourceClassName"))
    if not isinstance(named, str):
        return ""
    text = _shown({"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": named}}]}})
    if not text:
        return ""
    text = f"{{spec: {text}}}" if is_template else text
    rest = f"; move the parameters of parametersRef below {'.'.join(path)}.devices.config[].opaque"
    return text + rest if value_at(body, (*path, "parametersRef")) else text


def requests_of_v1(kind: str, content: Mapping[str, Any]) -> str:
    """Return the requests of a claim or template in v1 form; empty for other kinds, and if they are too long."""
    requests = value_at(content, ("spec", *_IN_TEMPLATE.get(kind, ()), "devices", "requests"))
    return _shown(requests) if kind.startswith("ResourceClaim") and requests else ""


def in_v1(manifest: LintedObject, version: str) -> tuple[Remedy, ...]:
    """Return the changes that convert an object of an older version to v1; empty unless v1 has all its fields.

    Taint rules are in v1 only since Kubernetes 1.37, and are not converted.
    """
    kind, body, release = manifest.kind, manifest.document.body, manifest.version
    if kind not in _IN_V1 or version not in _LIKE_V1BETA1 | {"v1beta2"}:
        return ()
    rewrite = Rewrite("apiVersion", V1)
    if not check_structure(body, f"resource/v1.{kind}", release)[1]:
        # true for v1beta2, for all classes, and for v1 content with an older apiVersion
        return (rewrite,)
    cleaned, problems = check_structure(body, f"resource/v1beta1.{kind}", release)
    if version not in _LIKE_V1BETA1 or problems:
        return ()
    if check_structure(to_v1(cleaned, kind, V1BETA1), f"resource/v1.{kind}", release)[1]:
        return ()
    moves: list[Remedy] = []
    path = ("spec", *_IN_TEMPLATE.get(kind, ()), "devices", *(() if kind == "ResourceSlice" else ("requests",)))
    items: Any = value_at(body, path) or ()
    for index, item in enumerate(items):
        if item is None:  # an object without fields
            continue
        where = f"{'.'.join(path)}[{index}]"
        if kind == "ResourceSlice":
            moves += [Unwrap(where, "basic")] if "basic" in item else []
        elif keys := tuple(key for key in item if key not in OUTSIDE_EXACTLY):
            if "firstAvailable" in item:
                return ()
            moves.append(Enclose(where, keys, "exactly"))
    return (rewrite, *moves)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else ""


_ENTRY: Final = re.compile(r"\.resourceClaims\[\d+\]$")


def validate(manifest: LintedObject, release: Release) -> Iterator[FieldProblem]:
    """Yield what an API server of this release would reject or drop.

    CEL expressions and references from pods to claims are left to more precise rules.
    """
    if manifest.known is None:
        yield from template_problems(manifest, release)
        return
    yield from version_problems(manifest, release)
    answered = check_new_object(manifest.content, manifest.known, release)
    errors = answered.errors
    needs = _NeededGates({}, {})
    if manifest.obj is not None:
        needs = _needed_gates(manifest, release, answered)
        for path in dropped_paths(manifest, answered):
            gate = needs.fields.get(path, "")
            caused = [one for one in errors if needs.errors.get(one.path) == gate and _is_below(path, one.path)]
            errors = tuple(one for one in errors if one not in caused)
            yield _dropped(path, gate, release, is_rejected=bool(caused))
        for path, gate in ignored_paths(manifest, answered, release):
            shown = f"{_field_of(path)} needs Kubernetes {history_of_field(path, gate).need(gate)}"
            text = f"an API server stores this field, but it has no effect: {shown}"
            yield FieldProblem(path, "feature-gate", text, _switch(path, gate, release), key=True)
    # references to claims are checked elsewhere
    errors = tuple(one for one in errors if not manifest.pods or not _is_reference(one))
    yield from _problems(manifest, _at_keys(errors, manifest.content["metadata"]), needs.errors, release)


def ignored_paths(manifest: LintedObject, answered: NewObjectResult, release: Release) -> Iterator[tuple[str, str]]:
    """Yield the written fields that an API server stores, but that have no effect, and the gate that they need."""
    for gate, rest in ignored_fields(answered.stored, release) if manifest.obj is not None else ():
        for path in missing_fields(answered.stored, rest):
            if manifest.document.positions.find(path).exact:
                yield path, gate


def dropped_paths(manifest: LintedObject, answered: NewObjectResult) -> Iterator[str]:
    """Yield the written fields that an API server drops, without those below them."""
    if manifest.obj is None:
        return
    dropped = missing_fields(manifest.content, answered.stored)
    yield from (path for path in dropped if manifest.document.positions.find(path).exact)


def missing_fields(obj: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of an object that it does not have as it is stored, without those below them."""
    return _topmost(sorted(set(_leaves(obj)) - set(_leaves(stored))))


class _NeededGates(Struct, frozen=True):
    """The feature gates that are off: for each field that is dropped and each path with an error that they cause."""

    fields: dict[str, str]
    errors: dict[str, str]


def _needed_gates(manifest: LintedObject, release: Release, answered: NewObjectResult) -> _NeededGates:
    assert manifest.known is not None  # noqa: S101 - the caller looked
    found = _NeededGates({}, {})
    if not answered.errors and answered.stored == manifest.content:
        return found
    off = (_GATES_OF_VALUES | {gate for needed, _ in GATED_FIELDS for gate in needed}) - release.enabled
    everything = release.also(*off)
    whole = check_new_object(manifest.content, manifest.known, everything)
    fields, wrong = set(_leaves(whole.stored)), {error.path for error in whole.errors}
    for gate in sorted(off):
        without = check_new_object(manifest.content, manifest.known, everything.without(gate))
        found.fields.update(dict.fromkeys(fields - set(_leaves(without.stored)), gate))
        found.errors.update(dict.fromkeys({error.path for error in without.errors} - wrong, gate))
    return found


_GATES_OF_VALUES: Final = frozenset({"DRAFractionalCapacityRange"})
"""Gates on which only values depend, and no field."""


def _is_below(field: str, path: str) -> bool:
    return field.startswith((f"{path}.", f"{path}["))


def _dropped(path: str, gate: str, release: Release, *, is_rejected: bool) -> FieldProblem:
    """Return the problem of a field that an API server drops; if it is required, the object is then rejected."""
    rest = " and rejects the rest" if is_rejected else ""
    shown = _field_of(path)
    if not gate:
        text = f"an API server drops this field{rest}: it does not have {shown}"
        return FieldProblem(path, "invalid-value" if is_rejected else "feature-gate", text, key=True)
    text = f"an API server drops this field{rest}: {shown} needs Kubernetes {history_of_field(path, gate).need(gate)}"
    return FieldProblem(
        path, "invalid-value" if is_rejected else "feature-gate", text, _switch(path, gate, release), key=True
    )


_INDEX: Final = re.compile(r"\[[^]]*\]")


def _field_of(path: str) -> str:
    """Return a field with the one above it, for a message: ``exactly.capacity``."""
    return ".".join(_INDEX.sub("", path).split(".")[-2:])


def _switch(path: str, gate: str, release: Release) -> str:
    """Return what an administrator can do for a field to have an effect."""
    history, minor = history_of_field(path, gate), release.version.minor
    if minor < history.known:
        flag = "" if history.on is not None and history.on <= history.known else f" with --feature-gates={gate}=true"
        return f"upgrade the cluster to Kubernetes 1.{history.known} or newer{flag}"
    checked = "; --alpha checks for an API server that has it" if gate in Release.alpha(release.version) else ""
    upgrade = f", or upgrade the cluster to Kubernetes 1.{history.on}" if history.on and minor < history.on else ""
    return f"start the API server with --feature-gates={gate}=true{upgrade}{checked}"


def _at_keys(errors: Iterable[FieldError], metadata: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield errors; one about a label or annotation gets the path of its key: the API server names only the map."""
    places = {f"metadata.{name}": _keys(metadata.get(name)) for name in ("annotations", "labels")}
    for error in errors:
        key = places[error.path].get(error.value) if error.path in places and error.value else None
        yield error if key is None else replace(error, path=f"{error.path}[{key}]")


def _problems(
    manifest: LintedObject, errors: Iterable[FieldError], needs: Mapping[str, str], release: Release
) -> Iterator[FieldProblem]:
    wrong = {problem.path for problem in manifest.problems if problem.rule == "wrong-type"}
    for error in errors:
        if not _is_reported(manifest, wrong, error):
            sure = correction(error.path, error.value, error.supported)
            gate = needs.get(error.path, "")
            allowed = f"the feature gate {gate} allows it: {_switch(error.path, gate, release)}" if gate else ""
            wish = allowed or _wish(manifest, error)
            yield FieldProblem(error.path, "invalid-value", f"{error.path}: {error.body}", wish, remedies=sure)


_RESOURCE: Final = re.compile(r"\.resources\.(limits|requests)\[([^]]+)\]$")


def _wish(manifest: LintedObject, error: FieldError) -> str:
    """Return what to write instead of an invalid value, for rules that do not say it."""
    if isinstance(manifest.obj, v1.ResourceSlice) and error.counted == ("sharedCounters", "devices"):
        pool = manifest.obj.spec.pool
        return (
            f"write two slices of pool {pool.name}, one with sharedCounters and one with devices, each with "
            f"generation: {pool.generation} and resourceSliceCount: {max(pool.resource_slice_count, 1) + 1}"
        )
    if error.path.endswith(".bindingFailureConditions") and error.value is None:
        return (
            "write both lists, or none: the scheduler waits for bindingConditions, and takes another device if one of "
            "bindingFailureConditions becomes true"
        )
    if (resource := _RESOURCE.search(error.path)) and "." in resource[2] and "/" not in resource[2]:
        return (
            f"for devices, name a claim in resources.claims, or write {IMPLICIT_RESOURCE}{resource[2]} in limits for "
            "devices of that DeviceClass"
        )
    return ""


def _is_reference(error: FieldError) -> bool:
    return error.kind is ErrorKind.NOT_FOUND or bool(_ENTRY.search(error.path))


_ATTRIBUTE: Final = re.compile(r"\.attributes\[[^]]+\]$")


def _is_reported(manifest: LintedObject, wrong: set[str], error: FieldError) -> bool:
    """Return whether a more precise rule reports it: of an expression, a wrong type, a misspelt field."""
    written = manifest.document.positions.find(error.path)
    paths = {error.path, written.path} if written.exact else {error.path}
    if _RESOURCE.search(error.path):  # requests are completed from limits
        paths.add(error.path.replace(".resources.requests[", ".resources.limits["))
    if not wrong.isdisjoint(paths) or any(_is_below(error.path, path) for path in wrong):
        return True
    if _ATTRIBUTE.search(error.path) and any(_is_below(one.path, path) for one in manifest.problems for path in paths):
        return True  # its value is misspelt
    if error.kind is ErrorKind.REQUIRED:
        return any(is_misspelt(manifest.problems, path) for path in paths)
    return error.path.endswith(".expression") and written.exact and written.value.value not in (None, "", [], {})


def _keys(pairs: Any) -> dict[Any, str]:
    """Return the keys of a map by the key or value that an error may quote."""
    found: dict[Any, str] = {}
    for key, value in pairs.items() if isinstance(pairs, Mapping) else ():
        found.setdefault(key, key)
        if isinstance(value, str):
            found.setdefault(value, key)
    return found


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields, including objects and lists."""
    if path:
        yield path
    if isinstance(value, Mapping):
        for key, item in value.items():
            plain = re.fullmatch(r"\w+", key)
            yield from _leaves(item, f"{path}.{key}" if path and plain else f"{path}[{key}]" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")


def _topmost(paths: list[str]) -> Iterator[str]:
    """Yield the paths that are not below another path."""
    last = None
    for path in paths:
        if last is None or not path.startswith((f"{last}.", f"{last}[")):
            last = path
            yield path
