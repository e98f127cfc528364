"""Reviews of access, rules and tokens, which are not stored.

Source: Kubernetes 1.37 ``pkg/registry/authorization``, ``pkg/registry/authentication`` and
``pkg/apis/authorization/validation``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dra_kit.apiserver.api import Api, ApiRequest, ApiResponse
from dra_kit.apiserver.authentication import User
from dra_kit.apiserver.authorization import AuthorizationAttributes, Rule, aggregated
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.managed_fields import FieldManager, tracked_fields
from dra_kit.apiserver.node_authorization import node_of
from dra_kit.apiserver.requests import WriteOptions
from dra_kit.apiserver.selectors import FieldTerm, field_terms, parse_label_selector
from dra_kit.apiserver.status_errors import (
    StatusError,
    bad_request,
    invalid_object,
    method_not_allowed,
    no_such_resource,
)
from dra_kit.apiserver.verbs.decoding import read_object
from dra_kit.apiserver.verbs.write import check_namespace
from dra_kit.kubernetes.release import NEWEST
from dra_kit.kubernetes.resource.field_errors import FieldError, GoStruct, invalid, required
from dra_kit.kubernetes.resource.schema.types import prune, struct
from dra_kit.kubernetes.resource.validation.fields import label_requirement_errors, operand_errors
from dra_kit.kubernetes.values.json import Object

_AUTHENTICATION: Final = "authentication.k8s.io"
_AUTHORIZATION: Final = "authorization.k8s.io"


def _review(group: str, kind: str, *, namespaced: bool = False) -> Kind:
    return Kind(group, f"{kind.lower()}s", kind, namespaced, {"v1": f"{group.partition('.')[0]}/v1.{kind}"})


REVIEWS: Final = (
    _review(_AUTHENTICATION, "SelfSubjectReview"),
    _review(_AUTHENTICATION, "TokenReview"),
    _review(_AUTHORIZATION, "LocalSubjectAccessReview", namespaced=True),
    _review(_AUTHORIZATION, "SelfSubjectAccessReview"),
    _review(_AUTHORIZATION, "SelfSubjectRulesReview"),
    _review(_AUTHORIZATION, "SubjectAccessReview"),
)
"""Kinds that are answered and not stored; discovery lists them, and ``_status`` answers them."""
_BY_NAME: Final = {(kind.group, kind.plural): kind for kind in REVIEWS}


def answer_review(api: Api, request: ApiRequest) -> ApiResponse | None:
    """Return the response to a review, None if the request is not a review.

    Raises:
        StatusError: the request is not a POST of a valid review.
    """
    target = request.target
    kind = _BY_NAME.get((target.group, target.plural)) if target.version == "v1" else None
    if kind is None:
        return None
    if target.name or bool(target.namespace) is not kind.namespaced:
        raise no_such_resource()
    if request.method != "POST":
        raise method_not_allowed()
    options = WriteOptions.parse(request.query, "CreateOptions", request.agent)
    context = api.context(request)
    value = read_object(request, kind, options.field_validation, context)
    spec = value.get("spec") or {}
    metadata = value["metadata"] = _metadata(value["metadata"], request, kind)
    owner = FieldManager(options.field_manager, "Update", target.api_version, "", frozenset(), context.now)
    owned = tracked_fields(None, value, kind.type_of(target.api_version), owner, api.release.version)
    if owned:
        metadata["managedFields"] = owned
    body: Object = {"kind": kind.kind, "apiVersion": target.api_version, "metadata": metadata, "spec": spec,
                    "status": _status(api, kind.kind, metadata, spec, request)}  # fmt: skip
    if kind.kind in _WITHOUT_REQUEST:
        body |= {"metadata": {"creationTimestamp": context.now} if kind.kind == "SelfSubjectReview" else {}, "spec": {}}
    written: Object = prune(body, kind.type_of(target.api_version), api.release.version)
    shown = {"metadata": {}, **({"spec": {}} if kind.kind != "SelfSubjectReview" else {}), **written}
    return ApiResponse({"kind": kind.kind, "apiVersion": target.api_version, **shown}, 201, warnings=context.warnings)


_WITHOUT_REQUEST: Final = ("SelfSubjectReview", "SelfSubjectRulesReview")
"""Kinds whose answer repeats nothing of the request."""


def _metadata(metadata: Object, request: ApiRequest, kind: Kind) -> Object:
    """Return the metadata of a review, which is in the namespace of the path or in none."""
    if kind.namespaced:
        check_namespace({"metadata": metadata}, request)
    given = {name: value for name, value in metadata.items() if name not in _SET_BY_SERVER}
    return given | ({"namespace": request.target.namespace} if kind.namespaced else {})


_SET_BY_SERVER: Final = ("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "namespace",
                         "selfLink", "uid")  # fmt: skip


def _status(api: Api, kind: str, metadata: Object, spec: Object, request: ApiRequest) -> Object:
    user = request.user
    match kind:
        case "SelfSubjectReview":
            return {"userInfo": user.info()}
        case "TokenReview":
            return _token_status(api, spec)
        case "SelfSubjectRulesReview":
            return _rules_status(api, spec, user)
        case "SelfSubjectAccessReview":
            _check([*_questions(spec), *_extra_metadata(metadata)])
        case _:
            local = kind == "LocalSubjectAccessReview"
            errors = [*_questions(spec, asks_for_others=True), *_extra_metadata(metadata, local=local)]
            _check([*errors, *(_local_errors(spec, request.target.namespace) if local else ())])
            extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
            user = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)
    asked, problems = _attributes(spec)
    decision = api.rbac.authorize(user, asked)
    found: Object = {"allowed": decision.allowed, "reason": decision.reason, "evaluationError": "; ".join(problems)}
    return found


def _attributes(spec: Object) -> tuple[AuthorizationAttributes, list[str]]:
    """Return what a review asks for, and what of it is ignored."""
    if (path := spec.get("nonResourceAttributes")) is not None:
        return AuthorizationAttributes(path.get("verb", ""), path=path.get("path", ""), is_path=True), []
    asked = spec.get("resourceAttributes") or {}
    verb, group, resource, subresource, namespace, name = (asked.get(field, "") for field in _ATTRIBUTES)
    selected, problems = [], []
    for selector, read in (("fieldSelector", _field_terms), ("labelSelector", _label_requirements)):
        terms, complete = read(asked.get(selector) or {})
        if not complete:
            part = "partially " if terms else ""
            problems.append(f"spec.resourceAttributes.{selector} {part}ignored due to parse error")
        selected += [(term.field, term.value) for term in terms if isinstance(term, FieldTerm) and term.equal]
    return AuthorizationAttributes(
        verb, group, resource, subresource, namespace, name, selected_fields=tuple(selected)
    ), problems


_ATTRIBUTES: Final = ("verb", "group", "resource", "subresource", "namespace", "name")


def _field_terms(selector: Object) -> tuple[Sequence[FieldTerm], bool]:
    """Return the terms of a field selector that can be read, and whether that is all of them."""
    if text := selector.get("rawSelector"):
        try:
            return field_terms(text), True
        except StatusError:
            return [], False
    requirements = selector.get("requirements") or ()
    read = [
        FieldTerm(one["key"], one["values"][0], equal=one["operator"] == "In")
        for one in requirements
        if one.get("operator") in {"In", "NotIn"} and len(one.get("values") or ()) == 1
    ]
    return read, len(read) == len(requirements)


def _label_requirements(selector: Object) -> tuple[Sequence[Object], bool]:
    """Return the requirements of a label selector that can be read, and whether that is all of them."""
    if text := selector.get("rawSelector"):
        try:
            parse_label_selector(text)
        except StatusError:
            return [], False
        return [selector], True
    requirements = selector.get("requirements") or ()
    read = [one for one in requirements if one.get("operator") in {"In", "NotIn", "Exists", "DoesNotExist"}]
    return read, len(read) == len(requirements)


def _check(errors: Iterable[FieldError]) -> None:
    if found := list(errors):
        raise invalid_object(_AUTHORIZATION, "", "", found)


def _questions(spec: Object, *, asks_for_others: bool = False) -> Iterator[FieldError]:
    """Yield the attributes to review; exactly one kind must be set, and selectors must be complete."""
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (resource is None) == (path is None):
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield invalid("spec", None if path is None else _shown(path), text)
    if asks_for_others and not spec.get("user") and not spec.get("groups"):
        yield invalid("spec.user", "", "at least one of user or group must be specified")
    for name in ("fieldSelector", "labelSelector"):
        if (selector := (resource or {}).get(name)) is not None:
            yield from _selector_errors(selector, f"spec.resourceAttributes.{name}", labels=name == "labelSelector")


def _shown(path: Object) -> Object:
    return {"Path": path.get("path", ""), "Verb": path.get("verb", "")}


def _selector_errors(selector: Object, path: str, *, labels: bool) -> Iterator[FieldError]:
    raw, requirements = selector.get("rawSelector"), selector.get("requirements") or ()
    if raw and requirements:
        yield invalid(f"{path}.rawSelector", raw, "may not specified at the same time as requirements")
    if not raw and not requirements:
        text = f"when {path} is specified, requirements or rawSelector is required"
        yield required(f"{path}.requirements", text)
    for i, requirement in enumerate(requirements):
        where = f"{path}.requirements[{i}]"
        if labels:
            yield from label_requirement_errors(requirement, where, any_operator=True)
            continue
        if not requirement.get("key"):
            yield required(f"{where}.key", "must be specified")
        yield from operand_errors(requirement.get("operator") or "", requirement.get("values") or (), where)


def _extra_metadata(metadata: Object, *, local: bool = False) -> Iterator[FieldError]:
    """Yield the error of a review with metadata."""
    allowed = {"managedFields", *(["namespace"] if local else [])}
    if any(value for name, value in metadata.items() if name not in allowed):
        text = "must be empty except for namespace" if local else "must be empty"
        yield invalid("metadata", _in_order(prune(metadata, _METADATA, NEWEST)), text)


_METADATA: Final = "meta/v1.ObjectMeta"
_ENTRY: Final = ("manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1")


def _in_order(metadata: Object) -> GoStruct:
    """Return metadata with its fields in the order in which Kubernetes shows them."""
    known = struct(_METADATA, NEWEST)
    fields = known.fields if known is not None else ()
    shown = GoStruct({name: metadata[name] for name in fields if name in metadata})
    entries = shown.get("managedFields") or ()
    shown["managedFields"] = [GoStruct({name: entry[name] for name in _ENTRY if name in entry}) for entry in entries]
    return shown


def _local_errors(spec: Object, namespace: str) -> Iterator[FieldError]:
    """Yield what a review of one namespace may not ask for."""
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and resource.get("namespace", "") != namespace:
        where = "spec.resourceAttributes.namespace"
        yield invalid(where, resource.get("namespace", ""), "must match metadata.namespace")
    if path is not None:
        yield invalid("spec.nonResourceAttributes", _shown(path), "disallowed on this kind of request")


def _token_status(api: Api, spec: Object) -> Object:
    token = spec.get("token", "")
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    audiences = spec.get("audiences") or []
    known = api.tokens.user(token, audiences) if audiences else api.tokens.user(token)
    if known is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": known.info()} | ({"audiences": audiences} if audiences else {})


def _rules_status(api: Api, spec: Object, user: User) -> Object:
    namespace = spec.get("namespace", "")
    if not namespace:
        raise bad_request("no namespace on request")
    problems: list[str] = []
    rules = [granted.rule for granted in api.rbac.granted(user, namespace, problems)]
    if node_of(user) is not None:
        problems.insert(0, "node authorizer does not support user rule resolution")
    found: Object = {
        "resourceRules": [_only(rule, "verbs", "apiGroups", "resources", "resourceNames") for rule in rules
                          if rule.get("resources")],
        "nonResourceRules": [_only(rule, "verbs", "nonResourceURLs") for rule in rules if rule.get("nonResourceURLs")],
        "incomplete": node_of(user) is not None,
    }  # fmt: skip
    return found | ({"evaluationError": aggregated(problems)} if problems else {})


def _only(rule: Rule, *fields: str) -> Rule:
    return {field: rule[field] for field in fields if rule.get(field)}
