"""Reviews: questions about identities and permissions, which are answered and not stored. Everything is allowed."""

from __future__ import annotations

from typing import Any, Final

from dra_kit.apiserver.answers import bad_request, method_not_allowed
from dra_kit.apiserver.api import Answer, Request
from dra_kit.apiserver.discovery import REVIEWS
from dra_kit.apiserver.verbs.bodies import NoJson, parse

_TYPES: Final = {"authentication.k8s.io": "authentication/v1.", "authorization.k8s.io": "authorization/v1."}
_GROUPS: Final = ["system:masters", "system:authenticated"]
_KINDS: Final = {(group, plural): kind for group, kinds in REVIEWS.items() for plural, kind, _ in kinds}


def review(request: Request) -> Answer | None:
    """The answer to a review, None when the request is none.

    Raises:
        Refusal: it is no POST of a JSON object.
    """
    target = request.target
    kind = _KINDS.get((target.group, target.plural)) if target.version == "v1" else None
    if kind is None:
        return None
    if request.method != "POST":
        raise method_not_allowed()
    try:
        value = parse(request.body, request.content_type, {kind: _TYPES[target.group] + kind})
    except NoJson as error:
        raise bad_request(str(error)) from None
    if not isinstance(value, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind})")
    body = value | {"kind": kind, "apiVersion": target.api_version, "status": _status(kind, value, request)}
    body.setdefault("metadata", {})
    return Answer(body, 201)


def _status(kind: str, value: dict[str, Any], request: Request) -> dict[str, Any]:
    user = {"username": request.user, "groups": list(request.groups) or _GROUPS}
    match kind:
        case "SelfSubjectReview":
            return {"userInfo": user}
        case "TokenReview":
            audiences = (value.get("spec") or {}).get("audiences")
            return {"authenticated": True, "user": user} | ({"audiences": audiences} if audiences else {})
        case "SelfSubjectRulesReview":
            everything: dict[str, Any] = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            paths = {"verbs": ["*"], "nonResourceURLs": ["*"]}
            return {"resourceRules": [everything], "nonResourceRules": [paths], "incomplete": False}
    return {"allowed": True}
