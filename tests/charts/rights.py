"""What a release grants to its accounts, and what accounts asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

from dra_kit.apiserver.authentication import User
from dra_kit.apiserver.authorization import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    AuthorizationAttributes,
    AuthorizationDecision,
    Rbac,
)
from tests.charts.rendering import NAMESPACE, Manifests

Right: TypeAlias = tuple[str, str, str]
"""API group, resource, verb."""


@dataclass
class Audit:
    """What accounts asked for.

    Attributes:
        accounts: whose questions count, by user name.
        asked: for each account the distinct requests, and whether each was allowed.
        users: the accounts as the API server knows them.
    """

    accounts: dict[str, str] = field(default_factory=dict)
    asked: dict[str, dict[AuthorizationAttributes, bool]] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)

    def follow(self, account: str) -> None:
        """From now on its questions count."""
        self.accounts[f"system:serviceaccount:{NAMESPACE}:{account}"] = account
        self.asked[account] = {}

    def __call__(self, user: User, attributes: AuthorizationAttributes, decision: AuthorizationDecision) -> None:
        account = self.accounts.get(user.name)
        if account is not None:
            self.users[account] = user
            self.asked[account][attributes] = decision.allowed

    def refused(self) -> dict[str, list[AuthorizationAttributes]]:
        """What was not allowed."""
        return {name: [one for one, allowed in asked.items() if not allowed] for name, asked in self.asked.items()}

    def lost(self, manifests: Manifests, account: str, right: Right | None = None) -> list[AuthorizationAttributes]:
        """What of all that an account was allowed would not be without a right; discovery is open to everybody."""
        user, decides = self.users[account], rbac(manifests, account, without=right)
        return [
            asked
            for asked, allowed in self.asked[account].items()
            if allowed and not asked.is_path and not decides.authorize(user, asked).allowed
        ]


def granted(manifests: Manifests, account: str) -> Iterator[Right]:
    """All rights of the account's own roles."""
    names = _names(manifests, account)
    for item in manifests.objects:
        if item["kind"] in {"ClusterRole", "Role"} and item["metadata"]["name"] in names:
            for rule in item["rules"]:
                yield from product(rule["apiGroups"], rule["resources"], rule["verbs"])


def rbac(manifests: Manifests, account: str, *, without: Right | None = None) -> Rbac:
    """The release's roles and bindings of one account, which lacks one right."""
    kinds = {"ClusterRole": CLUSTER_ROLES, "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS, "Role": ROLES,
             "RoleBinding": ROLE_BINDINGS}  # fmt: skip
    objects: dict[str, dict[str, Any]] = {resource: {} for resource in kinds.values()}
    names = _names(manifests, account)
    for item in manifests.objects:
        if item["kind"] in kinds and item["metadata"]["name"] in names:
            key = "/".join(filter(None, (item["metadata"].get("namespace"), item["metadata"]["name"])))
            kept = {**item, "rules": list(_single(item["rules"], without))} if "rules" in item else item
            objects[kinds[item["kind"]]][key] = kept
    return Rbac(
        lambda resource, key: objects[resource].get(key),
        lambda resource, prefix: [item for key, item in objects[resource].items() if key.startswith(prefix)],
    )


def _names(manifests: Manifests, account: str) -> set[str]:
    """Names of the roles that are bound to an account, and of their bindings, which have the same."""
    return {account} | {
        item["roleRef"]["name"]
        for item in manifests.objects
        if "roleRef" in item and account in {subject["name"] for subject in item["subjects"]}
    }


def _single(rules: list[dict[str, Any]], without: Right | None) -> Iterator[dict[str, Any]]:
    for rule in rules:
        for right in product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            if right != without:
                group, resource, verb = right
                yield {**rule, "apiGroups": [group], "resources": [resource], "verbs": [verb]}
