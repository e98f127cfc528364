"""Allocated claims: devices that are not ready or no longer published, consumers that are gone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.kubernetes.resource.objects import is_terminal
from dra_kit.kubernetes.resource.v1 import (
    AllocatedDeviceStatus,
    Condition,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
)
from dra_kit.kubernetes.scheduler.controllers import DELETE_PROTECTION

CONSUMERS_MAX: Final = 256
"""Entries of ``status.reservedFor`` (Kubernetes 1.37); kube-scheduler does not check it, the API server does."""
_SHOWN: Final = 8
_BINDING_TIMEOUT: Final = 600
"""Seconds that kube-scheduler waits for binding conditions: the default of ``DynamicResourcesArgs.bindingTimeout``."""


class ClaimProblem(NamedTuple):
    """A problem of a claim, a sentence, and what to do."""

    text: str
    remedy: str = ""


class Consumer(NamedTuple):
    """A consumer of a claim; ``fate`` says why it no longer uses the claim, and is empty if it does or is unknown."""

    name: str
    fate: str = ""

    def __str__(self) -> str:
        return f"{self.name}, which {self.fate}" if self.fate else self.name


ReleaseKind: TypeAlias = Literal["deleting", "stale"]


class PendingRelease(Struct, frozen=True):
    """Devices that a claim should release soon.

    Attributes:
        kind: ``deleting``: the claim is being deleted; ``stale``: it is reserved only for pods that are gone.
        text: a clause about the claim.
        remedies: what to do if that takes long.
    """

    kind: ReleaseKind
    text: str
    remedies: tuple[str, ...]

    @property
    def brief(self) -> str:
        """The same in a few words."""
        return "being deleted" if self.kind == "deleting" else "reserved for a pod that is gone"


def consumers(cluster: ClusterView, claim: ResourceClaim) -> list[Consumer]:
    """Return the consumers of a claim, and what became of the pods among them."""
    return [Consumer(_name(each), _fate(cluster, claim, each)) for each in claim.status.reserved_for]


def enumerated(names: Sequence[str]) -> str:
    """Return the consumers of a claim as a list; of many, which may be 256, the first ones."""
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*names[:_SHOWN], *more])


def pending_release(cluster: ClusterView, claim: ResourceClaim) -> PendingRelease | None:
    """Return why a claim should release its devices soon; None if it keeps them."""
    since = claim.metadata.deletion_timestamp
    known = consumers(cluster, claim)
    gone = bool(known) and all(each.fate for each in known)
    names = enumerated([str(each) for each in known])
    controller = (
        f"the ResourceClaim controller of kube-controller-manager releases claim {claim.metadata.name}: does "
        "kube-controller-manager run, and what does its log say about this claim?"
    )
    if since is None:
        if claim.status.allocation is None or not gone:
            return None
        return PendingRelease("stale", f"is still reserved for {names}", (controller,))
    finalizers: Sequence[str] = (claim.metadata.model_extra or {}).get("finalizers") or ()
    others = [name for name in finalizers if name != DELETE_PROTECTION]
    text = f"is being deleted since {since}"
    remedies = [f"finalizer {name}: the controller that set it removes it" for name in others]
    if gone:
        text += f", and is still reserved for {names}"
        remedies.insert(0, controller)
    elif known:
        text += f", and waits for {names}, for which it is reserved"
    elif DELETE_PROTECTION in finalizers:
        text += f", and waits for its finalizer {DELETE_PROTECTION}"
        remedies.insert(0, controller)
    return PendingRelease("deleting", text, tuple(remedies))


def _name(consumer: ResourceClaimConsumerReference) -> str:
    return f"{consumer.resource.removesuffix('s')} {consumer.name}"


def _fate(cluster: ClusterView, claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> str:
    namespace = claim.metadata.namespace
    if consumer.api_group or consumer.resource != "pods" or not cluster.knows_pods(namespace):
        return ""
    pod = cluster.pods.get((namespace, consumer.name))
    if pod is None:
        # live, ended pods are not read
        return "has ended or no longer exists" if cluster.complete else "no longer exists, or was not saved"
    if pod["metadata"].get("uid", consumer.uid) != consumer.uid:
        return "no longer exists (another pod has its name)"
    return "has ended" if is_terminal(pod) else ""


def is_full(claim: ResourceClaim, uid: str) -> bool:
    """Return whether the API allows no more consumers of a claim, of which a pod is not one."""
    reserved = claim.status.reserved_for
    return len(reserved) >= CONSUMERS_MAX and all(each.uid != uid for each in reserved)


def unready_devices(claim: ResourceClaim) -> list[ClaimProblem]:
    """Return the devices whose binding conditions kube-scheduler waits for, and how long it waits (KEP-5007).

    It waits before it binds a pod; for pods that have a node, the conditions mean nothing.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return []
    results = [result for result in allocation.devices.results if result.binding_conditions]
    found = [problem for result in results if (problem := _unready(claim, result)) is not None]
    if not found:
        return []
    failures = dict.fromkeys(name for result in results for name in result.binding_failure_conditions)
    or_failed = f", or until {' or '.join(failures)} is True," if failures else ""
    wait = (
        f"kube-scheduler binds the pod once these conditions are True. It waits {_BINDING_TIMEOUT} s after the "
        f"allocation (bindingTimeout, default){_deadline(allocation.allocation_timestamp)}{or_failed} and then "
        "releases the devices and tries again"
    )
    return [*found, ClaimProblem(wait)]


def is_bound(cluster: ClusterView, claim: ResourceClaim) -> bool:
    """Return whether all consumers of a claim are pods that have a node."""
    namespace, reserved = claim.metadata.namespace, claim.status.reserved_for
    pods = [cluster.pods.get((namespace, each.name)) for each in reserved if each.resource == "pods"]
    return 0 < len(pods) == len(reserved) and all(pod is not None and pod["spec"].get("nodeName") for pod in pods)


def _unready(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> ClaimProblem | None:
    known = _conditions(claim, result)
    where = f"device {result.device} of {result.driver}, pool {result.pool},"
    for name in result.binding_failure_conditions:
        if name in known and known[name].status == "True":
            text = f"{where} failed: its binding failure condition {name} is True{_why(known[name])}"
            return ClaimProblem(text, f"see the log of the controller of driver {result.driver}")
    missing = [name for name in result.binding_conditions if name not in known or known[name].status != "True"]
    if not missing:
        return None
    states = [f"{name} is {known[name].status}{_why(known[name])}" if name in known else f"{name} is not set"
              for name in missing]  # fmt: skip
    key = f"{claim.metadata.namespace}/{claim.metadata.name}"
    remedy = (
        f"the controller of driver {result.driver} sets {' and '.join(missing)} in status.devices of ResourceClaim "
        f"{key}: does it run, and what does its log say?"
    )
    return ClaimProblem(f"{where} is not ready: binding condition {', '.join(states)}", remedy)


def _conditions(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> Mapping[str, Condition]:
    device = result.driver, result.pool, result.device, result.share_id
    for status in device_statuses(claim):
        if (status.driver, status.pool, status.device, status.share_id) == device:
            return {condition.type: condition for condition in status.conditions}
    return {}


def device_statuses(claim: ResourceClaim) -> Iterator[AllocatedDeviceStatus]:
    """Yield what drivers report of the devices of a claim."""
    for entry in (claim.status.model_extra or {}).get("devices") or ():
        yield AllocatedDeviceStatus.model_validate(entry)


def _why(condition: Condition) -> str:
    text = ": ".join(filter(None, (condition.reason, condition.message)))
    return f" ({text})" if text else ""


def _deadline(allocated: str | None) -> str:
    try:
        ends = datetime.fromisoformat(allocated or "") + timedelta(seconds=_BINDING_TIMEOUT)
    except (OverflowError, ValueError):
        return ""
    return f", until {ends.isoformat().replace('+00:00', 'Z')}"


def vanished_devices(cluster: ClusterView, claim: ResourceClaim) -> Iterator[ClaimProblem]:
    """Yield the devices of a claim that their pool, which is complete, no longer has."""
    allocation = claim.status.allocation
    for result in allocation.devices.results if allocation is not None else ():
        published = cluster.published.get((result.driver, result.pool))
        if published is not None and result.device not in published:
            users = [each.name for each in consumers(cluster, claim) if not each.fate]
            pods = f"{' and '.join(users)}, which has it: the claim then releases it" if users else "the claim"
            yield ClaimProblem(
                f"device {result.device} of {result.driver} is in use, and its pool {result.pool} no longer has it",
                f"if the hardware is gone, delete {pods}",
            )


def late_holders(cluster: ClusterView, claims: Iterable[str]) -> Iterator[ClaimProblem]:
    """Yield the claims among ``namespace/name`` that should have released their devices."""
    for key in dict.fromkeys(claims):
        namespace, _, name = key.partition("/")
        claim = cluster.claims.get((namespace, name))
        release = pending_release(cluster, claim) if claim is not None else None
        if release is not None:
            yield ClaimProblem(f"claim {key}, which holds devices, {release.text}", " ".join(release.remedies[:1]))
