"""What the account may do, asked by SelfSubjectAccessReviews."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.resources import Resource
from dra_kit.errors import KubeError
from dra_kit.operation.checks.finding import Finding, fail, ok, warn
from dra_kit.operation.checks.needed import Account, Driven, Right, needed

_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
_SUBJECT_REVIEWS: Final = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)


async def check_rights(client: Client, account: Account, driven: Driven) -> list[Finding]:
    """Return a finding for each right that is missing, one for all when none is.

    Args:
        client: of the account.
        account: what it is for.
        driven: whose it is.
    """
    rights = needed(account, driven)
    try:
        name = await _name(client)
        answers = await asyncio.gather(*(_may(client, right) for right in rights))
    except KubeError as error:
        return [warn("rights", f"not known: {error}", "look at the API server")]
    missing = [right for right, may in zip(rights, answers, strict=True) if not may]
    if not missing:
        return [ok("rights", f"{name} may do all that {_title(account, driven)} needs{_but(account, driven)}")]
    make = warn if account == "user" else fail
    return [
        make(
            "rights", f"{name} may not {right}, which {right.needed_for} needs",
            "let a ClusterRole allow it" if account == "user" else _remedy(right),
        )
        for right in missing
    ]  # fmt: skip


def _title(account: Account, driven: Driven) -> str:
    if account == "user":
        return "a user of dra-kit"
    return f"the {account}{f' of {driven.name}' if driven.name else ''}"


def _but(account: Account, driven: Driven) -> str:
    """Return what was not asked for."""
    if account == "user" or driven.code is not None:
        return ""
    return "; give a TARGET for what its code needs beside that"


def _remedy(right: Right) -> str:
    if right.needed_for.startswith(("policy", "effects", "cluster provider", "binder", "taint rules")):
        return "install the chart with the values that dra-kit chart TARGET --values FILE makes"
    return "install the chart's roles, or that rule"


async def _name(client: Client) -> str:
    review = await client.create(
        _SUBJECT_REVIEWS, {"apiVersion": _SUBJECT_REVIEWS.api_version, "kind": _SUBJECT_REVIEWS.kind}
    )
    return str(((review.get("status") or {}).get("userInfo") or {}).get("username") or "this account")


async def _may(client: Client, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    given = {"subresource": subresource, "name": right.name, "namespace": right.namespace}
    attributes: dict[str, Any] = {"verb": right.verb, "group": right.group, "resource": resource}
    attributes |= {key: value for key, value in given.items() if value}
    review = await client.create(
        _ACCESS_REVIEWS,
        {
            "apiVersion": _ACCESS_REVIEWS.api_version,
            "kind": _ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": attributes},
        },
    )
    return bool((review.get("status") or {}).get("allowed"))
