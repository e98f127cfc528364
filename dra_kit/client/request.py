"""One request to the API server and its response: errors from Status objects, Warning headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from dra_kit.client.resources import Resource
from dra_kit.errors import Conflict, Forbidden, Gone, Invalid, KubeError, NotFound, Unavailable
from dra_kit.kubernetes.values import json

_KINDS: dict[int, type[KubeError]] = {
    **dict.fromkeys((401, 403), Forbidden),
    **dict.fromkeys((400, 413, 422), Invalid),
    **dict.fromkeys((408, 429), Unavailable),
    404: NotFound,
    409: Conflict,
    410: Gone,
}
_TEXT_LIMIT = 2000  # a response that is not a Status may be a proxy's whole HTML page
# the RBAC authorizer's text: User "…" cannot get resource "pods" in API group "" in the namespace "…"
_RBAC_REFUSAL = re.compile(r"cannot (?P<verb>\S+) (?:resource|path) \"")
# Warning: 299 - "text" (RFC 7234, 5.5; a quoted text escapes " and \)
_WARNING = re.compile(r'299 \S+ "(?P<text>(?:[^"\\]|\\.)*)"')


def decode_object(call: ClientRequest, body: bytes) -> dict[str, Any]:
    """Return the object in a response.

    Raises:
        KubeError: the body is not a JSON object.
    """
    try:
        value = json.loads(body)
    except ValueError as error:
        raise KubeError(f"{call}: the response is not JSON: {error}; is the server a Kubernetes API server?") from error
    if not isinstance(value, dict):
        text = "empty" if not body else f"JSON but no object: {_one_line(body.decode(errors='replace'))[:100]}"
        raise KubeError(f"{call}: the response is {text}; is the server a Kubernetes API server?")
    return value


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request.

    Attributes:
        verb: the Kubernetes verb, as in RBAC rules.
        path: URL path and query.
        subject: what it is about, as ``<plural>.<group>[/<subresource>] [<namespace>/]<name>``.
        rbac_resource: ``<plural>[/<subresource>]``, as in RBAC rules; the path for a request without a resource.
        rbac_group: API group, None for a request without a resource.
        name: of the object it is about, empty for a request on a collection or a path.
        accept: media type of the response.
    """

    verb: str
    path: str
    subject: str
    rbac_resource: str
    rbac_group: str | None = None
    body: bytes | None = field(default=None, repr=False)
    content_type: str = "application/json"
    name: str = ""
    accept: str = "application/json"

    @property
    def method(self) -> str:
        """HTTP method."""
        return _METHODS.get(self.verb, "GET")

    def __str__(self) -> str:
        return f"{self.verb.upper()} {self.subject}"

    @classmethod
    def of_path(cls, path: str) -> ClientRequest:
        """Return a GET of a path that is not a resource, such as ``/version``."""
        return cls("get", path, path, path)

    @classmethod
    def of_collection(
        cls, verb: str, resource: Resource, namespace: str = "", *, query: dict[str, str]
    ) -> ClientRequest:
        """Return a request on all objects, or those of one namespace: ``list``, ``watch``, ``create`` and the like."""
        subject = f"{resource.full_name} in {namespace}" if namespace else resource.full_name
        return cls(
            verb, _with_query(resource.path(namespace), query), subject, resource.plural, rbac_group=resource.group
        )

    @classmethod
    def of_object(
        cls,
        verb: str,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> ClientRequest:
        """Return a request on one object.

        Raises:
            Invalid: the name, or the namespace of a namespaced resource, is missing or not valid in a path; the
                server would treat the request as one on the collection.
        """
        tail = f"/{subresource}" if subresource else ""
        where = f"{namespace}/{name}" if resource.namespaced else name
        subject = f"{resource.full_name}{tail} {where}"
        if name in {"", ".", ".."}:
            raise Invalid(f"{verb.upper()} {subject}: {name!r} is not an object name")
        if resource.namespaced and namespace in {"", ".", ".."}:
            raise Invalid(f"{verb.upper()} {subject}: {namespace!r} is not a namespace; {resource.plural} need one")
        path = _with_query(resource.path(namespace, name, subresource), query or {})
        return cls(
            verb, path, subject, f"{resource.plural}{tail}", resource.group, content_type=content_type, name=name
        )


class ClientResponse(Struct, frozen=True):
    """An object as the server sent it, not decoded yet.

    Attributes:
        call: the request that it answers.
        text: JSON; the server writes equal objects as equal text.
    """

    call: ClientRequest
    text: bytes

    def decode(self) -> dict[str, Any]:
        """Return the object.

        Raises:
            KubeError: the text is not a JSON object.
        """
        return decode_object(self.call, self.text)


def error_from_response(call: ClientRequest, code: int, body: bytes) -> KubeError:
    """Return the error for an HTTP response that is not a success: a Status object, or the text of a proxy."""
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("kind") != "Status":
        text = body.decode(errors="replace")
        value = {"message": text if text.strip() else "empty answer"}
    return error_from_status(call, code, value)


def error_from_status(call: ClientRequest, code: int, status: Mapping[str, Any]) -> KubeError:
    """Return the error that a Status object describes; ``code``: HTTP status, or that of a watch's ERROR event."""
    reason = str(status.get("reason") or "")
    text = _one_line(str(status.get("message") or reason or "no message"))
    message = f"{call}: {text} (HTTP {code})"
    kind = _KINDS.get(code, Unavailable if code >= 500 else KubeError)
    if code == 401:
        message += "; the credentials are not valid (any more)"
    elif code == 403:
        message += _rbac_remedy(call, message)
    elif code == 404 and call.name and not _about_object(call, status):
        # a disabled API, a proxy, or a wrong path: the response says nothing about the object
        kind = Unavailable
        message += "; the response is not about the object: is this the right server, and does it serve the API?"
    about = str(_details(status).get("kind") or "")
    return kind(message, status=code, reason=reason, text=text, about=about, causes=_causes(status))


def warning_text(header: str) -> str | None:
    """Return the text of a ``Warning: 299`` header; None for any other warning."""
    match = _WARNING.match(header)
    return re.sub(r"\\(.)", r"\1", match["text"]) if match else None


def _rbac_remedy(call: ClientRequest, message: str) -> str:
    refusal = _RBAC_REFUSAL.search(message)
    if refusal is None:
        return ""  # rejected by admission; no RBAC rule would help
    if call.rbac_group is None:
        return f'; add this RBAC rule: nonResourceURLs: ["{call.rbac_resource}"], verbs: ["{refusal["verb"]}"]'
    return (
        f'; add this RBAC rule: apiGroups: ["{call.rbac_group}"], resources: ["{call.rbac_resource}"], '
        f'verbs: ["{refusal["verb"]}"]'
    )


def _about_object(call: ClientRequest, status: Mapping[str, Any]) -> bool:
    """Return whether a NotFound is about the object: the details contain its name, or that of its namespace."""
    details = _details(status)
    if not details:
        return False
    missing = details.get("name")
    in_namespace = f"/namespaces/{missing}/" in call.path
    return missing == call.name or (details.get("kind") == "namespaces" and in_namespace)


def _causes(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    causes = _details(status).get("causes")
    return [
        (str(cause.get("field") or ""), str(cause.get("message") or cause.get("reason") or ""))
        for cause in (causes if isinstance(causes, list) else ())
        if isinstance(cause, dict)
    ]


def _details(status: Mapping[str, Any]) -> Mapping[str, Any]:
    details = status.get("details")
    return details if isinstance(details, dict) else {}


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_LIMIT else f"{line[:_TEXT_LIMIT]}…"


_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}


def _with_query(path: str, query: dict[str, str]) -> str:
    given = {key: value for key, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path
