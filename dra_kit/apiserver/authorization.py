"""Role-based access control: what the roles and bindings of a cluster allow.

Source: Kubernetes 1.37 ``plugin/pkg/auth/authorizer/rbac`` and ``pkg/registry/rbac/validation``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from dra_kit.apiserver.authorization.attributes import Attributes, Decision
from dra_kit.apiserver.authorization.rules import Rule, allows
from dra_kit.apiserver.authorization.users import User
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.values.json import Object

GROUP: Final = "rbac.authorization.k8s.io"
CLUSTER_ROLES: Final = f"clusterroles.{GROUP}"
CLUSTER_ROLE_BINDINGS: Final = f"clusterrolebindings.{GROUP}"
ROLES: Final = f"roles.{GROUP}"
ROLE_BINDINGS: Final = f"rolebindings.{GROUP}"


class RoleNotFound(LookupError):
    """A binding names a role that does not exist; the text is the API server's."""


class Granted(Struct, frozen=True):
    """A rule that somebody has.

    Attributes:
        rule: what it allows.
        through: by which binding, in words.
    """

    rule: Rule
    through: str


class Rbac:
    """Decides by roles and bindings; the group ``system:masters`` needs none.

    Args:
        lookup: an object by resource (``<plural>.<group>``) and key (``<namespace>/<name>`` or ``<name>``).
        listed: all objects of a resource whose keys have a prefix, in their order.

    Attributes:
        audit: called with each decision; None for nobody.
    """

    def __init__(
        self, lookup: Callable[[str, str], Object | None], listed: Callable[[str, str], Iterable[Object]]
    ) -> None:
        self._lookup, self._listed = lookup, listed
        self.audit: Callable[[User, Attributes, Decision], None] | None = None

    def authorize(self, user: User, attributes: Attributes) -> Decision:
        """See :class:`dra_kit.apiserver.authorization.attributes.Authorizer`."""
        decision = self._decide(user, attributes)
        if self.audit is not None:
            self.audit(user, attributes, decision)
        return decision

    def _decide(self, user: User, attributes: Attributes) -> Decision:
        if user.is_master:
            return Decision(allowed=True)
        problems: list[str] = []
        for granted in self.granted(user, attributes.namespace, problems):
            if allows(granted.rule, attributes):
                return Decision(allowed=True, reason=f"RBAC: allowed by {granted.through}")
        distinct = list(dict.fromkeys(problems))
        text = distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
        return Decision(allowed=False, reason=f"rbac: RBAC: {text}" if distinct else "")

    def granted(self, user: User, namespace: str, problems: list[str]) -> Iterator[Granted]:
        """Yield all rules that a user has in a namespace, or in the whole cluster if it is empty.

        Args:
            user: whose.
            namespace: where.
            problems: takes a text for each role that does not exist.
        """
        for resource, prefix in ((CLUSTER_ROLE_BINDINGS, ""), (ROLE_BINDINGS, f"{namespace}/")):
            if resource == ROLE_BINDINGS and not namespace:
                return
            for binding in self._listed(resource, prefix):
                subject = _subject_of(binding, user, namespace if prefix else "")
                if subject is None:
                    continue
                through = _described(binding, subject)
                try:
                    rules = self.rules_of(binding["roleRef"], namespace if prefix else "")
                except RoleNotFound as error:
                    problems.append(str(error))
                    continue
                yield from (Granted(rule, through) for rule in rules)

    def rules_of(self, reference: Object, namespace: str) -> list[Rule]:
        """Return the rules of the role that a binding refers to.

        Raises:
            RoleNotFound: there is none.
        """
        name = reference.get("name", "")
        is_role = reference.get("kind") == "Role"
        resource, key = (ROLES, f"{namespace}/{name}") if is_role else (CLUSTER_ROLES, name)
        role = self._lookup(resource, key)
        if role is None:
            raise RoleNotFound(f"{'role' if is_role else 'clusterrole'}.{GROUP} {go_quote(name)} not found")
        return list(role.get("rules") or ())


def _subject_of(binding: Object, user: User, namespace: str) -> Object | None:
    return next((item for item in binding.get("subjects") or () if _is(item, user, namespace)), None)


def _is(subject: Object, user: User, namespace: str) -> bool:
    name = subject.get("name", "")
    match subject.get("kind"):
        case "User":
            return bool(user.name == name)
        case "Group":
            return name in user.groups
        case "ServiceAccount":
            where = subject.get("namespace") or namespace
            return bool(where) and user.name == f"system:serviceaccount:{where}:{name}"
    return False


def _described(binding: Object, subject: Object) -> str:
    metadata, reference = binding["metadata"], binding["roleRef"]
    namespace = metadata.get("namespace", "")
    kind, name = ("RoleBinding", f"{metadata['name']}/{namespace}") if namespace else (
        "ClusterRoleBinding", metadata["name"])  # fmt: skip
    whom = subject.get("name", "")
    if subject.get("kind") == "ServiceAccount":
        whom = f"{whom}/{subject.get('namespace') or namespace}"
    role = f"{reference.get('kind', '')} {go_quote(reference.get('name', ''))}"
    return f"{kind} {go_quote(name)} of {role} to {subject.get('kind', '')} {go_quote(whom)}"
