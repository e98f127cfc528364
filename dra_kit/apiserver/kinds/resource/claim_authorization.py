"""Who may write which part of a claim's status (DRAResourceClaimGranularStatusAuthorization).

Source: Kubernetes 1.37 ``pkg/registry/resource/resourceclaim/strategy.go``. Subresources and verbs are synthetic: no
request has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_kit.apiserver.authorization.attributes import Attributes, Decision, denied
from dra_kit.apiserver.authorization.users import NODE_NAME
from dra_kit.apiserver.kinds.strategy import Context
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden
from dra_kit.kubernetes.resource.schema.decode import prune
from dra_kit.kubernetes.values.json import Object

_GROUP: Final = "resource.k8s.io"
_PLURAL: Final = "resourceclaims"
_STATUS: Final = "resource/v1.ResourceClaimStatus"


def status_rights(obj: Object, old: Object, context: Context) -> Iterator[FieldError]:
    """Yield what the writer of a status lacks.

    Args:
        obj: the claim with its new status.
        old: the claim before.
        context: of the request.
    """
    if context.user.is_master:
        return
    status, before = (prune(one.get("status") or {}, _STATUS) for one in (obj, old))
    if any((status.get(field) or None) != (before.get(field) or None) for field in ("allocation", "reservedFor")):
        asked = Attributes(context.verb, _GROUP, _PLURAL, "binding")
        decision = context.rbac.authorize(context.user, asked)
        if not decision.allowed:
            needed = f'resource="resourceclaims/binding", verb="{context.verb}"'
            what = "changing status.allocation or status.reservedFor"
            yield forbidden("status.allocation", _text(what, needed, context, asked, decision))
    allocation = status.get("allocation")
    if allocation:
        for driver in sorted(_changed(status, before)):
            yield from _driver(driver, obj["metadata"]["namespace"], allocation, context)


def _driver(driver: str, namespace: str, allocation: Object, context: Context) -> Iterator[FieldError]:
    scopes = ["arbitrary-node"]
    node = _node(allocation)
    if node is not None and context.user.extra.get(NODE_NAME) == node:
        scopes.insert(0, "associated-node")
    verbs = [f"{scope}:{context.verb}" for scope in scopes]
    asked = [Attributes(verb, _GROUP, _PLURAL, "driver", namespace, driver) for verb in verbs]
    decisions = [context.rbac.authorize(context.user, one) for one in asked]
    if not any(decision.allowed for decision in decisions):
        needed = f'resource="resourceclaims/driver", verb="[{" ".join(verbs)}]"'
        text = _text("changing status.devices", needed, context, asked[0], decisions[0])
        yield forbidden("status.devices", text)


def _text(what: str, needed: str, context: Context, asked: Attributes, decision: Decision) -> str:
    return f"{what} requires {needed} permission: {denied(context.user, asked, decision).message}"


def _node(allocation: Object) -> tuple[str, ...] | None:
    """Return the only node of an allocation, as the token of a pod there names it; None if it is for others."""
    selector: Object = allocation.get("nodeSelector") or {}
    terms: list[Object] = selector.get("nodeSelectorTerms") or []
    fields = [field for term in terms for field in term.get("matchFields") or ()]
    if len(terms) != 1 or len(fields) != 1 or terms[0].get("matchExpressions"):
        return None
    values = tuple(fields[0].get("values") or ())
    by_name = (fields[0].get("key"), fields[0].get("operator")) == ("metadata.name", "In")
    return values if by_name and len(values) == 1 else None


def _changed(status: Object, before: Object) -> set[str]:
    """Return the drivers whose entries of ``status.devices`` are others than before."""
    new, old = ({_key(entry): entry for entry in one.get("devices") or ()} for one in (status, before))
    return {key[0] for key in {*new, *old} if new.get(key) != old.get(key)}


def _key(entry: Object) -> tuple[str, ...]:
    return tuple(str(entry.get(name) or "") for name in ("driver", "pool", "device", "shareID"))
