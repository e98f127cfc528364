"""What the API server says to an object, at the places where that is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from dra_kit.kubernetes.release import FeatureGates
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError
from dra_kit.kubernetes.resource.new_object import check_new_object
from dra_kit.lint.fixes.remedy import Remedy, Rewrite
from dra_kit.lint.structure.fields import Problem, misspelt
from dra_kit.lint.structure.manifest import Manifest
from dra_kit.text import unambiguous_correction

_EXPRESSION: Final = re.compile(r"\.expression$")
_ENTRY: Final = re.compile(r"\.resourceClaims\[\d+\]$")


def validate(manifest: Manifest, gates: FeatureGates) -> Iterator[Problem]:
    """Yield what an API server with these gates would refuse, or drop.

    What it says of CEL expressions, and of names that lead from pods to claims, is left out: those are looked at with
    more care elsewhere.
    """
    if manifest.known is None:
        return
    answered = check_new_object(manifest.content, manifest.known, gates)
    dropped = sorted(set(_leaves(manifest.content)) - set(_leaves(answered.stored))) if manifest.obj is not None else []
    for path in _topmost(dropped):
        if manifest.document.positions.find(path).exact:
            text = "an API server drops this field unless a feature gate is on that is off by default in 1.37"
            yield Problem(path, "feature-gate", text, "see the feature gates of resource.k8s.io", key=True)
    errors = _at_keys(answered.errors, manifest.content["metadata"])
    # which claims a pod has is looked at elsewhere
    yield from _problems(manifest, (one for one in errors if manifest.pod_spec is None or not _is_reference(one)))


def _at_keys(errors: Iterable[FieldError], metadata: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield errors; one about a label or annotation gets the path of its key: the API server names only the map."""
    places = {f"metadata.{name}": _keys(metadata.get(name)) for name in ("annotations", "labels")}
    for error in errors:
        key = places[error.path].get(error.value) if error.path in places and error.value else None
        yield error if key is None else replace(error, path=f"{error.path}[{key}]")


def _problems(manifest: Manifest, errors: Iterable[FieldError]) -> Iterator[Problem]:
    wrong = {problem.path for problem in manifest.problems if problem.rule == "wrong-type"}
    for error in errors:
        if not _is_reported(manifest, wrong, error):
            yield Problem(error.path, "invalid-value", f"{error.path}: {error.body}", remedies=_remedies(error))


def _remedies(error: FieldError) -> tuple[Remedy, ...]:
    """Return the word of a closed list that must be intended by another one."""
    intended = unambiguous_correction(error.value, error.supported)
    return (Rewrite(error.path, intended),) if intended else ()


def _is_reference(error: FieldError) -> bool:
    return error.kind is ErrorKind.NOT_FOUND or bool(_ENTRY.search(error.path))


def _is_reported(manifest: Manifest, wrong: set[str], error: FieldError) -> bool:
    """Return whether a more precise rule reports it: of an expression, a wrong type, a misspelt field."""
    written = manifest.document.positions.find(error.path)
    paths = {error.path, written.path} if written.exact else {error.path}
    if not wrong.isdisjoint(paths):
        return True
    if error.kind is ErrorKind.REQUIRED:
        return any(misspelt(manifest.problems, path) for path in paths)
    return bool(_EXPRESSION.search(error.path)) and written.exact and written.value.value not in (None, "", [], {})


def _keys(pairs: Any) -> dict[Any, str]:
    """Return the keys of a map by what an error about them may show: the key or the value."""
    found: dict[Any, str] = {}
    for key, value in pairs.items() if isinstance(pairs, Mapping) else ():
        found.setdefault(key, key)
        if isinstance(value, str):
            found.setdefault(value, key)
    return found


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields, those with objects and lists too."""
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
    """Yield the paths that are not below another one."""
    last = None
    for path in paths:
        if last is None or not path.startswith((f"{last}.", f"{last}[")):
            last = path
            yield path
