"""Reviews of access, rules and tokens, which are not stored.

Source: Kubernetes 1.37 ``pkg/registry/authorization``, ``pkg/registry/authentication`` and
``pkg/apis/authorization/validation``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dra_kit.apiserver.api import Api, ApiRequest, ApiResponse
from dra_kit.apiserver.authentication import User
from dra_kit.apiserver.authorization import AuthorizationAttributes, Rule
from dra_kit.apiserver.discovery import REVIEWS
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.requests import WriteOptions
from dra_kit.apiserver.status_errors import bad_request, invalid_object, method_not_allowed
from dra_kit.apiserver.verbs.decoding import read_object
from dra_kit.kubernetes.resource.field_errors import FieldError
from dra_kit.kubernetes.resource.field_errors import invalid as invalid_field
from dra_kit.kubernetes.resource.schema.types import prune
from dra_kit.kubernetes.values.json import Object

_KINDS: Final = {
    (group, plural): Kind(group, plural, kind, namespaced, {"v1": f"{group.partition('.')[0]}/v1.{kind}"})
    for group, kinds in REVIEWS.items()
    for plural, kind, namespaced in kinds
}
_AUTHORIZATION: Final = "authorization.k8s.io"


def answer_review(api: Api, request: ApiRequest) -> ApiResponse | None:
    """Return the response to a review, None if the request is not a review.

    Raises:
        StatusError: the request is not a POST of a valid review.
    """
    target = request.target
    kind = _KINDS.get((target.group, target.plural)) if target.version == "v1" else None
    if kind is None:
        return None
    if request.method != "POST":
        raise method_not_allowed()
    options = WriteOptions.parse(request.query, "CreateOptions", request.agent)
    context = api.context(request)
    value = read_object(request, kind, options.field_validation, context)
    spec = value.get("spec") or {}
    status, shown = _status(api, kind.kind, spec, request), spec
    if kind.kind == "SelfSubjectRulesReview":
        shown = {}
    body = {"kind": kind.kind, "apiVersion": target.api_version, "metadata": value["metadata"]}
    if kind.kind != "SelfSubjectReview":
        body["spec"] = shown
    written: Object = prune({**body, "status": status}, kind.type_of(target.api_version))
    return ApiResponse({**body, **written}, 201, warnings=context.warnings)


def _status(api: Api, kind: str, spec: Object, request: ApiRequest) -> Object:
    user = request.user
    match kind:
        case "SelfSubjectReview":
            return {"userInfo": user.info()}
        case "TokenReview":
            return _token_status(api, spec)
        case "SelfSubjectRulesReview":
            return _rules_status(api, spec, user)
        case "SelfSubjectAccessReview":
            _check(_questions(spec))
        case _:
            _check([*_questions(spec), *_subjects(spec)])
            if kind == "LocalSubjectAccessReview":
                _check_local(spec, request)
            extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
            user = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)
    decision = api.rbac.authorize(user, _attributes(spec))
    return {"allowed": decision.allowed} | ({"reason": decision.reason} if decision.reason else {})


def _attributes(spec: Object) -> AuthorizationAttributes:
    if (path := spec.get("nonResourceAttributes")) is not None:
        return AuthorizationAttributes(path.get("verb", ""), path=path.get("path", ""), is_path=True)
    asked = spec.get("resourceAttributes") or {}
    fields = ("verb", "group", "resource", "subresource", "namespace", "name")
    return AuthorizationAttributes(*(asked.get(field, "") for field in fields))


def _check(errors: Iterable[FieldError]) -> None:
    if found := list(errors):
        raise invalid_object(_AUTHORIZATION, "", "", found)


def _questions(spec: Object) -> Iterator[FieldError]:
    """Yield the attributes to review; exactly one kind must be set, with each selector in one of its two forms."""
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (resource is None) == (path is None):
        shown = None if path is None else {"Path": path.get("path", ""), "Verb": path.get("verb", "")}
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield invalid_field("spec", shown, text)
    for name in ("fieldSelector", "labelSelector"):
        selector = (resource or {}).get(name) or {}
        if selector.get("rawSelector") and selector.get("requirements"):
            where = f"spec.resourceAttributes.{name}.rawSelector"
            yield invalid_field(where, selector["rawSelector"], "may not specified at the same time as requirements")


def _subjects(spec: Object) -> Iterator[FieldError]:
    if not spec.get("user") and not spec.get("groups"):
        yield invalid_field("spec.user", "", "at least one of user or group must be specified")


def _check_local(spec: Object, request: ApiRequest) -> None:
    namespace = (spec.get("resourceAttributes") or {}).get("namespace", "")
    if namespace != request.target.namespace:
        text = f"spec.resourceAttributes.namespace must match namespace: {request.target.namespace}"
        raise bad_request(text)


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
    granted = list(api.rbac.granted(user, namespace, problems))
    rules = [one.rule for one in granted]
    if user.is_master:
        rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]},
                 *rules]  # fmt: skip
    found: Object = {
        "resourceRules": [_only(rule, "verbs", "apiGroups", "resources", "resourceNames") for rule in rules
                          if rule.get("resources")],
        "nonResourceRules": [_only(rule, "verbs", "nonResourceURLs") for rule in rules if rule.get("nonResourceURLs")],
        "incomplete": bool(problems),
    }  # fmt: skip
    return found | ({"evaluationError": ", ".join(problems)} if problems else {})


def _only(rule: Rule, *fields: str) -> Rule:
    return {field: rule[field] for field in fields if rule.get(field)}
