"""The rules of the device taint eviction controller: evictions, and the condition of a DeviceTaintRule."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from dra_kit.kubernetes.resource.matching import taint_rule_covers, tolerates
from dra_kit.kubernetes.resource.objects import ObjectKey, is_pod_group, is_terminal, pod_claims, pod_group
from dra_kit.kubernetes.resource.v1 import DeviceTaint, DeviceTaintSelector, DeviceToleration
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.text import counted

NO_EXECUTE: Final = "NoExecute"


class Eviction(Struct, frozen=True):
    """A pod to be evicted.

    Attributes:
        at: the time of the eviction.
        rules: names of the DeviceTaintRules with the taint; none if the taint is in a slice.
    """

    at: dt.datetime
    rules: frozenset[str] = frozenset()


class TaintedDevices(Struct, frozen=True):
    """All taints: those that slices publish and those that rules add.

    Attributes:
        published: taints by driver, pool and device, of each pool's newest generation.
        rules: DeviceTaintRules by name.
    """

    published: Mapping[tuple[str, str, str], tuple[ObjectView, ...]] = field(default_factory=dict)
    rules: Mapping[str, ObjectView] = field(default_factory=dict)

    @classmethod
    def of(cls, slices: Iterable[ObjectView], rules: Iterable[ObjectView]) -> TaintedDevices:
        """Read the taints from slices and rules as the API server has them."""
        published: dict[tuple[str, str, str], tuple[ObjectView, ...]] = {}
        for device_id, device in published_devices(slices):
            if device.get("taints"):
                published[device_id] = tuple(device["taints"])
        return cls(published, {rule["metadata"]["name"]: rule for rule in rules})

    def of_device(self, device_id: tuple[str, str, str]) -> Iterator[tuple[str | None, ObjectView]]:
        """Yield the taints of a device, each with the name of the rule that it comes from."""
        for taint in self.published.get(device_id, ()):
            yield None, taint
        for name, rule in self.rules.items():
            if rule_covers_device(rule, device_id):
                yield name, rule["spec"]["taint"]

    @property
    def evict(self) -> bool:
        """Whether any taint may evict a pod."""
        taints = [taint for item in self.published.values() for taint in item]
        taints += [rule["spec"]["taint"] for rule in self.rules.values()]
        return any(taint.get("effect") == NO_EXECUTE for taint in taints)


def published_devices(slices: Iterable[ObjectView]) -> Iterator[tuple[tuple[str, str, str], ObjectView]]:
    """Yield the devices of each pool's newest generation by driver, pool and name."""
    newest: dict[tuple[str, str], int] = {}
    slices = list(slices)
    for item in slices:
        pool = item["spec"]["driver"], item["spec"]["pool"]["name"]
        newest[pool] = max(newest.get(pool, 0), item["spec"]["pool"].get("generation", 0))
    for item in slices:
        driver, pool_name = item["spec"]["driver"], item["spec"]["pool"]["name"]
        if item["spec"]["pool"].get("generation", 0) == newest[driver, pool_name]:
            for device in item["spec"].get("devices", []):
                yield (driver, pool_name, device["name"]), device


def rule_covers_device(rule: ObjectView, device_id: tuple[str, str, str]) -> bool:
    """Whether a DeviceTaintRule applies to a device; without a selector it applies to none."""
    selector = rule["spec"].get("deviceSelector")
    return selector is not None and taint_rule_covers(DeviceTaintSelector.model_validate(selector), device_id)


def evictions(
    tainted: TaintedDevices,
    claims: Iterable[ObjectView],
    pods: Mapping[ObjectKey, ObjectView],
    *,
    time_scale: float = 1.0,
) -> dict[ObjectKey, Eviction]:
    """Return every pod to be evicted, now or later, by namespace and name; including those already terminating.

    Args:
        tainted: all taints.
        claims: all ResourceClaims.
        pods: all pods.
        time_scale: ``tolerationSeconds`` are divided by this.
    """
    found: dict[ObjectKey, Eviction] = {}
    for claim in claims:
        due = _claim_eviction(tainted, claim, time_scale)
        if due is None:
            continue
        for key in _users(claim, pods):
            former = found.get(key)
            found[key] = due if former is None else Eviction(min(former.at, due.at), former.rules | due.rules)
    return found


def _claim_eviction(tainted: TaintedDevices, claim: ObjectView, time_scale: float) -> Eviction | None:
    due: Eviction | None = None
    for result in _results(claim):
        for rule, taint in tainted.of_device(_device_id(result)):
            at = _eviction_time(taint, result.get("tolerations", []), time_scale)
            if at is not None:
                rules = frozenset({rule} if rule else ())
                due = Eviction(at, rules) if due is None else Eviction(min(due.at, at), due.rules | rules)
    return due


def _eviction_time(taint: ObjectView, tolerations: Iterable[ObjectView], time_scale: float) -> dt.datetime | None:
    """Return when the taint evicts a pod with these tolerations; None for never."""
    if taint.get("effect") != NO_EXECUTE:
        return None
    added = dt.datetime.fromisoformat(taint.get("timeAdded", "1970-01-01T00:00:00Z"))
    # a toleration without effect lets the scheduler choose the device, but prevents no eviction
    accepted = DeviceTaint.model_validate(taint)
    patience = [
        item.toleration_seconds
        for item in map(DeviceToleration.model_validate, tolerations)
        if item.effect == NO_EXECUTE and tolerates(item, accepted)
    ]
    if not patience:
        return added
    seconds = [item for item in patience if item is not None]
    if len(seconds) < len(patience):
        return None  # a toleration without a time limit wins over limited ones
    return added + dt.timedelta(seconds=max(min(seconds), 0) / time_scale)


def rule_condition(
    rule: ObjectView,
    due: Mapping[ObjectKey, Eviction],
    evicted: int,
    *,
    slices: Iterable[ObjectView] = (),
    claims: Iterable[ObjectView] = (),
    pods: Mapping[ObjectKey, ObjectView] | None = None,
) -> dict[str, Any]:
    """Return the condition ``EvictionInProgress`` of a DeviceTaintRule, without its time.

    Args:
        rule: the rule.
        due: pods to be evicted.
        evicted: pods that were evicted because of this rule.
        slices: this and the following are for the dry run of a rule with effect None.
        claims: all ResourceClaims.
        pods: all pods.
    """
    effect, name = rule["spec"]["taint"].get("effect"), rule["metadata"]["name"]
    pending = [key for key, eviction in due.items() if name in eviction.rules]
    status, reason, text = "False", "Completed" if evicted else "NotStarted", ""
    if effect == "None":
        reason, text = "NoEffect", _what_if(rule, slices, claims, pods or {})
    elif effect != NO_EXECUTE:
        reason, text = "OtherEffect", "Eviction only happens for the NoExecute effect."
    elif pending:
        needs = "needs" if len(pending) == 1 else "need"
        status, reason = "True", "PodsPendingEviction"
        text = f"{counted(len(pending), 'pod')} {needs} to be evicted in {_namespaces(pending)}."
    done = f"{counted(evicted, 'pod')} evicted since starting the controller." if evicted else ""
    return {"type": "EvictionInProgress", "status": status, "reason": reason, "message": f"{text} {done}".strip()}


def _what_if(
    rule: ObjectView,
    slices: Iterable[ObjectView],
    claims: Iterable[ObjectView],
    pods: Mapping[ObjectKey, ObjectView],
) -> str:
    published = sum(rule_covers_device(rule, device_id) for device_id, _ in published_devices(slices))
    allocated, users = 0, set[ObjectKey]()
    for claim in claims:
        hits = sum(rule_covers_device(rule, _device_id(result)) for result in _results(claim))
        allocated += hits
        if hits:
            users.update(key for key in _users(claim, pods) if "deletionTimestamp" not in pods[key]["metadata"])
    return (
        f"{counted(published, 'published device')} selected. {counted(allocated, 'allocated device')} selected. "
        f"{counted(len(users), 'pod')} would be evicted in {_namespaces(users)} if the effect was NoExecute. "
        "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."
    )


def _namespaces(keys: Iterable[ObjectKey]) -> str:
    number = len({namespace for namespace, _ in keys})
    return "1 namespace" if number == 1 else f"{number} different namespaces"


def _users(claim: ObjectView, pods: Mapping[ObjectKey, ObjectView]) -> Iterator[ObjectKey]:
    """Yield the pods with a node that use a claim; extended resources do not count (Kubernetes 1.37)."""
    namespace, name = claim["metadata"].get("namespace", ""), claim["metadata"]["name"]
    for item in claim.get("status", {}).get("reservedFor", []):
        if is_pod_group(item):
            members = [key for key, pod in pods.items() if key[0] == namespace and pod_group(pod) == item["name"]]
        else:
            pod = pods.get((namespace, item["name"])) if item.get("resource") == "pods" else None
            members = [(namespace, item["name"])] if pod and pod["metadata"]["uid"] == item["uid"] else []
        for key in members:
            pod = pods[key]
            uses = any(entry.name and entry.claim == name for entry in pod_claims(pod))
            if uses and pod["spec"].get("nodeName") and not is_terminal(pod):
                yield key


def _results(claim: ObjectView) -> list[Any]:
    results: list[Any] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return results


def _device_id(result: ObjectView) -> tuple[str, str, str]:
    return result["driver"], result["pool"], result["device"]
