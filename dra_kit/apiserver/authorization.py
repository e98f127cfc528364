"""What a user may do: RBAC roles, aggregated roles, bindings, and the decision for one request.

Sources: Kubernetes 1.37 ``plugin/pkg/auth/authorizer/rbac`` and ``pkg/registry/rbac/validation``; k8s.io/apiserver
0.37 ``pkg/authorization/authorizer`` and ``pkg/endpoints/handlers/responsewriters/errors.go``; Kubernetes 1.37
``pkg/apis/rbac/v1/evaluation_helpers.go`` and ``pkg/controller/clusterroleaggregation``; k8s.io/component-helpers 0.37
``auth/rbac/validation``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

from dra_kit.apiserver.authentication import User
from dra_kit.apiserver.status_errors import StatusError, forbidden_path, unauthorized_for
from dra_kit.apiserver.storage import Storage, StorageChange
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.resource.matching import parse_label_selector
from dra_kit.kubernetes.values.json import Object

GROUP: Final = "rbac.authorization.k8s.io"
CLUSTER_ROLES: Final = f"clusterroles.{GROUP}"
CLUSTER_ROLE_BINDINGS: Final = f"clusterrolebindings.{GROUP}"
ROLES: Final = f"roles.{GROUP}"
ROLE_BINDINGS: Final = f"rolebindings.{GROUP}"


class RoleNotFound(LookupError):
    """A binding names a role that does not exist; the text is the API server's."""


Rule: TypeAlias = dict[str, Any]
"""``rbac.authorization.k8s.io/v1 PolicyRule``."""


@cache
def builtin_objects() -> tuple[Object, ...]:
    """Return the roles and bindings of a new cluster of Kubernetes 1.37.1; the objects must not be changed.

    The fields of their metadata are next to the other fields.
    """
    text = files("dra_kit.apiserver").joinpath("builtin_roles.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.splitlines())


class GrantedRule(Struct, frozen=True):
    """A rule that a binding grants to one of its subjects."""

    rule: Rule
    binding: Object
    subject: Object

    @property
    def through(self) -> str:
        """The binding, as the API server describes it in reasons."""
        metadata, reference, subject = self.binding["metadata"], self.binding["roleRef"], self.subject
        namespace = metadata.get("namespace", "")
        kind, name = "ClusterRoleBinding", metadata["name"]
        if namespace:
            kind, name = "RoleBinding", f"{name}/{namespace}"
        whom = subject.get("name", "")
        if subject.get("kind") == "ServiceAccount":
            whom = f"{whom}/{subject.get('namespace') or namespace}"
        role = f"{reference.get('kind', '')} {go_quote(reference.get('name', ''))}"
        return f"{kind} {go_quote(name)} of {role} to {subject.get('kind', '')} {go_quote(whom)}"


class Authorizer(Protocol):
    """Decides about some users."""

    def authorize(self, user: User, attributes: AuthorizationAttributes) -> AuthorizationDecision:
        """Return whether a user is allowed an action, with a reason if this authorizer knows the user."""
        ...


class Rbac:
    """Authorizes by roles and bindings; the group ``system:masters`` may do everything.

    Args:
        lookup: returns an object by resource (``<plural>.<group>``) and key (``<namespace>/<name>`` or ``<name>``).
        listed: returns all objects of a resource whose keys have a prefix, in order.
        first: is asked before the roles; None if roles alone decide.

    Attributes:
        audit: called with each decision; may be None.
    """

    def __init__(
        self,
        lookup: Callable[[str, str], Object | None],
        listed: Callable[[str, str], Iterable[Object]],
        first: Authorizer | None = None,
    ) -> None:
        self._lookup, self._listed, self._first = lookup, listed, first
        self.audit: Callable[[User, AuthorizationAttributes, AuthorizationDecision], None] | None = None

    def authorize(self, user: User, attributes: AuthorizationAttributes) -> AuthorizationDecision:
        """Return whether a user is allowed an action."""
        decision = self._decide(user, attributes)
        if self.audit is not None:
            self.audit(user, attributes, decision)
        return decision

    def _decide(self, user: User, attributes: AuthorizationAttributes) -> AuthorizationDecision:
        if user.is_master:
            return AuthorizationDecision(allowed=True)
        reasons: list[str] = []
        if self._first is not None:
            decision = self._first.authorize(user, attributes)
            if decision.allowed:
                return decision
            reasons += filter(None, [decision.reason])
        problems: list[str] = []
        for granted in self.granted(user, attributes.namespace, problems):
            if rule_allows(granted.rule, attributes):
                return AuthorizationDecision(allowed=True, reason=f"RBAC: allowed by {granted.through}")
        if problems:
            reasons.append(f"rbac: RBAC: {aggregated(problems)}")
        return AuthorizationDecision(allowed=False, reason="\n".join(reasons))

    def granted(self, user: User, namespace: str, problems: list[str]) -> Iterator[GrantedRule]:
        """Yield all rules that a user has in a namespace, or in the whole cluster if it is empty.

        ``problems`` takes a text for each role that does not exist.
        """
        for resource, where in ((CLUSTER_ROLE_BINDINGS, ""), (ROLE_BINDINGS, namespace)):
            if resource == ROLE_BINDINGS and not where:
                return
            for binding in self._listed(resource, f"{where}/" if where else ""):
                subject = next((one for one in binding.get("subjects") or () if _is(one, user, where)), None)
                if subject is None:
                    continue
                try:
                    rules = self.rules_of(binding["roleRef"], where)
                except RoleNotFound as error:
                    problems.append(str(error))
                    continue
                yield from (GrantedRule(rule, binding, subject) for rule in rules)

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


def aggregated(problems: Iterable[str]) -> str:
    """Return problems as the API server shows several errors; each is shown once."""
    distinct = list(dict.fromkeys(problems))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"


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


class AuthorizationAttributes(Struct, frozen=True):
    """The action to authorize.

    Attributes:
        verb: such as ``create`` or ``deletecollection``; for a path, the method in lower case.
        group: the API group; empty for the core group.
        resource: the plural of the kind; empty for a path.
        path: the path of a non-resource request; empty for resources.
        selected_fields: fields and the values that a field selector requires of them.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    is_path: bool = False
    selected_fields: tuple[tuple[str, str], ...] = ()

    @property
    def full_resource(self) -> str:
        """``<resource>/<subresource>``, as in the rules of a role."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class AuthorizationDecision(Struct, frozen=True):
    """The result of an authorization.

    Attributes:
        allowed: yes or no.
        reason: by which binding, or what went wrong on the way.
    """

    allowed: bool
    reason: str = ""


def denied(user: User, attributes: AuthorizationAttributes, decision: AuthorizationDecision) -> StatusError:
    """Return a 403 with the message of the API server."""
    who = f"User {go_quote(user.name)} cannot {attributes.verb}"
    reason = f": {decision.reason}" if decision.reason else ""
    if attributes.is_path:
        return forbidden_path(f"{who} path {go_quote(attributes.path)}{reason}")
    where = f"in the namespace {go_quote(attributes.namespace)}" if attributes.namespace else "at the cluster scope"
    what = f"resource {go_quote(attributes.full_resource)} in API group {go_quote(attributes.group)} {where}"
    return unauthorized_for(attributes.group, attributes.resource, attributes.name, f"{who} {what}{reason}")


def require_allowed(rbac: Rbac, user: User, attributes: AuthorizationAttributes) -> None:
    """Reject an action that the user is not allowed.

    Raises:
        StatusError: 403, the user may not.
    """
    decision = rbac.authorize(user, attributes)
    if not decision.allowed:
        raise denied(user, attributes, decision)


def rule_allows(rule: Rule, attributes: AuthorizationAttributes) -> bool:
    """Return whether one rule allows the action."""
    if not _has(rule, "verbs", attributes.verb):
        return False
    if attributes.is_path:
        return any(_path_covers(url, attributes.path) for url in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames") or ()
    return (
        _has(rule, "apiGroups", attributes.group)
        and any(_resource_matches(item, attributes) for item in rule.get("resources") or ())
        and (not names or attributes.name in names)
    )


def _has(rule: Rule, field: str, value: str) -> bool:
    values = rule.get(field) or ()
    return "*" in values or value in values


def _resource_matches(pattern: str, attributes: AuthorizationAttributes) -> bool:
    if pattern in {"*", attributes.full_resource}:
        return True
    return bool(attributes.subresource) and pattern == f"*/{attributes.subresource}"


def _path_covers(pattern: str, path: str) -> bool:
    if pattern in {"*", path}:
        return True
    return pattern.endswith("*") and path.startswith(pattern.rstrip("*"))


def uncovered_rules(owned: Sequence[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """Return the parts of the wanted rules that no single owned rule covers, those of one resource with all verbs."""
    return _compact([part for rule in wanted for part in _parts(rule) if not any(_covers(one, part) for one in owned)])


def _parts(rule: Rule) -> Iterator[Rule]:
    """Yield a rule as rules with one verb, and one group and resource or one path, each."""
    for group in rule.get("apiGroups") or ():
        for resource in rule.get("resources") or ():
            for verb in rule.get("verbs") or ():
                part: Rule = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                names = rule.get("resourceNames") or ()
                yield from ([{**part, "resourceNames": [name]} for name in names] if names else [part])
    for url in rule.get("nonResourceURLs") or ():
        for verb in rule.get("verbs") or ():
            yield {"nonResourceURLs": [url], "verbs": [verb]}


def _covers(owner: Rule, part: Rule) -> bool:
    if not _has(owner, "verbs", part["verbs"][0]):
        return False
    if "nonResourceURLs" in part:
        return any(_path_covers(url, part["nonResourceURLs"][0]) for url in owner.get("nonResourceURLs") or ())
    resource = part["resources"][0]
    _, slash, subresource = resource.partition("/")
    resources = owner.get("resources") or ()
    named = owner.get("resourceNames") or ()
    return (
        _has(owner, "apiGroups", part["apiGroups"][0])
        and ("*" in resources or resource in resources or (bool(slash) and f"*/{subresource}" in resources))
        and (not named or set(part.get("resourceNames") or [None]) <= set(named))
    )


def _compact(rules: Iterable[Rule]) -> list[Rule]:
    found: dict[object, Rule] = {}
    for rule in rules:
        names = rule.get("resourceNames")
        key = (*rule["apiGroups"], *rule["resources"], *(names or [None])) if "resources" in rule else id(rule)
        if key in found:
            found[key]["verbs"] = [*found[key]["verbs"], *rule["verbs"]]
        else:
            found[key] = dict(rule)
    return list(found.values())


_SHOWN = {"apiGroups": "APIGroups", "resources": "Resources", "nonResourceURLs": "NonResourceURLs",
          "resourceNames": "ResourceNames", "verbs": "Verbs"}  # fmt: skip


def shown(rule: Rule) -> str:
    """Return a rule as in the API server's errors."""
    parts = [f"{name}:{quoted_list(rule[field])}" for field, name in _SHOWN.items() if rule.get(field)]
    return "{" + ", ".join(parts) + "}"


def quoted_list(values: Iterable[str]) -> str:
    """Return strings as Go's ``%q`` writes a slice of them."""
    return "[" + " ".join(go_quote(value) for value in values) + "]"


def aggregate_cluster_roles(storage: Storage) -> Callable[[], None]:
    """Keep the rules of aggregated roles up to date; changes take effect at once. Return what ends that."""
    collecting = {key for key, stored in storage.items(CLUSTER_ROLES) if stored.object.get("aggregationRule")}

    def on_change(change: StorageChange) -> None:
        changed = [change.stored.object, *([change.previous.object] if change.previous else [])]
        if change.stored.object.get("aggregationRule"):
            collecting.add(change.key)
        for key in sorted(collecting):
            stored = storage.get(CLUSTER_ROLES, key)
            if stored is None or not (rule := stored.object.get("aggregationRule")):
                collecting.discard(key)
                continue
            selectors = [parse_label_selector(selector) for selector in rule.get("clusterRoleSelectors") or ()]
            if key != change.key and not any(wanted.matches(role) for wanted in selectors for role in changed):
                continue
            found: list[Rule] = []
            for wanted in selectors:
                for other_key, other in storage.items(CLUSTER_ROLES):
                    if other_key != key and wanted.matches(other.object):
                        found += [item for item in other.object.get("rules") or () if item not in found]
            if found != (stored.object.get("rules") or []):
                storage.update(CLUSTER_ROLES, key, {**stored.object, "rules": found or None})

    return storage.listen(CLUSTER_ROLES, on_change)
