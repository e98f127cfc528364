"""The rules of the API server for objects of resource.k8s.io and for pods, told where the object is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from dra_kit.lint.fixes.remedy import Remedy, Rewrite
from dra_kit.lint.structure.fields import Problem, misspelt
from dra_kit.lint.structure.manifest import KINDS, Manifest
from dra_kit.resource import names, v1, v1alpha3
from dra_kit.resource.dropping import drop_disabled_fields
from dra_kit.resource.fielderror import ErrorKind, FieldError, invalid, required
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.v1 import APIModel
from dra_kit.resource.validation import validate_slice
from dra_kit.resource.validation.claims import validate_claim_spec
from dra_kit.resource.validation.classes import validate_class
from dra_kit.resource.validation.metadata import validate_metadata
from dra_kit.resource.validation.pods import validate_pod_spec
from dra_kit.resource.validation.pool_status import validate_pool_status_request
from dra_kit.resource.validation.taint_rules import validate_taint_rule
from dra_kit.resource.validation.templates import validate_template
from dra_kit.values.nearest import one_slip

_EXPRESSION: Final = re.compile(r"\.expression$")
_WORD: Final = re.compile(r'"([^"]*)"')
_ENTRY: Final = re.compile(r"\.resourceClaims\[\d+\]$")


def validate(manifest: Manifest, gates: FeatureGates) -> Iterator[Problem]:
    """What an API server with these gates would refuse, or drop.

    What it says of CEL expressions, and of names that lead from pods to claims, is left out: those are looked at with
    more care elsewhere.
    """
    if manifest.pod_spec is not None:
        path, spec = manifest.pod_spec
        found = [one for one in validate_pod_spec(dict(spec), path) if not _is_reference(one)]
        yield from _problems(manifest, (*_metadata(manifest), *found))
    if manifest.obj is None:
        return
    kept = drop_disabled_fields(manifest.content, None, gates)
    dropped = sorted(set(_leaves(manifest.content)) - set(_leaves(kept)))
    for path in _topmost(dropped):
        if manifest.document.positions.find(path).exact:
            text = "an API server drops this field unless a feature gate is on that is off by default in 1.37"
            yield Problem(path, "feature-gate", text, "see the feature gates of resource.k8s.io", key=True)
    obj = type(manifest.obj).model_validate(kept)
    yield from _problems(manifest, (*_metadata(manifest), *_spec(obj, gates)))


def _problems(manifest: Manifest, errors: Iterable[FieldError]) -> Iterator[Problem]:
    wrong = {problem.path for problem in manifest.problems if problem.rule == "wrong-type"}
    for error in errors:
        if not _is_told(manifest, wrong, error):
            yield Problem(error.path, "invalid-value", f"{error.path}: {error.body}", remedies=_remedies(error))


def _remedies(error: FieldError) -> tuple[Remedy, ...]:
    """The word of a closed list that must be meant by another one."""
    if error.kind is not ErrorKind.UNSUPPORTED:
        return ()
    meant = one_slip(error.value, _WORD.findall(error.detail))
    return (Rewrite(error.path, meant),) if meant else ()


def _is_reference(error: FieldError) -> bool:
    return error.kind is ErrorKind.NOT_FOUND or bool(_ENTRY.search(error.path))


def _is_told(manifest: Manifest, wrong: set[str], error: FieldError) -> bool:
    """Whether a rule that knows more tells of the same: of an expression, a value of a wrong type, a misspelt field."""
    written = manifest.document.positions.find(error.path)
    paths = {error.path, written.path} if written.exact else {error.path}
    if not wrong.isdisjoint(paths):
        return True
    if error.kind is ErrorKind.REQUIRED:
        return any(misspelt(manifest.problems, path) for path in paths)
    return bool(_EXPRESSION.search(error.path)) and written.exact and written.value.value not in (None, "", [], {})


def _spec(obj: APIModel, gates: FeatureGates) -> list[FieldError]:
    match obj:
        case v1.ResourceSlice():
            return validate_slice(obj, fractional_ranges="DRAFractionalCapacityRange" in gates)
        case v1.ResourceClaim():
            return validate_claim_spec(obj.spec, gates)
        case v1.ResourceClaimTemplate():
            return validate_template(obj, gates)
        case v1.DeviceClass():
            return validate_class(obj, gates=gates)
        case v1.DeviceTaintRule():
            return validate_taint_rule(obj)
        case v1alpha3.ResourcePoolStatusRequest():
            return validate_pool_status_request(obj)
        case _:
            return []


def _metadata(manifest: Manifest) -> Iterator[FieldError]:
    metadata = manifest.metadata
    name, prefix, namespace = (metadata.get(key, "") for key in ("name", "generateName", "namespace"))
    if name:
        yield from _texts("metadata.name", name, names.dns_subdomain)
    elif prefix:
        masked = f"{prefix[:-1]}a" if prefix.endswith("-") else prefix
        yield from _texts("metadata.generateName", masked, names.dns_subdomain)
    else:
        yield required("metadata.name", "name or generateName is required")
    known = KINDS.get(manifest.kind)
    if namespace and (known is None or known.namespaced):  # elsewhere the API server takes no notice of it
        yield from _texts("metadata.namespace", namespace, names.dns_label)
    places = {f"metadata.{name}": _keys(metadata.get(name)) for name in ("annotations", "labels")}
    for error in validate_metadata(metadata):
        # the API server names only the map
        key = places.get(error.path, {}).get(error.value) if error.value else None
        yield error if key is None else replace(error, path=f"{error.path}[{key}]")


def _keys(pairs: Any) -> dict[Any, str]:
    """The keys of a map by what an error about them may show: the key or the value."""
    found: dict[Any, str] = {}
    for key, value in pairs.items() if isinstance(pairs, Mapping) else ():
        found.setdefault(key, key)
        if isinstance(value, str):
            found.setdefault(value, key)
    return found


def _texts(path: str, value: str, rule: Callable[[str], list[str]]) -> Iterator[FieldError]:
    for text in rule(value):
        yield invalid(path, value, text)


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all fields, those with objects and lists too."""
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
    """The paths that are not below another one."""
    last = None
    for path in paths:
        if last is None or not path.startswith((f"{last}.", f"{last}[")):
            last = path
            yield path
