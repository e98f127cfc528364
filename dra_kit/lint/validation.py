"""The rules of the API server for objects of resource.k8s.io, told where the object is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from dra_kit.lint.manifests import KINDS, Manifest
from dra_kit.lint.structure import Problem
from dra_kit.resource import names, v1, v1alpha3
from dra_kit.resource.dropping import drop_disabled_fields
from dra_kit.resource.fielderror import ErrorKind, FieldError, invalid, required
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.v1 import APIModel
from dra_kit.resource.validation import validate_slice
from dra_kit.resource.validation.claims import validate_claim_spec
from dra_kit.resource.validation.classes import validate_class
from dra_kit.resource.validation.pool_status import validate_pool_status_request
from dra_kit.resource.validation.taint_rules import validate_taint_rule
from dra_kit.resource.validation.templates import validate_template

_EXPRESSION: Final = re.compile(r"\.expression$")


def validate(manifest: Manifest, gates: FeatureGates) -> Iterator[Problem]:
    """What an API server with these gates would refuse, or drop.

    What it says of CEL expressions is left out: those are looked at with more care elsewhere.
    """
    if manifest.obj is None:
        return
    kept = drop_disabled_fields(manifest.content, None, gates)
    dropped = sorted(set(_leaves(manifest.content)) - set(_leaves(kept)))
    for path in _topmost(dropped):
        if manifest.document.positions.find(path).exact:
            text = "an API server drops this field unless a feature gate is on that is off by default in 1.37"
            yield Problem(path, "feature-gate", text, "see the feature gates of resource.k8s.io", key=True)
    obj = type(manifest.obj).model_validate(kept)
    for error in (*_metadata(manifest), *_spec(obj, gates)):
        if not _is_told(manifest, error):
            yield Problem(error.path, "invalid-value", f"{error.path}: {error.body}")


def _is_told(manifest: Manifest, error: FieldError) -> bool:
    """Whether a rule that knows more tells of the same: of an expression, a value of a wrong type, a misspelt field."""
    for problem in manifest.problems:
        if problem.rule == "wrong-type" and problem.path == error.path:
            return True
        meant = problem.path if problem.rule == "wrong-type" else problem.instead
        if error.kind is ErrorKind.REQUIRED and meant.startswith(error.path):
            return True
    if not _EXPRESSION.search(error.path) or error.kind is ErrorKind.REQUIRED:
        return False
    written = manifest.document.positions.find(error.path)
    return written.exact and bool(written.value.value) and not written.value.tag.endswith(":null")


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
    metadata: Any = manifest.document.body.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name, prefix, namespace = metadata.get("name"), metadata.get("generateName"), metadata.get("namespace")
    if name:
        yield from _texts("metadata.name", name, names.dns_subdomain)
    elif prefix:
        masked = f"{prefix[:-1]}a" if str(prefix).endswith("-") else prefix
        yield from _texts("metadata.generateName", masked, names.dns_subdomain)
    else:
        yield required("metadata.name", "name or generateName is required")
    if namespace and KINDS[manifest.kind].namespaced:  # elsewhere the API server takes no notice of it
        yield from _texts("metadata.namespace", namespace, names.dns_label)
    labels = metadata.get("labels")
    for key, value in (labels if isinstance(labels, Mapping) else {}).items():
        yield from _texts(f"metadata.labels[{key}]", key, names.label_key)
        yield from _texts(f"metadata.labels[{key}]", value or "", names.label_value)
    annotations = metadata.get("annotations")
    for key in annotations if isinstance(annotations, Mapping) else ():
        yield from _texts(f"metadata.annotations[{key}]", str(key).lower(), names.label_key)


def _texts(path: str, value: Any, rule: Callable[[str], list[str]]) -> Iterator[FieldError]:
    for text in rule(value) if isinstance(value, str) else ():
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
