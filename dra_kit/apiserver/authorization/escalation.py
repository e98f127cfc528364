"""Nobody gives away rights that he does not have.

Source: Kubernetes 1.37 ``pkg/registry/rbac/*/policybased`` and ``pkg/registry/rbac/escalation_check.go``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_kit.apiserver.answers import forbidden, not_found
from dra_kit.apiserver.authorization.attributes import Attributes
from dra_kit.apiserver.authorization.rbac import GROUP, Rbac, RoleNotFound
from dra_kit.apiserver.authorization.rules import Rule, missing, quoted_list, shown
from dra_kit.apiserver.authorization.users import User
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.values.json import Object

_EVERYTHING: Final[Sequence[Rule]] = (
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
)
_COLLECTED: Final = ("finalizers", "managedFields", "ownerReferences", "resourceVersion", "generation")


def check_role(rbac: Rbac, user: User, plural: str, role: Object, old: Object | None) -> None:
    """Refuse a role with rights that its writer does not have, unless the writer may ``escalate`` it.

    Raises:
        Refusal: 403.
    """
    if user.is_master or _only_collected(role, old):
        return
    namespace = role["metadata"].get("namespace", "")
    name = "" if old is None else role["metadata"]["name"]
    if rbac.authorize(user, Attributes("escalate", GROUP, plural, namespace=namespace, name=name)).allowed:
        return
    _confirm(rbac, user, plural, role, role.get("rules") or ())
    if role.get("aggregationRule") or (old or {}).get("aggregationRule"):
        text = "must have cluster-admin privileges to use the aggregationRule"
        if missing(_held(rbac, user, "", []), _EVERYTHING):
            raise forbidden(GROUP, plural, role["metadata"].get("name", ""), text)


def check_binding(rbac: Rbac, user: User, plural: str, binding: Object, old: Object | None) -> None:
    """Refuse a binding to rights that its writer does not have, unless the writer may ``bind`` the role.

    Raises:
        Refusal: 403, or 404 where there is no such role.
    """
    if user.is_master or _only_collected(binding, old):
        return
    reference = binding.get("roleRef") or {}
    namespace = binding["metadata"].get("namespace", "")
    resource = "roles" if reference.get("kind") == "Role" else "clusterroles"
    name = reference.get("name", "")
    asked = Attributes("bind", reference.get("apiGroup", ""), resource, namespace=namespace, name=name)
    if rbac.authorize(user, asked).allowed:
        return
    try:
        rules = rbac.rules_of(reference, namespace)
    except RoleNotFound:
        raise not_found(GROUP, plural, name) from None
    _confirm(rbac, user, plural, binding, rules)


def _confirm(rbac: Rbac, user: User, plural: str, obj: Object, rules: Sequence[Rule]) -> None:
    problems: list[str] = []
    lacking = missing(_held(rbac, user, obj["metadata"].get("namespace", ""), problems), rules)
    if not lacking:
        return
    listed = "\n".join(sorted(map(shown, lacking)))
    text = (
        f"user {go_quote(user.name)} (groups={quoted_list(user.groups)}) is attempting to grant RBAC permissions not "
        f"currently held:\n{listed}"
    )
    if problems:
        text += f"; resolution errors: [{', '.join(problems)}]"
    raise forbidden(GROUP, plural, obj["metadata"].get("name", ""), text)


def _held(rbac: Rbac, user: User, namespace: str, problems: list[str]) -> list[Rule]:
    return [granted.rule for granted in rbac.granted(user, namespace, problems)]


def _only_collected(obj: Object, old: Object | None) -> bool:
    """Return whether nothing changes but what the garbage collector needs to change."""
    return old is not None and _essence(obj) == _essence(old)


def _essence(obj: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _COLLECTED and value}
    return {**{key: value for key, value in obj.items() if value}, "metadata": metadata}
