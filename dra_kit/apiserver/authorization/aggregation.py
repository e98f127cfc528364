"""ClusterRoles that are made of others: the controller ``clusterrole-aggregation``.

Source: Kubernetes 1.37 ``pkg/controller/clusterroleaggregation``.
"""

from __future__ import annotations

from typing import Any

from dra_kit.apiserver.authorization.rbac import CLUSTER_ROLES
from dra_kit.apiserver.storage import Change, Storage
from dra_kit.kubernetes.resource.matching import parse_label_selector


def follow(storage: Storage) -> None:
    """Keep the rules of aggregated roles up to date as long as the storage lives; a change has its effect at once."""

    def on_change(change: Change) -> None:
        if change.type == "DELETED" or change.previous is None or _differs(change):
            _aggregate(storage)

    storage.listen(CLUSTER_ROLES, on_change)


def _differs(change: Change) -> bool:
    new, old = change.stored.object, change.previous.object if change.previous else {}
    fields = ("rules", "aggregationRule")
    same = all(new.get(field) == old.get(field) for field in fields)
    return not same or new["metadata"].get("labels") != old["metadata"].get("labels")


def _aggregate(storage: Storage) -> None:
    """Write the first role that is not up to date; that is a change itself, after which the next one follows."""
    roles = [(key, stored.object) for key, stored in storage.items(CLUSTER_ROLES)]
    for key, role in roles:
        rule = role.get("aggregationRule")
        if not rule:
            continue
        found: list[Any] = []
        for selector in rule.get("clusterRoleSelectors") or ():
            wanted = parse_label_selector(selector)
            for other_key, other in roles:
                if other_key != key and wanted.matches(other):
                    found += [item for item in other.get("rules") or () if item not in found]
        if found != (role.get("rules") or []):
            storage.update(CLUSTER_ROLES, key, {**role, "rules": found or None})
            return
