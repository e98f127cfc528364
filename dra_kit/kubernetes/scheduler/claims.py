"""Claims of a pod before and after a node is selected; the claim of its extended resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Change, KubernetesVersion
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.resource.objects import (
    ObjectKey,
    containers,
    init_containers,
    is_made_for,
    is_reserved_for,
    is_sidecar,
    not_made_for,
    object_name,
    pod_claims,
)
from dra_kit.kubernetes.scheduler.controllers import pod_owner
from dra_kit.kubernetes.scheduler.nodes import pod_requests
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import Quantity

EXTENDED_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"
IMPLICIT_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"


class ExtendedClaim(Struct, frozen=True):
    """The claim for a pod's extended resources on one node.

    Attributes:
        document: the ResourceClaim to create; it has no requests if the node has all resources itself.
        mappings: ``pod.status.extendedResourceClaimStatus.requestMappings``.
        resources: the extended resources that it provides.
    """

    document: dict[str, Any]
    mappings: tuple[dict[str, str], ...]
    resources: frozenset[str]


class ExtendedResources(Struct, frozen=True):
    """The extended resources that a pod requests and DeviceClasses provide.

    Attributes:
        pod: the pod that requests them.
        providers: name of the DeviceClass by resource.
        version: the release of the scheduler.
    """

    pod: ObjectView
    providers: Mapping[str, str]
    version: KubernetesVersion

    @property
    def claimed(self) -> Mapping[str, str]:
        """Those of ``providers`` for which devices are allocated; others are taken to be on every node."""
        if self.version.has(Change.RESOURCES_OF_CLASSES_GET_DEVICES):
            return self.providers
        return {name: found for name, found in self.providers.items() if not name.startswith(IMPLICIT_RESOURCE)}

    def provided_on(self, allocatable: Mapping[str, int]) -> frozenset[str]:
        """Return the resources that need not be on a node: those without a device plugin there.

        Args:
            allocatable: of the node; a resource with 0 counts as missing.
        """
        return frozenset(resource for resource in self.providers if not allocatable.get(resource))

    def claim_on(self, allocatable: Mapping[str, int]) -> ExtendedClaim:
        """Return the claim that the pod needs on a node; see ``provided_on``."""
        provided = self.provided_on(allocatable) & self.claimed.keys()
        requests: list[dict[str, Any]] = []
        mappings: list[dict[str, str]] = []
        for resource in sorted(provided):
            found = _requests_of(self.pod, resource, self.providers[resource], self.version)
            requests += found[0]
            mappings += found[1]
        namespace, name = self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": f"{name}-extended-resources-",
                "namespace": namespace,
                "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
                "ownerReferences": [pod_owner(self.pod, self.version)],
            },
            "spec": {"devices": {"requests": sorted(requests, key=lambda item: str(item["name"]))}},
        }
        return ExtendedClaim(document, tuple(mappings), provided)


def extended_resources(
    pod: ObjectView, classes: Iterable[ObjectView], version: KubernetesVersion
) -> ExtendedResources | None:
    """Return the extended resources of a pod that DeviceClasses provide; None if there are none."""
    asked = {name for name, amount in pod_requests(pod, version).items() if amount > 0}
    providers = {resource: name for resource, name in _providers(classes).items() if resource in asked}
    return ExtendedResources(pod, providers, version) if providers else None


def _requests_of(
    pod: ObjectView, resource: str, device_class: str, version: KubernetesVersion
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return the claim's requests for one resource, and their containers.

    Sidecars and regular containers have separate devices. Init containers run earlier, use the devices of later
    containers, and share one request for additional devices (kube-scheduler 1.37).
    """
    long_lived: list[dict[str, Any]] = []
    positions: list[int] = []
    mappings: list[dict[str, str]] = []
    inits = init_containers(pod)
    everyone = [*inits, *containers(pod)]
    passing = [number for number, item in enumerate(inits) if not is_sidecar(item)]
    for number, container in enumerate(everyone):
        if number not in passing and (count := _count(container, resource, version)) > 0:
            request = _request(number, container, resource, device_class, count)
            long_lived.append(request)
            positions.append(number)
            mappings.append(_mapping(container, resource, request))
    extra: dict[str, Any] | None = None
    in_passing: list[tuple[ObjectView, dict[str, Any] | None]] = []
    for number in passing:
        container = everyone[number]
        missing = _count(container, resource, version)
        for position, request in zip(positions, long_lived, strict=True):
            if position > number and missing > 0:
                in_passing.append((container, request))
                missing -= request["exactly"]["count"]
        if missing > 0:
            in_passing.append((container, None))
            if extra is None or extra["exactly"]["count"] < missing:
                extra = _request(number, container, resource, device_class, missing)
    mappings += [_mapping(container, resource, used or extra or {}) for container, used in in_passing]
    return [*long_lived, *([extra] if extra else [])], mappings


def _count(container: ObjectView, resource: str, version: KubernetesVersion) -> int:
    amount = ((container.get("resources") or {}).get("requests") or {}).get(resource)
    return 0 if amount is None else Quantity(amount, version).value


def _request(number: int, container: ObjectView, resource: str, device_class: str, count: int) -> dict[str, Any]:
    position = sorted(container["resources"]["requests"]).index(resource)
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    return {"name": f"container-{number}-request-{position}", "exactly": exactly}


def _mapping(container: ObjectView, resource: str, request: ObjectView) -> dict[str, str]:
    return {"containerName": container["name"], "resourceName": resource, "requestName": request["name"]}


def extended_claim_owner(claim: ObjectView) -> str | None:
    """UID of the pod for whose extended resources the claim was created; None for an ordinary claim."""
    metadata = claim["metadata"]
    if EXTENDED_CLAIM_ANNOTATION not in metadata.get("annotations", {}):
        return None
    return next((item["uid"] for item in metadata.get("ownerReferences", []) if item.get("controller")), None)


def _providers(classes: Iterable[ObjectView]) -> dict[str, str]:
    """Return the DeviceClass of each extended resource: the newest, then the first by name."""
    found: dict[str, str] = {}
    by_age = sorted(classes, key=lambda item: item["metadata"]["name"], reverse=True)
    for item in sorted(by_age, key=lambda item: item["metadata"].get("creationTimestamp", "")):
        name = item["metadata"]["name"]
        found[IMPLICIT_RESOURCE + name] = name
        if explicit := (item.get("spec") or {}).get("extendedResourceName"):
            found[explicit] = name
    return found


def allocation_problem(allocation: ObjectView, claim: str, rules: AllocatorRules) -> str:
    """Return why the scheduler cannot count with an allocation; empty if it can.

    Args:
        allocation: an AllocationResult.
        claim: ``<namespace>/<name>`` of its claim.
        rules: of the scheduler.
    """
    if not (rules.consumable_capacity and rules.has(Change.NEGATIVE_SHARES_STOP_THE_SCHEDULER)):
        return ""
    for result in (allocation.get("devices") or {}).get("results") or ():
        for name, amount in sorted((result.get("consumedCapacity") or {}).items()):
            if Quantity(amount, rules.version).sign < 0:
                device = "/".join((result["driver"], result["pool"], result["device"]))
                rule = f"consumed capacity {go_quote(name)} must not be negative, got {amount}"
                return f"claim {claim}, device {device}: {rule}"
    return ""


class NotReady(Exception):
    """A claim does not exist yet, or is being deleted; the text is kube-scheduler's.

    A queued pod waits, and nothing is written about it.
    """


class UnschedulableAndUnresolvable(Exception):
    """No node can take the pod because of its claims; the text is kube-scheduler's."""


class PodClaims(Struct, frozen=True):
    """The claims of a pod.

    Attributes:
        allocated: those that already have devices.
        pending: those that need devices, in the order of the pod's spec.
    """

    allocated: tuple[ObjectView, ...] = ()
    pending: tuple[ObjectView, ...] = ()

    def to_reserve(self, pod: ObjectView) -> tuple[ObjectView, ...]:
        """Return the allocated claims that do not name the pod as their consumer yet."""
        return tuple(claim for claim in self.allocated if not is_reserved_for(claim, pod))


def pod_claims_state(
    pod: ObjectView, claims: Mapping[ObjectKey, ObjectView], classes: Mapping[ObjectKey, ObjectView]
) -> PodClaims:
    """Return the pod's claims, sorted by the action they need.

    Args:
        pod: to be scheduled.
        claims: all ResourceClaims, as the scheduler assumes them.
        classes: all DeviceClasses.

    Raises:
        NotReady: the pod must wait for another component.
        UnschedulableAndUnresolvable: no node is possible.
    """
    namespace = pod["metadata"]["namespace"]
    allocated, pending = [], []
    for entry in pod_claims(pod):
        if not entry.name:
            continue  # from an earlier attempt with extended resources
        claim = claims.get((namespace, entry.claim)) if entry.claim else None
        if claim is None:
            raise NotReady(_missing(pod, entry.claim))
        if "deletionTimestamp" in claim["metadata"]:
            raise NotReady(f'resourceclaim "{entry.claim}" is being deleted')
        if entry.generated and not is_made_for(claim, pod):
            raise NotReady(not_made_for(claim, pod))
        if claim.get("status", {}).get("allocation"):
            allocated.append(claim)
            continue
        for request, device_class in _classes(claim):
            if ("", device_class) not in classes:
                raise UnschedulableAndUnresolvable(f"request {request}: device class {device_class} does not exist")
        pending.append(claim)
    return PodClaims(tuple(allocated), tuple(pending))


def _missing(pod: ObjectView, claim: str | None) -> str:
    if claim is None:
        return f'pod "{object_name(pod)}": ResourceClaim not created yet'
    return f'could not find ResourceClaim "{pod["metadata"]["namespace"]}/{claim}"'


def _classes(claim: ObjectView) -> Iterator[tuple[str, str]]:
    """Each request and sub-request of a claim with the name of its DeviceClass."""
    for request in claim["spec"].get("devices", {}).get("requests", []):
        if "exactly" in request:
            yield request["name"], request["exactly"].get("deviceClassName", "")
        for item in request.get("firstAvailable", []):
            yield f"{request['name']}/{item['name']}", item.get("deviceClassName", "")


class BindingFailed(Exception):
    """A driver reports that a device will not become ready; the text is kube-scheduler's."""


def results_with_binding_conditions(claim: ObjectView) -> list[Any]:
    """Return the results of a claim's allocation whose devices have binding conditions."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return [item for item in results if item.get("bindingConditions")]


def is_ready(claim: ObjectView) -> bool:
    """Whether all binding conditions of a claim's devices are true.

    Raises:
        BindingFailed: one of its devices has failed.
    """
    ready = True
    for result in results_with_binding_conditions(claim):
        conditions = _conditions(claim, result)
        for kind in result.get("bindingFailureConditions", []):
            if conditions.get(kind, {}).get("status") == "True":
                reason, message = conditions[kind].get("reason", ""), conditions[kind].get("message", "")
                name = claim["metadata"]["name"]
                raise BindingFailed(f'device binding failed: claim={name}, reason={reason}, message="{message}"')
        ready &= all(conditions.get(kind, {}).get("status") == "True" for kind in result["bindingConditions"])
    return ready


def _conditions(claim: ObjectView, result: ObjectView) -> dict[str, Any]:
    for device in claim.get("status", {}).get("devices", []):
        if all(device.get(name) == result.get(name) for name in ("driver", "pool", "device", "shareID")):
            return {item["type"]: item for item in device.get("conditions") or ()}
    return {}
