"""The plan that turns the rules of a driver that there are into those that are wanted; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from dra_kit.author.cluster.taint_rules import TaintRule
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import OwnerReference
from dra_kit.slices.planning import is_stored_alike

LABEL: Final = "dra-kit/driver"
"""Its value is the driver that keeps a rule; a rule without it is somebody else's."""


class RulePlan(Struct, frozen=True):
    """Writes to be made in this order.

    Attributes:
        deletes: rules as they are stored.
        updates: whole rules, with the resource version of the stored one.
        creates: whole rules.
    """

    deletes: tuple[v1.DeviceTaintRule, ...] = ()
    updates: tuple[v1.DeviceTaintRule, ...] = ()
    creates: tuple[v1.DeviceTaintRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.updates or self.creates)


def plan_rules(
    driver: str,
    wanted: Sequence[TaintRule],
    existing: Sequence[v1.DeviceTaintRule],
    owner: OwnerReference | None = None,
) -> RulePlan:
    """Return what must be written.

    Args:
        driver: whose rules these are.
        wanted: all of them.
        existing: those with the driver's label; others are never touched.
        owner: whose deletion deletes them.
    """
    ours = {rule.metadata.name: rule for rule in existing if rule.metadata.labels.get(LABEL) == driver}
    desired = {rule.metadata.name: rule for rule in (_labelled(each.to_v1(driver), driver, owner) for each in wanted)}
    stays = [rule for rule in ours.values() if rule.metadata.deletion_timestamp is None]
    updates = [
        _updated(desired[rule.metadata.name], rule)
        for rule in stays
        if rule.metadata.name in desired and not _is_current(desired[rule.metadata.name], rule)
    ]
    return RulePlan(
        deletes=tuple(rule for rule in stays if rule.metadata.name not in desired),
        updates=tuple(updates),
        creates=tuple(rule for name, rule in desired.items() if name not in ours),
    )


def _labelled(rule: v1.DeviceTaintRule, driver: str, owner: OwnerReference | None) -> v1.DeviceTaintRule:
    metadata = rule.metadata.model_copy(
        update={"labels": {LABEL: driver}, "owner_references": (owner,) if owner is not None else ()}
    )
    return rule.model_copy(update={"metadata": metadata})


def _is_current(wanted: v1.DeviceTaintRule, stored: v1.DeviceTaintRule) -> bool:
    owned = all(
        any(is_stored_alike(owner, other) for other in stored.metadata.owner_references)
        for owner in wanted.metadata.owner_references
    )
    return owned and is_stored_alike(wanted.spec, stored.spec)


def _updated(wanted: v1.DeviceTaintRule, stored: v1.DeviceTaintRule) -> v1.DeviceTaintRule:
    """Return ``wanted`` over ``stored``; the API server itself begins a new time when the effect changes."""
    taint = wanted.spec.taint
    if taint.time_added is None:
        taint = taint.model_copy(update={"time_added": stored.spec.taint.time_added})
    mine = wanted.metadata.owner_references
    others = tuple(
        owner
        for owner in stored.metadata.owner_references
        if (owner.kind, owner.name) not in {(each.kind, each.name) for each in mine}
    )
    metadata = stored.metadata.model_copy(update={"owner_references": (*mine, *others)})
    return wanted.model_copy(update={"metadata": metadata, "spec": wanted.spec.model_copy(update={"taint": taint})})
