"""One request to the API server, described once: for the wire, for errors, for counting."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlencode

from dra_kit.errors import Invalid
from dra_kit.kube.resources import Resource

_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}


@dataclass(frozen=True, slots=True)
class Call:
    """A request.

    Attributes:
        verb: the Kubernetes verb, as in RBAC rules.
        path: URL path and query.
        subject: what it is about, as ``<plural>.<group>[/<subresource>] [<namespace>/]<name>``.
        rbac_resource: ``<plural>[/<subresource>]``, as in RBAC rules; the path for a request without a resource.
        rbac_group: API group, None for a request without a resource.
        body: JSON to send.
        content_type: of the body.
        name: of the object it is about, empty for a request on a collection or a path.
    """

    verb: str
    path: str
    subject: str
    rbac_resource: str
    rbac_group: str | None = None
    body: bytes | None = field(default=None, repr=False)
    content_type: str = "application/json"
    name: str = ""

    @property
    def method(self) -> str:
        """HTTP method."""
        return _METHODS.get(self.verb, "GET")

    def __str__(self) -> str:
        return f"{self.verb.upper()} {self.subject}"

    @classmethod
    def of_path(cls, path: str) -> Call:
        """Return a GET of a path that is no resource, such as ``/version``."""
        return cls("get", path, path, path)

    @classmethod
    def of_collection(cls, verb: str, resource: Resource, namespace: str = "", *, query: dict[str, str]) -> Call:
        """Return a call on all objects, or on those of one namespace: ``list``, ``watch``, ``create`` and the like."""
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
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> Call:
        """Return a request on one object.

        Raises:
            Invalid: the name, or the namespace of a namespaced resource, is missing or cannot stand in a path; the
                server would take the request for one on the collection.
        """
        tail = f"/{subresource}" if subresource else ""
        where = f"{namespace}/{name}" if resource.namespaced else name
        subject = f"{resource.full_name}{tail} {where}"
        if name in {"", ".", ".."}:
            raise Invalid(f"{verb.upper()} {subject}: {name!r} is no object name")
        if resource.namespaced and namespace in {"", ".", ".."}:
            raise Invalid(f"{verb.upper()} {subject}: {namespace!r} is no namespace; {resource.plural} are namespaced")
        path = resource.path(namespace, name, subresource)
        if query:
            path = _with_query(path, query)
        return cls(verb, path, subject, f"{resource.plural}{tail}", resource.group, body, content_type, name)


def _with_query(path: str, query: dict[str, str]) -> str:
    given = {key: value for key, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path
