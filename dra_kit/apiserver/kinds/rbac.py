"""Roles and bindings; a user cannot grant rights that they lack.

Sources: Kubernetes 1.37 ``pkg/apis/rbac/validation`` and ``pkg/apis/rbac/v1/defaults.go``; Kubernetes 1.37
``pkg/registry/rbac/*/policybased`` and ``pkg/registry/rbac/escalation_check.go``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from typing_extensions import override

from dra_kit.apiserver.authentication import User
from dra_kit.apiserver.authorization import (
    GROUP,
    AuthorizationAttributes,
    Rbac,
    RoleNotFound,
    Rule,
    quoted_list,
    shown,
    uncovered_rules,
)
from dra_kit.apiserver.kinds.kind import Kind, PathSegmentNameStrategy, StrategyContext
from dra_kit.apiserver.status_errors import StatusError, bad_request, forbidden_object, not_found
from dra_kit.apiserver.tables import AGE, CREATED, NAME, Column
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    go_quote,
    invalid,
    required,
    unsupported,
)
from dra_kit.kubernetes.resource.validation.fields import label_selector_errors, subdomain_problems
from dra_kit.kubernetes.values.json import Object

_SUBJECTS: Final = ("ServiceAccount", "User", "Group")
_REFERENCE: Final = {"APIGroup": "apiGroup", "Kind": "kind", "Name": "name"}
"""The fields of a reference to a role: as Kubernetes shows them in errors -> as they are written."""


class RoleStrategy(PathSegmentNameStrategy):
    """A role, in a namespace or not."""

    def __init__(self, plural: str) -> None:
        self._plural = plural

    @override
    def permit(self, obj: Object, old: Object | None, context: StrategyContext) -> None:
        """Reject a role with more rights than its writer has."""
        check_role_escalation(context.rbac, context.user, self._plural, obj, old)

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check that each rule is for resources or for paths."""
        rules = [(rule, f"rules[{i}]") for i, rule in enumerate(obj.get("rules") or ())]
        errors = [error for rule, path in rules for error in self._rule(rule, path)]
        if obj.get("aggregationRule") is not None:
            errors += _aggregation(obj["aggregationRule"])
        return errors + [required(f"{path}.verbs") for rule, path in rules if not rule.get("verbs")]

    def _rule(self, rule: Object, path: str) -> Iterator[FieldError]:
        urls = rule.get("nonResourceURLs") or []
        if urls:
            if self._plural == "roles":
                text = "namespaced rules cannot apply to non-resource URLs"
                yield invalid(f"{path}.nonResourceURLs", urls, text)
            if any(rule.get(field) for field in ("apiGroups", "resources", "resourceNames")):
                text = "rules cannot apply to both regular resources and non-resource URLs"
                yield invalid(f"{path}.nonResourceURLs", urls, text)
            return
        if not rule.get("apiGroups"):
            yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield required(f"{path}.resources", "resource rules must supply at least one resource")


def _aggregation(rule: Object) -> Iterator[FieldError]:
    selectors = rule.get("clusterRoleSelectors") or ()
    if not selectors:
        text = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        yield required("aggregationRule.clusterRoleSelectors", text)
    for i, selector in enumerate(selectors):
        path = f"aggregationRule.clusterRoleSelectors[{i}]"
        if errors := list(label_selector_errors(selector, path)):
            yield from errors
            yield invalid(path, None, "invalid label selector.")


class RoleBindingStrategy(PathSegmentNameStrategy):
    """A binding, in a namespace or not."""

    def __init__(self, plural: str) -> None:
        self._plural = plural

    @property
    def _kinds(self) -> tuple[str, ...]:
        return ("Role", "ClusterRole") if self._plural == "rolebindings" else ("ClusterRole",)

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set the API group of roles, users and groups: that of RBAC."""
        reference = obj.get("roleRef")
        if reference is not None and not reference.get("apiGroup"):
            reference["apiGroup"] = GROUP
        for subject in obj.get("subjects") or ():
            if not subject.get("apiGroup") and subject.get("kind") in {"User", "Group"}:
                subject["apiGroup"] = GROUP

    @override
    def permit(self, obj: Object, old: Object | None, context: StrategyContext) -> None:
        """Reject a binding to a role with more rights than its writer has."""
        check_binding_escalation(context.rbac, context.user, self._plural, obj, old)

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check the role, and each subject; names that are missing come last."""
        nameless = [] if (obj.get("roleRef") or {}).get("name") else [required("roleRef.name")]
        return [*self._errors(obj), *_nameless(obj), *nameless]

    def _errors(self, obj: Object, *, named: bool = False) -> Iterator[FieldError]:
        reference = obj.get("roleRef") or {}
        yield from self._reference(reference)
        if named and not reference.get("name"):
            yield required("roleRef.name")
        for i, subject in enumerate(obj.get("subjects") or ()):
            yield from self._subject(subject, f"subjects[{i}]")

    def _reference(self, reference: Object) -> Iterator[FieldError]:
        if reference.get("apiGroup", "") != GROUP:
            yield unsupported("roleRef.apiGroup", reference.get("apiGroup", ""), (GROUP,))
        if reference.get("kind", "") not in self._kinds:
            yield unsupported("roleRef.kind", reference.get("kind", ""), self._kinds, in_order=True)
        name = reference.get("name", "")
        yield from (invalid("roleRef.name", name, text) for text in self.name_problems(name))

    def _subject(self, subject: Object, path: str) -> Iterator[FieldError]:
        name, kind, group = (subject.get(field, "") for field in ("name", "kind", "apiGroup"))
        if kind not in _SUBJECTS:
            yield unsupported(f"{path}.kind", kind, _SUBJECTS, in_order=True)
            return
        wanted = "" if kind == "ServiceAccount" else GROUP
        if kind == "ServiceAccount" and name:
            yield from (invalid(f"{path}.name", name, text) for text in subdomain_problems(name))
        if group != wanted:
            yield unsupported(f"{path}.apiGroup", group, (wanted,))
        if kind == "ServiceAccount" and self._plural == "clusterrolebindings" and not subject.get("namespace"):
            yield required(f"{path}.namespace")

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check it like a new one, and that the role does not change."""
        errors = list(self._errors(obj, named=True))
        if obj.get("roleRef") != old.get("roleRef"):
            reference = obj.get("roleRef") or {}
            shown = {go: reference.get(field, "") for go, field in _REFERENCE.items()}
            errors.append(invalid("roleRef", shown, "field is immutable"))
        return [*errors, *_nameless(obj)]


def _nameless(binding: Object) -> Iterator[FieldError]:
    subjects = enumerate(binding.get("subjects") or ())
    return (required(f"subjects[{i}].name") for i, subject in subjects if not subject.get("name"))


def _subjects(kind: str) -> Column:
    def cell(binding: Object) -> str:
        return ", ".join(
            f"{item.get('namespace', '')}/{item['name']}" if kind == "ServiceAccount" else item["name"]
            for item in binding.get("subjects") or ()
            if item["kind"] == kind
        )

    return Column(f"{kind}s", cell, priority=1)


_ROLE: Final = Column("Role", lambda obj: f"{obj['roleRef'].get('kind', '')}/{obj['roleRef'].get('name', '')}")
_BINDING: Final = (NAME, _ROLE, AGE, _subjects("User"), _subjects("Group"), _subjects("ServiceAccount"))


def _kind(
    plural: str, kind: str, strategy: type[RoleStrategy | RoleBindingStrategy], columns: tuple[Column, ...]
) -> Kind:
    return Kind(GROUP, plural, kind, not plural.startswith("cluster"), {"v1": f"rbac/v1.{kind}"}, strategy(plural),
                create_on_update=True, columns=columns, deletion_status=True)  # fmt: skip


RBAC_KINDS: Final = (
    _kind("roles", "Role", RoleStrategy, (NAME, CREATED)),
    _kind("clusterroles", "ClusterRole", RoleStrategy, (NAME, CREATED)),
    _kind("rolebindings", "RoleBinding", RoleBindingStrategy, _BINDING),
    _kind("clusterrolebindings", "ClusterRoleBinding", RoleBindingStrategy, _BINDING),
)
_EVERYTHING: Final[Sequence[Rule]] = (
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
)
_COLLECTED: Final = ("finalizers", "managedFields", "ownerReferences", "resourceVersion", "generation")


def check_role_escalation(rbac: Rbac, user: User, plural: str, role: Object, old: Object | None) -> None:
    """Reject a role with rights that its writer does not have, unless the writer may ``escalate`` it.

    Raises:
        StatusError: 403.
    """
    if user.is_master or _only_collected(role, old):
        return
    namespace = role["metadata"].get("namespace", "")
    name = "" if old is None else role["metadata"]["name"]
    if rbac.authorize(user, AuthorizationAttributes("escalate", GROUP, plural, namespace=namespace, name=name)).allowed:
        return
    _confirm(rbac, user, plural, role, role.get("rules") or ())
    if role.get("aggregationRule") or (old or {}).get("aggregationRule"):
        text = "must have cluster-admin privileges to use the aggregationRule"
        if uncovered_rules(_held(rbac, user, "", []), _EVERYTHING):
            raise forbidden_object(GROUP, plural, role["metadata"].get("name", ""), text)


def check_binding_escalation(rbac: Rbac, user: User, plural: str, binding: Object, old: Object | None) -> None:
    """Reject a binding to rights that its writer does not have, unless the writer may ``bind`` the role.

    Raises:
        StatusError: 403, or 404 if the role does not exist.
    """
    if user.is_master or _only_collected(binding, old):
        return
    reference = binding.get("roleRef") or {}
    namespace = binding["metadata"].get("namespace", "")
    resource = "roles" if reference.get("kind") == "Role" else "clusterroles"
    name = reference.get("name", "")
    if reference.get("kind") not in {"Role", "ClusterRole"}:
        raise StatusError(500, "", f"unsupported role reference kind: {go_quote(reference.get('kind', ''))}")
    asked = AuthorizationAttributes("bind", reference.get("apiGroup", ""), resource, namespace=namespace, name=name)
    if rbac.authorize(user, asked).allowed:
        return
    if resource == "roles" and not namespace:
        raise bad_request("Namespace parameter required.")
    if not name:
        raise bad_request("Name parameter required.")
    try:
        rules = rbac.rules_of(reference, namespace)
    except RoleNotFound:
        raise not_found(GROUP, plural, name) from None
    _confirm(rbac, user, plural, binding, rules)


def _confirm(rbac: Rbac, user: User, plural: str, obj: Object, rules: Sequence[Rule]) -> None:
    problems: list[str] = []
    lacking = uncovered_rules(_held(rbac, user, obj["metadata"].get("namespace", ""), problems), rules)
    if not lacking:
        return
    listed = "\n".join(sorted(map(shown, lacking)))
    text = (
        f"user {go_quote(user.name)} (groups={quoted_list(user.groups)}) is attempting to grant RBAC permissions not "
        f"currently held:\n{listed}"
    )
    if problems:
        text += f"; resolution errors: [{', '.join(problems)}]"
    raise forbidden_object(GROUP, plural, obj["metadata"].get("name", ""), text)


def _held(rbac: Rbac, user: User, namespace: str, problems: list[str]) -> list[Rule]:
    return [granted.rule for granted in rbac.granted(user, namespace, problems)]


def _only_collected(obj: Object, old: Object | None) -> bool:
    """Return whether only fields change that the garbage collector changes."""
    return old is not None and _essence(obj) == _essence(old)


def _essence(obj: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _COLLECTED and value}
    return {**{key: value for key, value in obj.items() if value}, "metadata": metadata}
