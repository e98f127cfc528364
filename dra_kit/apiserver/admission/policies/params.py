"""Parameters of policies: the objects that ``paramKind`` and ``paramRef`` name.

Source: k8s.io/apiserver 0.37 ``pkg/admission/plugin/policy/generic/policy_dispatcher.go``, ``CollectParams``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_kit.apiserver.api import Api
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.kubernetes.cel.admission import to_cel_value
from dra_kit.kubernetes.resource.matching import parse_label_selector
from dra_kit.kubernetes.values.json import Object


class NotConfigured(Exception):
    """A policy or binding cannot be used as it is; the text is the API server's."""


def kind_of(api: Api, wanted: Object | None) -> tuple[Kind, str] | None:
    """Return the kind of a policy's parameters and their ``apiVersion``; None for a policy without any.

    Raises:
        NotConfigured: there is no such kind.
    """
    if not wanted:
        return None
    api_version = wanted.get("apiVersion", "")
    group, _, version = api_version.rpartition("/")
    kind = next((one for one in api.registry if (one.group, one.kind) == (group, wanted.get("kind"))), None)
    if kind is None or version not in kind.types:
        shown = f"{api_version}, Kind={wanted.get('kind', '')}"
        raise NotConfigured(f"failed to configure policy: failed to find resource referenced by paramKind: '{shown}'")
    return kind, api_version


def collect(api: Api, params: tuple[Kind, str] | None, reference: Object | None, namespace: str) -> Sequence[Any]:
    """Return the parameters of a binding as values of CEL; one None where policy or binding have none.

    Args:
        api: where they are.
        params: what :func:`kind_of` says of the policy.
        reference: ``paramRef`` of the binding.
        namespace: of the request's object.

    Raises:
        NotConfigured: they cannot be found.
    """
    if params is None or not reference:
        return [None]
    kind, api_version = params
    where = ""
    if kind.namespaced:
        where = reference.get("namespace") or namespace
        if not where:
            raise _binding("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
    elif reference.get("namespace"):
        raise _binding("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
    if name := reference.get("name"):
        found = api.lookup(kind.resource, kind.key(where, name))
        objects = [] if found is None else [found]
    else:
        wanted = parse_label_selector(reference.get("selector"))
        prefix = f"{where}/" if kind.namespaced else ""
        objects = [obj for obj in api.listed(kind.resource, prefix) if wanted.matches(obj)]
    if not objects and reference.get("parameterNotFoundAction") == "Deny":
        raise _binding("no params found for policy binding with `Deny` parameterNotFoundAction")
    return [to_cel_value(api.wire(kind, obj, api_version)) for obj in objects]


def _binding(text: str) -> NotConfigured:
    return NotConfigured(f"failed to configure binding: {text}")
