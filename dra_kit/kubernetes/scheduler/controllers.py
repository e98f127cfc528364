"""Rules of two controllers of kube-controller-manager (1.37): for ResourceClaims, and for the eviction of pods.

The ResourceClaim controller creates claims from templates and releases them. The device taint eviction controller
evicts pods from tainted devices, and writes the condition of a DeviceTaintRule.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from dra_kit.kubernetes.allocator.devices import DeviceID
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import OLDEST, Change, KubernetesVersion, Release
from dra_kit.kubernetes.resource.matching import has_expressions, taint_rule_covers, tolerates
from dra_kit.kubernetes.resource.objects import (
    POD_GROUP_API,
    ObjectKey,
    PodClaim,
    is_done,
    is_pod_group,
    is_reserved_for,
    is_terminal,
    owns,
    pod_claims,
    pod_group,
)
from dra_kit.kubernetes.resource.v1 import DeviceTaint, DeviceTaintSelector, DeviceToleration
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.text import counted

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"


class ClaimUpdate(Struct, frozen=True):
    """The writes to a claim, in this order."""

    status: dict[str, Any] | None = None
    finalizers: list[str] | None = None
    delete: bool = False


def claim_update(
    claim: ObjectView,
    pods: Mapping[tuple[str, str], ObjectView],
    groups: Mapping[tuple[str, str], ObjectView] | None = None,
) -> ClaimUpdate:
    """Return the action of kube-controller-manager's ResourceClaim controller (1.37) for a claim.

    It removes finished pods from the consumers, and PodGroups that are gone. After the last one, it removes the
    allocation, then the finalizer that blocks deletion, and then a claim that was generated for a finished pod.

    Args:
        claim: a ResourceClaim.
        pods: all pods.
        groups: all PodGroups; None if they have no claims (feature gate DRAWorkloadResourceClaims).
    """
    status = claim.get("status", {})
    consumers = status.get("reservedFor", [])
    namespace = claim["metadata"].get("namespace", "")
    valid = [item for item in consumers if _still_consumes(item, namespace, pods, groups)]
    finalizers = claim["metadata"].get("finalizers", [])
    deleted = "deletionTimestamp" in claim["metadata"]
    # the scheduler sets the finalizer before the allocation: if both are missing, do not remove the finalizer
    unprotect = DELETE_PROTECTION in finalizers and not valid and (bool(consumers) or deleted)
    allocated = "allocation" in status
    return ClaimUpdate(
        status=_released(status, valid, deallocate=unprotect)
        if len(valid) < len(consumers) or (unprotect and allocated)
        else None,
        finalizers=[item for item in finalizers if item != DELETE_PROTECTION] if unprotect else None,
        delete=not valid and not deleted and _owner_is_done(claim, pods),
    )


def claims_to_reserve(pod: ObjectView, claims: Mapping[tuple[str, str], ObjectView]) -> list[ObjectView]:
    """Return allocated claims that a pod with a node uses without being one of their consumers.

    The scheduler reserves what it schedules; this is for pods that were assigned to a node without it. It leaves out
    pods that have finished: before Kubernetes 1.38, their consumers come and go without end while others use the claim.
    """
    if not pod["spec"].get("nodeName") or is_done(pod) or "deletionTimestamp" in pod["metadata"]:
        return []
    namespace = pod["metadata"]["namespace"]
    found = (claims.get((namespace, entry.claim)) for entry in pod_claims(pod) if entry.claim)
    allocated = (item for item in found if item and item.get("status", {}).get("allocation"))
    return [item for item in allocated if not is_reserved_for(item, pod)]


def consumer(pod: ObjectView, claim: ObjectView, group: ObjectView | None) -> dict[str, str]:
    """Return the entry of a pod in ``status.reservedFor`` of its claim; that of its PodGroup if it has the claim."""
    entries = (entry for entry in pod_claims(pod) if entry.claim == claim["metadata"].get("name"))
    if group is not None and any(is_group_claim(pod, entry.name, group) for entry in entries):
        return {"apiGroup": POD_GROUP_API, "resource": "podgroups", **_identity(group)}
    return {"resource": "pods", **_identity(pod)}


def _identity(obj: ObjectView) -> dict[str, str]:
    return {"name": obj["metadata"]["name"], "uid": obj["metadata"]["uid"]}


def is_group_claim(pod: ObjectView, entry: str, group: ObjectView) -> bool:
    """Return whether an entry of the pod is also one of its PodGroup, with the same name and the same source."""
    own = next((item for item in pod["spec"].get("resourceClaims") or () if item["name"] == entry), None)
    return own is not None and any(
        all(item.get(field) == own.get(field) for field in ("name", "resourceClaimName", "resourceClaimTemplateName"))
        for item in group["spec"].get("resourceClaims") or ()
    )


def _still_consumes(
    item: ObjectView,
    namespace: str,
    pods: Mapping[tuple[str, str], ObjectView],
    groups: Mapping[tuple[str, str], ObjectView] | None,
) -> bool:
    if groups is not None and is_pod_group(item):
        group = groups.get((namespace, item["name"]))
        return group is not None and group["metadata"]["uid"] == item["uid"]
    if item.get("apiGroup") or item.get("resource") != "pods":
        return True  # another controller handles this kind
    pod = pods.get((namespace, item["name"]))
    return pod is not None and pod["metadata"]["uid"] == item["uid"] and not is_done(pod)


def _released(status: ObjectView, valid: list[Any], *, deallocate: bool) -> dict[str, Any]:
    new = {**status, "reservedFor": valid}
    if not valid:
        del new["reservedFor"]
    if deallocate:
        new.pop("allocation", None)
        new.pop("devices", None)
    return new


def _owner_is_done(claim: ObjectView, pods: Mapping[tuple[str, str], ObjectView]) -> bool:
    for owner in claim["metadata"].get("ownerReferences", []):
        if owner.get("controller") and (owner.get("kind"), owner.get("apiVersion")) == ("Pod", "v1"):
            pod = pods.get((claim["metadata"].get("namespace", ""), owner["name"]))
            # the garbage collector deletes the claims of a deleted pod
            return pod is not None and (pod["metadata"]["uid"] != owner["uid"] or is_done(pod))
    return False


POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"
# a generated name has 63 characters at most, five of them random
_GENERATE_NAME_LENGTH: Final = 57


def missing_claims(pod: ObjectView, version: KubernetesVersion) -> list[PodClaim]:
    """Return the entries of the pod for which its status does not name a claim yet.

    A deleted claim that the status names is not created again, and none is created for a terminating pod.
    """
    if "deletionTimestamp" in pod["metadata"]:
        return []
    if version.has(Change.FINISHED_PODS_GET_NO_CLAIMS) and is_terminal(pod):
        return []
    return [entry for entry in pod_claims(pod) if entry.claim is None]


def generated_claim(owner: ObjectView, entry: str, claims: Iterable[ObjectView]) -> ObjectView | None:
    """Return the claim generated earlier for an entry of a pod or PodGroup, regardless of its status."""
    for claim in claims:
        annotations = claim["metadata"].get("annotations", {})
        if annotations.get(POD_CLAIM_ANNOTATION) == entry and owns(owner, claim):
            return claim
    return None


def missing_group_claims(group: ObjectView) -> list[tuple[str, str]]:
    """Return the entries of a PodGroup whose claims are not made yet, each with the name of its template."""
    made = {item["name"] for item in (group.get("status") or {}).get("resourceClaimStatuses") or ()}
    return [
        (item["name"], item["resourceClaimTemplateName"])
        for item in group["spec"].get("resourceClaims") or ()
        if item.get("resourceClaimTemplateName") and item["name"] not in made
    ]


def claim_from_template(
    pod: ObjectView, entry: str, template: ObjectView, version: KubernetesVersion
) -> dict[str, Any]:
    """Return the ResourceClaim to create for an entry of the pod, as kube-controller-manager of a release does."""
    return _claim_from_template(pod, entry, template, pod_owner(pod, version))


def group_claim_from_template(group: ObjectView, entry: str, template: ObjectView) -> dict[str, Any]:
    """Return the ResourceClaim to create for an entry of a PodGroup."""
    owner = {"apiVersion": f"{POD_GROUP_API}/v1beta1", "kind": "PodGroup", **_identity(group), "controller": True}
    return _claim_from_template(group, entry, template, owner)


def _claim_from_template(obj: ObjectView, entry: str, template: ObjectView, owner: dict[str, Any]) -> dict[str, Any]:
    spec = copy.deepcopy(template["spec"])
    metadata = spec.get("metadata", {})
    body = {
        "generateName": generate_name(obj["metadata"]["name"], entry),
        "namespace": obj["metadata"]["namespace"],
        "annotations": {**metadata.get("annotations", {}), POD_CLAIM_ANNOTATION: entry},
        "ownerReferences": [owner],
    }
    if metadata.get("labels"):
        body["labels"] = metadata["labels"]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": body, "spec": spec["spec"]}


def pod_owner(pod: ObjectView, version: KubernetesVersion) -> dict[str, Any]:
    """Return the ownerReference by which a pod controls a claim created for it."""
    metadata = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    return owner if version.has(Change.OWNERS_OF_CLAIMS_DO_NOT_BLOCK) else owner | {"blockOwnerDeletion": True}


def generate_name(pod: str, entry: str) -> str:
    """Return ``<pod>-<entry>-``; if too long, both are shortened in proportion and the last dash is omitted."""
    name = f"{pod}-{entry}-"
    if len(name) <= _GENERATE_NAME_LENGTH:
        return name
    pod_part, entry_part = (part[: len(part) * _GENERATE_NAME_LENGTH // len(name)] for part in (pod, entry))
    return f"{pod_part}-{entry_part}"


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
        state: evaluates rules of Kubernetes 1.34 that select by class or expressions; None if there is none.
    """

    published: Mapping[tuple[str, str, str], tuple[ObjectView, ...]] = field(default_factory=dict)
    rules: Mapping[str, ObjectView] = field(default_factory=dict)
    state: AllocatorState | None = None

    @classmethod
    def of(
        cls, slices: Iterable[ObjectView], rules: Iterable[ObjectView], classes: Iterable[ObjectView] = ()
    ) -> TaintedDevices:
        """Read the taints from slices, rules and DeviceClasses as the API server has them."""
        slices, rules = list(slices), list(rules)
        published: dict[tuple[str, str, str], tuple[ObjectView, ...]] = {}
        for device_id, device in published_devices(slices):
            if device.get("taints"):
                published[device_id] = tuple(device["taints"])
        read = [rule for rule in rules if has_expressions(_taint_selector(rule))]
        state = AllocatorState(slices=slices, classes=classes, taint_rules=read, version=OLDEST) if read else None
        return cls(published, {rule["metadata"]["name"]: rule for rule in rules}, state)

    def of_device(self, device_id: tuple[str, str, str]) -> Iterator[tuple[str | None, ObjectView]]:
        """Yield the taints of a device, each with the name of the rule that it comes from."""
        for taint in self.published.get(device_id, ()):
            yield None, taint
        evaluated = () if self.state is None else self.state.rules_of(DeviceID(*device_id))
        names = {rule.metadata.name for rule in evaluated}
        for name, rule in self.rules.items():
            if name in names or rule_covers_device(rule, device_id):
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
            for device in item["spec"].get("devices") or ():
                yield (driver, pool_name, device["name"]), device


def rule_covers_device(rule: ObjectView, device_id: tuple[str, str, str]) -> bool:
    """Whether a DeviceTaintRule applies to a device; without a selector, or with a class, it applies to none."""
    return taint_rule_covers(_taint_selector(rule), device_id)


def _taint_selector(rule: ObjectView) -> DeviceTaintSelector | None:
    selector = rule["spec"].get("deviceSelector")
    return None if selector is None else DeviceTaintSelector.model_validate(selector)


def evictions(
    tainted: TaintedDevices,
    claims: Iterable[ObjectView],
    pods: Mapping[ObjectKey, ObjectView],
    *,
    time_scale: float = 1.0,
    release: Release,
) -> dict[ObjectKey, Eviction]:
    """Return every pod to be evicted, now or later, by namespace and name; including those already terminating.

    Args:
        tainted: all taints.
        claims: all ResourceClaims.
        pods: all pods.
        time_scale: ``tolerationSeconds`` are divided by this.
        release: of the controller.
    """
    found: dict[ObjectKey, Eviction] = {}
    for claim in claims:
        due = _claim_eviction(tainted, claim, time_scale, release)
        if due is None:
            continue
        for key in _users(claim, pods, release):
            former = found.get(key)
            found[key] = due if former is None else Eviction(min(former.at, due.at), former.rules | due.rules)
    return found


def _claim_eviction(tainted: TaintedDevices, claim: ObjectView, time_scale: float, release: Release) -> Eviction | None:
    due: Eviction | None = None
    for result in _results(claim):
        for rule, taint in tainted.of_device(_device_id(result)):
            at = _eviction_time(taint, result.get("tolerations", []), time_scale, release)
            if at is not None:
                rules = frozenset({rule} if rule else ())
                due = Eviction(at, rules) if due is None else Eviction(min(due.at, at), due.rules | rules)
    return due


def _eviction_time(
    taint: ObjectView, tolerations: Iterable[ObjectView], time_scale: float, release: Release
) -> dt.datetime | None:
    """Return when the taint evicts a pod with these tolerations; None for never."""
    if taint.get("effect") != NO_EXECUTE:
        return None
    added = dt.datetime.fromisoformat(taint.get("timeAdded", "1970-01-01T00:00:00Z"))
    accepted = DeviceTaint.model_validate(taint)
    patience = [
        item.toleration_seconds
        for item in map(DeviceToleration.model_validate, tolerations)
        if protects(item, accepted, release.version)
    ]
    if not patience:
        return added
    seconds = [item for item in patience if item is not None]
    if len(seconds) < len(patience):
        return None  # a toleration without a time limit wins over limited ones
    return added + dt.timedelta(seconds=max(min(seconds), 0) / time_scale)


def protects(toleration: DeviceToleration, taint: DeviceTaint, version: KubernetesVersion) -> bool:
    """Return whether a toleration prevents or delays the eviction for a taint with the effect NoExecute."""
    effects = {NO_EXECUTE, ""} if version.has(Change.TOLERATIONS_WITHOUT_EFFECT_PROTECT) else {NO_EXECUTE}
    return toleration.effect in effects and tolerates(toleration, taint)


def rule_condition(
    rule: ObjectView,
    due: Mapping[ObjectKey, Eviction],
    evicted: int,
    *,
    slices: Iterable[ObjectView] = (),
    claims: Iterable[ObjectView] = (),
    pods: Mapping[ObjectKey, ObjectView] | None = None,
    release: Release,
) -> dict[str, Any]:
    """Return the condition ``EvictionInProgress`` of a DeviceTaintRule, without its time.

    Args:
        rule: the rule.
        due: pods to be evicted.
        evicted: pods that were evicted because of this rule.
        slices: this and the following are for the dry run of a rule with effect None.
        claims: all ResourceClaims.
        pods: all pods.
        release: of the controller.
    """
    effect, name = rule["spec"]["taint"].get("effect"), rule["metadata"]["name"]
    pending = [key for key, eviction in due.items() if name in eviction.rules]
    status, reason, text = "False", "Completed" if evicted else "NotStarted", ""
    if effect == "None":
        reason, text = "NoEffect", _what_if(rule, slices, claims, pods or {}, release)
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
    release: Release,
) -> str:
    published = sum(rule_covers_device(rule, device_id) for device_id, _ in published_devices(slices))
    allocated, users = 0, set[ObjectKey]()
    for claim in claims:
        hits = sum(rule_covers_device(rule, _device_id(result)) for result in _results(claim))
        allocated += hits
        if hits:
            users.update(
                key for key in _users(claim, pods, release) if "deletionTimestamp" not in pods[key]["metadata"]
            )
    return (
        f"{counted(published, 'published device')} selected. {counted(allocated, 'allocated device')} selected. "
        f"{counted(len(users), 'pod')} would be evicted in {_namespaces(users)} if the effect was NoExecute. "
        "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."
    )


def _namespaces(keys: Iterable[ObjectKey]) -> str:
    number = len({namespace for namespace, _ in keys})
    return "1 namespace" if number == 1 else f"{number} different namespaces"


def _users(claim: ObjectView, pods: Mapping[ObjectKey, ObjectView], release: Release) -> Iterator[ObjectKey]:
    """Yield the pods with a node that use a claim."""
    extended = release.has(Change.EXTENDED_RESOURCES_ARE_EVICTED)
    namespace, name = claim["metadata"].get("namespace", ""), claim["metadata"]["name"]
    for item in claim.get("status", {}).get("reservedFor", []):
        if is_pod_group(item):
            members = [key for key, pod in pods.items() if key[0] == namespace and pod_group(pod) == item["name"]]
        else:
            pod = pods.get((namespace, item["name"])) if item.get("resource") == "pods" else None
            members = [(namespace, item["name"])] if pod and pod["metadata"]["uid"] == item["uid"] else []
        for key in members:
            pod = pods[key]
            uses = any((entry.name or extended) and entry.claim == name for entry in pod_claims(pod))
            if uses and pod["spec"].get("nodeName") and not is_terminal(pod):
                yield key


def _results(claim: ObjectView) -> list[Any]:
    results: list[Any] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return results


def _device_id(result: ObjectView) -> tuple[str, str, str]:
    return result["driver"], result["pool"], result["device"]
