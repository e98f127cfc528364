"""What a claim's author does not expect of its devices: given whole, one for several nodes, tainted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dra_kit.diagnosis.explain.allocated import ClaimProblem
from dra_kit.diagnosis.explain.cluster import ClusterView, named
from dra_kit.diagnosis.explain.verdicts import JudgedChoice, JudgedRequest, NodeOutcome
from dra_kit.kubernetes.allocator.devices import DeviceID
from dra_kit.kubernetes.resource.matching import taint_rule_covers, tolerates
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, DeviceTaint, ResourceClaim

_NO_EXECUTE: Final = "NoExecute"


def caveats(cluster: ClusterView, requests: Sequence[JudgedRequest]) -> Iterator[ClaimProblem]:
    """Yield what is special about the devices that match the requests of a claim."""
    for judged in (judged for request in requests for judged in request.choices):
        yield from _given_whole(judged)
    yield from _repeated(cluster, requests)


def _given_whole(judged: JudgedChoice) -> Iterator[ClaimProblem]:
    """Yield that a request for an amount gets whole devices."""
    amounts = judged.choice.capacity if judged.choice is not None else None
    whole = [verdict for verdict in judged.devices if verdict.matches and not verdict.shareable] if amounts else []
    if whole:
        drivers = dict.fromkeys(verdict.driver for verdict in whole)
        yield ClaimProblem(
            f"request {judged.name} asks for an amount of {' and '.join(amounts or ())}, and gets a whole device: "
            f"{named([verdict.name for verdict in whole])} cannot be allocated to several claims",
            f"driver {' and '.join(drivers)} must publish devices with allowMultipleAllocations: true if claims are to "
            "share them",
        )


def _repeated(cluster: ClusterView, requests: Sequence[JudgedRequest]) -> Iterator[ClaimProblem]:
    """Yield the pools that several nodes publish with equal names of devices."""
    if not cluster.repeated_pools:
        return
    matching = {
        (verdict.driver, verdict.id.pool)
        for request in requests
        for judged in request.choices
        for verdict in judged.devices
        if verdict.matches
    }
    for (driver, pool), (nodes, device) in cluster.repeated_pools.items():
        if (driver, pool) in matching:
            yield ClaimProblem(
                f"{named(nodes)} publish the same pool {pool} of {driver}: for kube-scheduler, which knows a device by "
                f"driver, pool and name, device {device} of each node is one device, which one claim can have",
                f"driver {driver} must publish a separate pool for each node, with the node's name in the pool's name",
            )


def evicting_taints(cluster: ClusterView, claim: ResourceClaim) -> Iterator[ClaimProblem]:
    """Yield the devices of an allocated claim for which its pods are evicted."""
    allocation = claim.status.allocation
    return evictions(cluster, allocation.devices.results if allocation is not None else ())


def evictions(cluster: ClusterView, results: Iterable[DeviceRequestAllocationResult]) -> Iterator[ClaimProblem]:
    """Yield the allocated devices for which pods are evicted.

    A toleration without an effect lets kube-scheduler allocate a device with a taint NoExecute, and does not prevent
    the eviction (Kubernetes 1.37, ``pkg/controller/devicetainteviction``).
    """
    if not cluster.gates.device_taints:
        return
    for result in results:
        for taint, rule in _taints(cluster, DeviceID(result.driver, result.pool, result.device)):
            accepted = [each for each in result.tolerations if tolerates(each, taint)]
            if any(each.effect == _NO_EXECUTE for each in accepted):
                continue
            shown = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{_NO_EXECUTE}"
            by = f" (by DeviceTaintRule {rule})" if rule else ""
            why = f", and the toleration of request {result.request} names no effect" if accepted else ""
            remedy = (
                f"with effect: {_NO_EXECUTE} in the toleration of {taint.key} the pod keeps the device; without the "
                "toleration kube-scheduler does not allocate it"
                if accepted
                else f"pods keep the device with a toleration of {taint.key} (effect: {_NO_EXECUTE}) in a new claim; "
                "tolerations of a claim cannot be changed"
            )
            yield ClaimProblem(
                f"device {result.device} of {result.driver}, pool {result.pool}, has the taint {shown}{by}{why}: the "
                "device taint eviction controller deletes pods that have the device",
                remedy,
            )


def has_open_toleration(request: JudgedRequest) -> bool:
    """Return whether a toleration of a request has no effect; others prevent evictions, or admit no such device."""
    choices = [judged.choice for judged in request.choices if judged.choice is not None]
    return any(not toleration.effect for choice in choices for toleration in choice.tolerations)


def evicts(cluster: ClusterView, outcome: NodeOutcome) -> bool:
    """Return whether a pod that gets these devices is evicted."""
    results = (result for allocation in outcome.allocations or () for result in allocation.devices.results)
    return any(evictions(cluster, results))


def _taints(cluster: ClusterView, device: DeviceID) -> Iterator[tuple[DeviceTaint, str]]:
    """Yield the taints NoExecute of a device, each with the name of its DeviceTaintRule; empty for its own."""
    for slice_ in cluster.newest_slices.get((device.driver, device.pool), ()):
        if slice_.usual is None and device.device in slice_.names:
            found = slice_.devices[slice_.names.index(device.device)]
            yield from ((taint, "") for taint in found.taints if taint.effect == _NO_EXECUTE)
            break
    for rule in cluster.rules if cluster.gates.device_taint_rules else ():
        if rule.spec.taint.effect == _NO_EXECUTE and taint_rule_covers(rule.spec.device_selector, device):
            yield rule.spec.taint, rule.metadata.name
