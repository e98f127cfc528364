"""Checks of what pods refer to: claims, templates, requests, configurations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from dra_kit.diagnosis.lint.devices import LintContext, written_choices
from dra_kit.diagnosis.lint.objects import LintedObject
from dra_kit.diagnosis.lint.structure import FieldProblem, Rename, Rewrite, correction, is_misspelt
from dra_kit.kubernetes.manifests.pod_templates import PodTemplate
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import base_request, configs_for_driver
from dra_kit.kubernetes.values.json import value_at
from dra_kit.text import name_of_typo, suggest_names

_CONTAINERS: Final = ("initContainers", "containers")
_REFERS: Final = {"resourceClaimName": "ResourceClaim", "resourceClaimTemplateName": "ResourceClaimTemplate"}
_FAR: Final = 2


class _Use(Struct, frozen=True):
    """A container's use of a claim of its pod, with the paths of the use and of its two fields."""

    path: str
    claim: str
    request: str
    name_path: str
    request_path: str


class _Entry(Struct, frozen=True):
    """An entry of ``spec.resourceClaims`` of a pod."""

    path: str
    name: str
    reference: Mapping[str, str]


class _Files(Struct):
    """The claims and templates of the files, those that cannot be read, and the requests that containers use.

    ``claims`` and ``unread`` are by name, ``alike`` has the claims whose names may be typos of each other.
    ``asked`` has the names by ``id`` of the claim; None stands for all requests.
    """

    claims: dict[str, list[LintedObject]]
    unread: dict[str, list[LintedObject]]
    alike: dict[tuple[str, str], list[LintedObject]]
    surroundings: LintContext
    asked: dict[int, set[str] | None]


def pod_problems(
    manifests: Sequence[LintedObject], surroundings: LintContext
) -> Iterator[tuple[LintedObject, FieldProblem]]:
    """Yield problems of the references from pods to claims and templates."""
    claims = [manifest for manifest in manifests if manifest.claim is not None]
    unread = [manifest for manifest in manifests if manifest.kind in _REFERS.values() and manifest.claim is None]
    alike = _by(claims, lambda claim: _typo_key(claim.name))
    files = _Files(_by(claims, _name), _by(unread, _name), alike, surroundings, {})
    for pod in manifests:
        for template in pod.pods:
            yield from ((pod, problem) for problem in _of_pod(pod, template, files))
    for claim in claims:
        for problem in _unused(claim, files.asked.get(id(claim))):
            yield claim, problem


_Key = TypeVar("_Key")


def _by(manifests: Sequence[LintedObject], key: Callable[[LintedObject], _Key]) -> dict[_Key, list[LintedObject]]:
    found: dict[_Key, list[LintedObject]] = {}
    for manifest in manifests:
        found.setdefault(key(manifest), []).append(manifest)
    return found


def _name(manifest: LintedObject) -> str:
    return manifest.name


def _typo_key(name: str) -> tuple[str, str]:
    """Return what a name has in common with its typos: the first letter and the digits."""
    return name[:1], "".join(filter(str.isdigit, name))


def _of_pod(pod: LintedObject, template: PodTemplate, files: _Files) -> list[FieldProblem]:
    """Return the problems of the references of one pod, and remember which requests of claims it uses."""
    problems: list[FieldProblem] = []
    entries = list(_entries(pod, template, problems))
    uses = list(_uses(template))
    # a misspelt field and a parameter of a workflow may name any claim
    unclear = any(is_misspelt(pod.problems, template.place(kind)) for kind in _CONTAINERS)
    names = {entry.name for entry in entries}
    misnamed = any(use.claim and use.claim not in names for use in uses)
    mentioned = set(_texts(pod.document.body)) if unclear else set[str]()
    if any(_PARAMETER in name for name in (*(use.claim for use in uses), *(entry.name for entry in entries))):
        return problems
    for entry in entries:
        found = _target(pod, entry, files, problems)
        problems += _shared_by_replicas(pod, entry)
        mine = [use for use in uses if use.claim == entry.name]
        if entry.name and not mine and not misnamed and entry.name not in mentioned:
            text = f"no container uses the claim {entry.name}: its devices are prepared only for the pod as a whole"
            wish = f"if a container needs them, add it there: resources: {{claims: [{{name: {entry.name}}}]}}"
            problems.append(FieldProblem(f"{entry.path}.name", "unused-claim", text, wish))
        elif mine and found is not None:
            unknown = list(_requests(found, mine))
            problems += unknown
            problems += _whole(found, mine, files.surroundings)
            before = files.asked.get(id(found), set())
            named = {use.request for use in mine}
            # no request means all requests, and a misspelt one may be any of them
            files.asked[id(found)] = None if before is None or unknown or "" in named else before | named
    if not is_misspelt(pod.problems, template.place("resourceClaims")):
        problems += _unknown_claims(entries, uses)
    return problems


_PARAMETER: Final = "{{"
"""Begins a parameter of a workflow, which is replaced before the pod is created."""
_COUNTS: Final = {
    **dict.fromkeys(("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"), "replicas"),
    "Job": "parallelism",
}
"""The field with the number of pods, by kind."""


def _shared_by_replicas(pod: LintedObject, entry: _Entry) -> Iterator[FieldProblem]:
    """Yield a problem if several pods of a workload name one claim."""
    claim = entry.reference.get("resourceClaimName")
    number = value_at(pod.document.body, ("spec", _COUNTS.get(pod.kind, "")))
    if not claim or not ((isinstance(number, int) and number > 1) or pod.kind == "DaemonSet"):
        return
    text = f"all pods of {pod.kind} {pod.name} share the devices of ResourceClaim {claim}, and run where they are"
    wish = "to give each pod its own devices, name a template: resourceClaimTemplateName: <template>"
    yield FieldProblem(f"{entry.path}.resourceClaimName", "shared-claim", text, wish)


def _entries(pod: LintedObject, template: PodTemplate, problems: list[FieldProblem]) -> Iterator[_Entry]:
    for index, item in enumerate(template.spec.get("resourceClaims") or ()):
        path = template.place(f"resourceClaims[{index}]")
        reference = {key: item[key] for key in _REFERS if key in item}
        if len(reference) != 1 and not _has_wrong_fields(pod, path):
            given = "both" if reference else "neither"
            text = f"must have exactly one of resourceClaimName and resourceClaimTemplateName, but has {given}"
            wish = "a template makes a claim for each pod; a claim by name is shared by all pods that name it"
            problems.append(FieldProblem(path, "claim-reference", text, wish))
        yield _Entry(path, item.get("name", ""), reference)


def _uses(template: PodTemplate) -> Iterator[_Use]:
    for kind in _CONTAINERS:
        for number, container in enumerate(template.spec.get(kind) or ()):
            resources = container.get("resources") or {}
            for index, use in enumerate(resources.get("claims") or ()):
                below = f"{kind}[{number}].resources.claims[{index}]"
                yield _Use(
                    template.place(below),
                    use.get("name", ""),
                    use.get("request", ""),
                    template.place(f"{below}.name"),
                    template.place(f"{below}.request"),
                )


def _texts(value: object) -> Iterator[str]:
    """Yield all keys and strings of a pod, except ``resourceClaims``: a misspelt field may name any claim."""
    match value:
        case str():
            yield value
        case Mapping():
            for key, item in value.items():
                if key != "resourceClaims":
                    yield key
                    yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


def _has_wrong_fields(pod: LintedObject, path: str) -> bool:
    """Return whether the path or a field below it is misspelt, or has a wrong type."""
    return any(problem.path == path or problem.path.startswith((f"{path}.", f"{path}[")) for problem in pod.problems)


def _unknown_claims(entries: Sequence[_Entry], uses: Sequence[_Use]) -> Iterator[FieldProblem]:
    names = sorted({entry.name for entry in entries})
    for use in uses:
        if use.claim and use.claim not in names:
            wish = suggest_names(use.claim, names)
            wish = wish or (f"it has {', '.join(names)}" if names else "add it to resourceClaims of the pod")
            text = f"the pod has no claim {use.claim} in resourceClaims"
            sure = correction(use.name_path, use.claim, names)
            yield FieldProblem(use.name_path, "unknown-claim", text, wish, remedies=sure)


def _target(pod: LintedObject, entry: _Entry, files: _Files, problems: list[FieldProblem]) -> LintedObject | None:
    """Return the claim or template that an entry names, if the files have it, and only one that may be intended."""
    for field, name in entry.reference.items() if len(entry.reference) == 1 else ():
        kind, path = _REFERS[field], f"{entry.path}.{field}"
        if any(each.kind == kind and _same_namespace(pod, each) for each in files.unread.get(name, ())):
            return None
        of_name = files.claims.get(name, [])
        named = _nearest(pod, [claim for claim in of_name if _same_namespace(pod, claim)])
        intended = [claim for claim in named if claim.kind == kind]
        if intended:
            return intended[0] if len(intended) == 1 else None
        if named:
            other = next(key for key, of in _REFERS.items() if of == named[0].kind)
            text = f"{name} is a {named[0].kind}, not a {kind}"
            sure = (Rename(path, other),) if len({claim.kind for claim in named}) == 1 else ()
            problems.append(
                FieldProblem(path, "claim-reference", text, f"write {other}: {name}", key=True, remedies=sure)
            )
            return named[0] if len(named) == 1 else None
        same = [claim for claim in of_name if claim.kind == kind]
        beside = [
            claim.name
            for claim in files.alike.get(_typo_key(name), ())
            if claim.kind == kind and _same_namespace(pod, claim) and _distance(pod, claim) < _FAR
        ]
        if same:
            text = f"{kind} {name} is in another namespace than the pod: {same[0].namespace}, not {pod.namespace}"
            problems.append(FieldProblem(path, "missing-claim", text, "put them into one namespace"))
        elif intended_name := name_of_typo(name, beside):
            text = f"the files have no {kind} {name}"
            problems.append(FieldProblem(path, "missing-claim", text, f'did you mean "{intended_name}"?'))
    return None


def _nearest(pod: LintedObject, candidates: Sequence[LintedObject]) -> list[LintedObject]:
    """Return those in the pod's own file, else in its folder, else all: folders may be alternatives."""
    least = min((_distance(pod, claim) for claim in candidates), default=0)
    return [claim for claim in candidates if _distance(pod, claim) == least]


def _distance(one: LintedObject, other: LintedObject) -> int:
    first, second = one.document.file.name, other.document.file.name
    if first == second:
        return 0
    return 1 if first.rpartition("/")[0] == second.rpartition("/")[0] else _FAR


def _same_namespace(one: LintedObject, other: LintedObject) -> bool:
    """Return whether two objects are, or may be, in one namespace."""
    return not one.namespace or not other.namespace or one.namespace == other.namespace


def _requests(claim: LintedObject, uses: Sequence[_Use]) -> Iterator[FieldProblem]:
    names = [name for _, name in _names(claim)]
    for use in uses:
        if use.request and use.request not in names:
            wish = suggest_names(use.request, names) or f"it has {', '.join(sorted(names))}"
            sure = correction(use.request_path, use.request, names)
            if (whole := use.request.partition("/")[0]) in names:
                sure = (Rewrite(use.request_path, whole),)
                wish = f"write {whole}: a container names the request, not the alternative"
            text = f"{claim.kind} {claim.name} has no request {use.request}: the container gets no device"
            yield FieldProblem(use.request_path, "unknown-request", text, wish, remedies=sure)


def _whole(claim: LintedObject, uses: Sequence[_Use], surroundings: LintContext) -> Iterator[FieldProblem]:
    whole = [use for use in uses if not use.request]
    found = _difference(claim, surroundings) if whole else None
    if found is None:
        return
    driver, one, other = found
    text = (
        f"the requests {one} and {other} of {claim.kind} {claim.name} have different configs for "
        f"{driver}: where their devices set one variable, the last one decides, "
        "unless the name of the variable contains the device"
    )
    for use in whole:
        wish = f"name the request that the container needs: {{name: {use.claim}, request: {one}}}"
        yield FieldProblem(use.path, "whole-claim", text, wish)


def _names(claim: LintedObject) -> Iterator[tuple[str, str]]:
    """Yield the paths of a claim's requests, and their names."""
    assert claim.claim is not None  # noqa: S101 - the caller chose
    path, spec = claim.claim
    for index, request in enumerate(spec.devices.requests):
        yield f"{path}.devices.requests[{index}].name", request.name


def _unused(claim: LintedObject, asked: set[str] | None) -> Iterator[FieldProblem]:
    for path, name in _names(claim) if asked else ():
        if asked is not None and name not in asked:
            text = f"no container uses the request {name}, though containers name other requests of the claim"
            yield FieldProblem(
                path, "unused-request", text, f"add {{name: …, request: {name}}} to a container, or remove it"
            )


def _difference(claim: LintedObject, surroundings: LintContext) -> tuple[str, str, str] | None:
    """Return a driver, and the first two requests of a claim whose configs for it differ, by the API's precedence.

    A request without config for a driver may get a device of another driver, and differs from none.
    """
    assert claim.claim is not None  # noqa: S101 - the caller chose
    of_claim = [
        v1.DeviceAllocationConfiguration(source="FromClaim", requests=config.requests, opaque=config.opaque)
        for config in claim.claim[1].devices.config
    ]
    seen: dict[str, tuple[str, str]] = {}
    for choice in written_choices(claim):
        device_class = surroundings.class_of(choice)
        entries = [
            v1.DeviceAllocationConfiguration(source="FromClass", requests=(choice.request,), opaque=config.opaque)
            for config in (device_class.spec.config if device_class is not None else ())
        ]
        entries += of_claim
        for driver in dict.fromkeys(entry.opaque.driver for entry in entries if entry.opaque is not None):
            configs = configs_for_driver(entries, choice.request, driver)
            if not configs or configs[-1].opaque is None:
                continue
            text = json.dumps(configs[-1].opaque.parameters, sort_keys=True, default=str)
            name = base_request(choice.request)
            before, other = seen.setdefault(driver, (text, name))
            if before != text and other != name:
                return driver, other, name
    return None
