"""Roles and their bindings.

Source of the rules: Kubernetes 1.37 ``pkg/apis/rbac/validation`` and ``pkg/apis/rbac/v1/defaults.go``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from typing_extensions import override

from dra_kit.apiserver.authorization.escalation import check_binding, check_role
from dra_kit.apiserver.authorization.rbac import GROUP
from dra_kit.apiserver.kinds.kind import AGE, NAME, Column, Kind
from dra_kit.apiserver.kinds.strategy import Context, PathSegmentNamed
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError, invalid, required, unsupported
from dra_kit.kubernetes.resource.validation.fields import subdomain_problems
from dra_kit.kubernetes.values.json import Object

_SUBJECTS: Final = ("ServiceAccount", "User", "Group")
_SHOWN_SUBJECTS: Final = ", ".join(f'"{kind}"' for kind in _SUBJECTS)


class RoleStrategy(PathSegmentNamed):
    """A role, in a namespace or not.

    Args:
        plural: of its kind.
    """

    def __init__(self, plural: str) -> None:
        self._plural = plural

    @override
    def permit(self, obj: Object, old: Object | None, context: Context) -> None:
        """Refuse a role that gives more than its writer has."""
        check_role(context.rbac, context.user, self._plural, obj, old)

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check that each rule is for resources or for paths."""
        errors = [error for i, rule in enumerate(obj.get("rules") or ()) for error in self._rule(rule, f"rules[{i}]")]
        aggregation = obj.get("aggregationRule")
        if aggregation is not None and not aggregation.get("clusterRoleSelectors"):
            text = "at least one clusterRoleSelector required if aggregationRule is non-nil"
            errors.append(required("aggregationRule.clusterRoleSelectors", text))
        return errors

    def _rule(self, rule: Object, path: str) -> Iterator[FieldError]:
        urls = rule.get("nonResourceURLs") or []
        if urls:
            if self._plural == "roles":
                text = "namespaced rules cannot apply to non-resource URLs"
                yield invalid(f"{path}.nonResourceURLs", urls, text)
            if any(rule.get(field) for field in ("apiGroups", "resources", "resourceNames")):
                text = "rules cannot apply to both regular resources and non-resource URLs"
                yield invalid(f"{path}.nonResourceURLs", urls, text)
        else:
            if not rule.get("apiGroups"):
                yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
            if not rule.get("resources"):
                yield required(f"{path}.resources", "resource rules must supply at least one resource")
        if not rule.get("verbs"):
            yield required(f"{path}.verbs")

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check it as a new one."""
        return self.validate(obj, context)


class BindingStrategy(PathSegmentNamed):
    """A binding, in a namespace or not.

    Args:
        plural: of its kind.
    """

    def __init__(self, plural: str) -> None:
        self._plural = plural

    @property
    def _kinds(self) -> tuple[str, ...]:
        return ("Role", "ClusterRole") if self._plural == "rolebindings" else ("ClusterRole",)

    @override
    def default(self, obj: Object, context: Context) -> None:
        """Set the API group of roles, users and groups: that of RBAC."""
        reference = obj.get("roleRef")
        if reference is not None and not reference.get("apiGroup"):
            reference["apiGroup"] = GROUP
        for subject in obj.get("subjects") or ():
            if not subject.get("apiGroup") and subject.get("kind") in {"User", "Group"}:
                subject["apiGroup"] = GROUP

    @override
    def permit(self, obj: Object, old: Object | None, context: Context) -> None:
        """Refuse a binding whose role gives more than its writer has."""
        check_binding(context.rbac, context.user, self._plural, obj, old)

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check the role, and each subject."""
        errors = list(self._reference(obj.get("roleRef") or {}))
        for i, subject in enumerate(obj.get("subjects") or ()):
            errors += self._subject(subject, f"subjects[{i}]")
        return errors

    def _reference(self, reference: Object) -> Iterator[FieldError]:
        if reference.get("apiGroup", "") != GROUP:
            yield unsupported("roleRef.apiGroup", reference.get("apiGroup", ""), (GROUP,))
        if reference.get("kind", "") not in self._kinds:
            yield unsupported("roleRef.kind", reference.get("kind", ""), self._kinds)
        name = reference.get("name", "")
        if not name:
            yield required("roleRef.name")
        yield from (invalid("roleRef.name", name, text) for text in self.name_problems(name))

    def _subject(self, subject: Object, path: str) -> Iterator[FieldError]:
        name, kind, group = (subject.get(field, "") for field in ("name", "kind", "apiGroup"))
        if not name:
            yield required(f"{path}.name")
        if kind not in _SUBJECTS:
            yield FieldError(f"{path}.kind", ErrorKind.UNSUPPORTED, kind, f"supported values: {_SHOWN_SUBJECTS}")
            return
        wanted = "" if kind == "ServiceAccount" else GROUP
        if kind == "ServiceAccount" and name:
            yield from (invalid(f"{path}.name", name, text) for text in subdomain_problems(name))
        if group != wanted:
            yield unsupported(f"{path}.apiGroup", group, (wanted,))
        if kind == "ServiceAccount" and self._plural == "clusterrolebindings" and not subject.get("namespace"):
            yield required(f"{path}.namespace")

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check it as a new one, and that the role stays."""
        errors = self.validate(obj, context)
        if obj.get("roleRef") != old.get("roleRef"):
            errors.append(invalid("roleRef", obj.get("roleRef"), "cannot change roleRef"))
        return errors


def _subjects(kind: str) -> Column:
    def cell(binding: Object) -> str:
        return ", ".join(
            f"{item['namespace']}/{item['name']}" if kind == "ServiceAccount" else item["name"]
            for item in binding.get("subjects") or ()
            if item["kind"] == kind
        )

    return Column(f"{kind}s", cell, priority=1)


CREATED: Final = Column("Created At", lambda obj: obj["metadata"].get("creationTimestamp", ""), type="date")
_ROLE: Final = Column("Role", lambda obj: f"{obj['roleRef'].get('kind', '')}/{obj['roleRef'].get('name', '')}")
_BINDING: Final = (NAME, _ROLE, AGE, _subjects("User"), _subjects("Group"), _subjects("ServiceAccount"))


def _kind(plural: str, kind: str, strategy: type[RoleStrategy | BindingStrategy], columns: tuple[Column, ...]) -> Kind:
    return Kind(GROUP, plural, kind, not plural.startswith("cluster"), {"v1": f"rbac/v1.{kind}"}, strategy(plural),
                create_on_update=True, columns=columns, deletion_status=True)  # fmt: skip


KINDS: Final = (
    _kind("roles", "Role", RoleStrategy, (NAME, CREATED)),
    _kind("clusterroles", "ClusterRole", RoleStrategy, (NAME, CREATED)),
    _kind("rolebindings", "RoleBinding", BindingStrategy, _BINDING),
    _kind("clusterrolebindings", "ClusterRoleBinding", BindingStrategy, _BINDING),
)
