"""What the account may do, asked by SelfSubjectAccessReviews."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from dra_kit.errors import KubeError
from dra_kit.kube.client import Client
from dra_kit.kube.resources import Resource
from dra_kit.operation.checks.finding import Finding, fail, ok, warn

Account: TypeAlias = Literal["node", "controller", "user"]

_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
_SUBJECT_REVIEWS: Final = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)


@dataclass(frozen=True, slots=True)
class Right:
    """One that is needed, as in RBAC rules.

    Attributes:
        verb: such as ``get``.
        group: API group, empty for the core group.
        resource: with its subresource: ``resourceclaims/status``.
        needed_for: what does not work without it.
    """

    verb: str
    group: str
    resource: str
    needed_for: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"


def _rights(group: str, resource: str, verbs: str, needed_for: str) -> list[Right]:
    return [Right(verb, group, resource, needed_for) for verb in verbs.split()]


RIGHTS: Final[dict[Account, Sequence[Right]]] = {
    "node": [
        *_rights("resource.k8s.io", "resourceclaims", "get", "preparing claims"),
        *_rights("resource.k8s.io", "resourceslices", "list watch create update delete", "publishing devices"),
        *_rights("", "nodes", "get", "publishing devices"),
        *_rights("resource.k8s.io", "resourceclaims/status", "patch", "the status of devices"),
        *_rights("events.k8s.io", "events", "create patch", "Events"),
    ],
    "controller": [
        *_rights("resource.k8s.io", "resourceclaims", "list watch", "following claims"),
        *_rights("events.k8s.io", "events", "create patch", "Events"),
    ],
    "user": [
        *_rights("resource.k8s.io", "resourceslices", "list", "dra-kit explain"),
        *_rights("resource.k8s.io", "deviceclasses", "list", "dra-kit explain"),
        *_rights("resource.k8s.io", "resourceclaims", "list", "dra-kit explain and who"),
        *_rights("", "pods", "list", "dra-kit explain and who"),
        *_rights("", "nodes", "list", "dra-kit explain and check"),
    ],
}
"""What an account must be allowed; those of the roles are rules of the chart, which a test compares."""


async def check_rights(client: Client, account: Account) -> list[Finding]:
    """A line for each right that is missing, one for all when none is.

    Args:
        client: of the account.
        account: what it is for.
    """
    rights = RIGHTS[account]
    try:
        name = await _name(client)
        answers = await asyncio.gather(*(_may(client, right) for right in rights))
    except KubeError as error:
        return [warn("rights", f"not known: {error}", "look at the API server")]
    missing = [right for right, may in zip(rights, answers, strict=True) if not may]
    if not missing:
        return [ok("rights", f"{name} may do all that {_title(account)} needs")]
    make = warn if account == "user" else fail
    return [
        make(
            "rights", f"{name} may not {right}, which {right.needed_for} needs",
            "let a ClusterRole allow it" if account == "user" else "install the chart's ClusterRole, or its rule",
        )
        for right in missing
    ]  # fmt: skip


def _title(account: Account) -> str:
    return "a user of dra-kit" if account == "user" else f"the {account}"


async def _name(client: Client) -> str:
    review = await client.create(
        _SUBJECT_REVIEWS, {"apiVersion": _SUBJECT_REVIEWS.api_version, "kind": _SUBJECT_REVIEWS.kind}
    )
    return str(((review.get("status") or {}).get("userInfo") or {}).get("username") or "this account")


async def _may(client: Client, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes: dict[str, Any] = {"verb": right.verb, "group": right.group, "resource": resource}
    if subresource:
        attributes["subresource"] = subresource
    review = await client.create(
        _ACCESS_REVIEWS,
        {
            "apiVersion": _ACCESS_REVIEWS.api_version,
            "kind": _ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": attributes},
        },
    )
    return bool((review.get("status") or {}).get("allowed"))
