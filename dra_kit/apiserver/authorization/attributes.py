"""Questions to an authorizer, and its answers.

Source: k8s.io/apiserver 0.37 ``pkg/authorization/authorizer`` and ``pkg/endpoints/handlers/responsewriters/errors.go``.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from dra_kit.apiserver.answers import Refusal, forbidden_path, unauthorized_for
from dra_kit.apiserver.authorization.users import User
from dra_kit.kubernetes.resource.field_errors import go_quote


class Attributes(Struct, frozen=True):
    """What somebody wants to do.

    Attributes:
        verb: such as ``create`` or ``deletecollection``; of a path the method in lower case.
        group: API group, empty for the core group.
        resource: plural of the kind; empty for a path.
        subresource: of it, empty for none.
        namespace: empty for the whole cluster.
        name: of the object, empty for all.
        path: of a request that is for no resource; empty for resources.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    is_path: bool = False

    @property
    def full_resource(self) -> str:
        """``<resource>/<subresource>``, as in the rules of a role."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Decision(Struct, frozen=True):
    """The answer.

    Attributes:
        allowed: yes or no.
        reason: by which binding, or what went wrong on the way.
    """

    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    """Who decides."""

    def authorize(self, user: User, attributes: Attributes) -> Decision:
        """Return whether a user may do it."""
        ...


def denied(user: User, attributes: Attributes, decision: Decision) -> Refusal:
    """Return 403, in the words of the API server."""
    who = f"User {go_quote(user.name)} cannot {attributes.verb}"
    reason = f": {decision.reason}" if decision.reason else ""
    if attributes.is_path:
        return forbidden_path(f"{who} path {go_quote(attributes.path)}{reason}")
    where = f"in the namespace {go_quote(attributes.namespace)}" if attributes.namespace else "at the cluster scope"
    what = f"resource {go_quote(attributes.full_resource)} in API group {go_quote(attributes.group)} {where}"
    return unauthorized_for(attributes.group, attributes.resource, attributes.name, f"{who} {what}{reason}")


def require(authorizer: Authorizer, user: User, attributes: Attributes) -> None:
    """Refuse what a user may not do.

    Raises:
        Refusal: 403, the user may not.
    """
    decision = authorizer.authorize(user, attributes)
    if not decision.allowed:
        raise denied(user, attributes, decision)
