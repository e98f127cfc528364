"""AdmissionReviews as they come in: read within limits, and refused where they are none that can be answered."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from dra_kit.kube.resources import Resource
from dra_kit.kubernetes.values.json import loads

VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions of resource.k8s.io that reviews may come in; kopf passes over those that are not served."""

_MOST_VALUES: Final = 1_000_000
"""Values in a review, about. Two objects of all that the API server lets pass have 600,000; each may take 120 bytes."""

# An operation that is none of these, and what it does to configs, is not known. There is nothing to check in a
# deletion; it is answered for configurations that ask about everything.
_OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE"})


_SECONDS: Final = 5.0  # timeoutSeconds of the configuration
_MOST_SECONDS: Final = 30.0  # that the API lets pass
_DURATION: Final = re.compile(r"([0-9]{1,9})(s|ms)")


class NotAReview(ValueError):
    """A body that is no AdmissionReview which can be answered; the text says why, in one line."""


def seconds(timeout: str) -> float:
    """Return how long an API server waits for an answer, by the ``timeout`` of its URL, such as ``5s``.

    Source: k8s.io/apiserver 0.37 ``pkg/admission/plugin/webhook/validating/dispatcher.go``.
    """
    match = _DURATION.fullmatch(timeout)
    if match is None:
        return _SECONDS
    return min(int(match[1]) * (0.001 if match[2] == "ms" else 1.0), _MOST_SECONDS)


def read(body: bytes, resources: Collection[Resource]) -> dict[str, Any]:
    """Return the AdmissionReview in a body.

    The API server never sends what is refused here. Who else does must not be answered ``allowed: true``.

    Args:
        body: as it came.
        resources: that are checked.

    Raises:
        NotAReview: it is no review of them.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise NotAReview(f"the body has more than {_MOST_VALUES} values")
    try:
        review: dict[str, Any] = loads(body)
    except ValueError as error:
        raise NotAReview(f"the body is no JSON: {error}") from None
    if _text(review, "kind") != "AdmissionReview" or _text(review, "apiVersion") != "admission.k8s.io/v1":
        raise NotAReview("the body is no AdmissionReview of admission.k8s.io/v1")
    request: Any = review.get("request")
    for key in ("uid", "operation"):
        if not _text(request, key):
            raise NotAReview(f"request.{key} is missing")
    _check(request, resources)
    return review


def _check(request: Mapping[str, Any], resources: Collection[Resource]) -> None:
    if request["operation"] not in _OPERATIONS:
        raise NotAReview(f"operation {request['operation']!r:.80} is not checked here")
    resource = _check_resource(request, resources)
    _check_kind(request, resource)
    if not isinstance(request.get("userInfo"), Mapping):
        raise NotAReview("request.userInfo is missing")
    wanted = "oldObject" if request["operation"] == "DELETE" else "object"
    if not isinstance(request.get(wanted), Mapping):
        raise NotAReview(f"request.{wanted} is missing")
    api_version = f"{resource.group}/{request['resource']['version']}"
    for key in ("object", "oldObject"):
        obj = request.get(key)
        if obj is None:
            continue
        if not isinstance(obj, Mapping):
            raise NotAReview(f"request.{key} is no object")
        if (obj.get("apiVersion"), obj.get("kind")) != (api_version, resource.kind):
            raise NotAReview(f"request.{key} is no {resource.kind} of {api_version}")


def _check_resource(request: Mapping[str, Any], resources: Collection[Resource]) -> Resource:
    """Return what the review is about; ``request…`` is what the user asked for, which may be in another version."""
    asked = request.get("resource")
    for key in ("group", "version", "resource"):
        if not _text(asked, key):
            raise NotAReview(f"request.resource.{key} is missing")
    by_name = {(resource.group, resource.plural): resource for resource in resources}
    resource = by_name.get((_text(asked, "group"), _text(asked, "resource")))
    if resource is None or _text(asked, "version") not in VERSIONS:
        raise NotAReview(
            f"{'.'.join(_text(asked, key) for key in ('resource', 'version', 'group')):.200} is not checked"
        )
    for key in ("subResource", "requestSubResource"):
        if request.get(key):
            raise NotAReview(f"request.{key} is given, and subresources are not checked here; do not ask about them")
    original = request.get("requestResource", asked)
    if (_text(original, "group"), _text(original, "resource")) != (resource.group, resource.plural):
        raise NotAReview(f"request.requestResource is no {resource.full_name}")
    return resource


def _check_kind(request: Mapping[str, Any], resource: Resource) -> None:
    kind = request.get("kind")
    if kind != {"group": resource.group, "version": request["resource"]["version"], "kind": resource.kind}:
        raise NotAReview(f"request.kind is not that of {resource.full_name}")
    original = request.get("requestKind", kind)
    if (_text(original, "group"), _text(original, "kind")) != (resource.group, resource.kind):
        raise NotAReview(f"request.requestKind is not that of {resource.full_name}")


def _text(obj: Any, key: str) -> str:
    value = obj.get(key) if isinstance(obj, Mapping) else None
    return value if isinstance(value, str) else ""
