"""Extended resources that DeviceClasses provide (KEP-5004)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_kit.diagnosis.explain.cluster import ClusterView, model_of_claim, named
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.kubernetes.scheduler.claims import IMPLICIT_RESOURCE, extended_resources
from dra_kit.kubernetes.scheduler.nodes import pod_requests
from dra_kit.kubernetes.values.json import ObjectView

_NATIVE: Final = "kubernetes.io/"


class ExtendedResource(Struct, frozen=True):
    """An extended resource that a pod requests (KEP-5004).

    Attributes:
        device_class: the DeviceClass that provides it on nodes without a device plugin for it; empty if none does.
        by_claim: names of the nodes on which kube-scheduler creates a claim for it.
        by_plugin: names of the nodes on which a device plugin provides it.
        others: further DeviceClasses with the same name of the resource, which kube-scheduler does not use.
        off_in: the release of a cluster in which DeviceClasses provide no extended resources; empty if they do.
    """

    name: str
    device_class: str
    by_claim: tuple[str, ...]
    by_plugin: tuple[str, ...]
    others: tuple[str, ...] = ()
    off_in: str = ""

    @property
    def text(self) -> str:
        """A sentence about what provides it."""
        ways = []
        if self.by_claim:
            ways.append(f"by devices of class {self.device_class} on {named(self.by_claim)}")
        if self.by_plugin:
            ways.append(f"by a device plugin on {named(self.by_plugin)}")
        if not ways and self.off_in:
            return (
                f"{self.name} is not provided: no device plugin has it, and Kubernetes {self.off_in} drops "
                "extendedResourceName of DeviceClasses, as the feature gate DRAExtendedResource is off (on by default "
                "from 1.36); request the devices with a ResourceClaim, or switch the gate on"
            )
        if not ways:
            return (
                f"{self.name} is not provided: neither a device plugin nor a DeviceClass has it. A DeviceClass has it "
                f"with extendedResourceName: {self.name}, which Kubernetes 1.34 and 1.35 drop without an error unless "
                "the feature gate DRAExtendedResource is on"
            )
        others = f"; {', '.join(self.others)} has the same extendedResourceName, " if self.others else ""
        why = "but kube-scheduler uses the newest class (of equal age, the first by name)" if self.others else ""
        return f"{self.name} is provided {', '.join(ways)}{others}{why}"

    def to_json(self) -> dict[str, Any]:
        """Return the resource as JSON, for programs."""
        return {
            "name": self.name,
            "deviceClass": self.device_class,
            "byClaim": list(self.by_claim),
            "byDevicePlugin": list(self.by_plugin),
            "otherClasses": list(self.others),
        }


class ResourceProvision(Struct, frozen=True):
    """Nodes on which one claim provides the same extended resources of a pod.

    Attributes:
        resources: names of the resources.
        nodes: names of the nodes.
        claim: the claim that kube-scheduler creates there; None if it creates none.
    """

    resources: frozenset[str]
    nodes: tuple[str, ...]
    claim: ResourceClaim | None = None


def provisions(
    pod: ObjectView, classes: Sequence[ObjectView], allocatable: Mapping[str, Mapping[str, int]]
) -> list[ResourceProvision]:
    """Group nodes by the claim that a pod needs there for its extended resources, the largest group first."""
    extended = extended_resources(pod, classes)
    if extended is None:
        return [ResourceProvision(frozenset(), tuple(allocatable))]
    groups: dict[frozenset[str], list[str]] = {}
    for node, amounts in allocatable.items():
        groups.setdefault(extended.provided_on(amounts), []).append(node)
    if not groups:
        groups[extended.provided_on({})] = []
    found = []
    for resources, nodes in groups.items():
        claim = None
        if resources:
            document = extended.claim_on(allocatable[nodes[0]] if nodes else {}).document
            metadata = document["metadata"]
            claim = model_of_claim({**document, "metadata": {**metadata, "name": f"{metadata['generateName']}*"}})
        found.append(ResourceProvision(resources, tuple(nodes), claim))
    return sorted(found, key=lambda provision: -len(provision.nodes))


def provided_resources(
    pod: ObjectView, cluster: ClusterView, allocatable: Mapping[str, Mapping[str, int]]
) -> Iterator[ExtendedResource]:
    """Yield what provides each extended resource of a pod, on all nodes or on the pod's node."""
    asked = [name for name, amount in pod_requests(pod).items() if amount > 0 and _is_extended(name)]
    classes = cluster.extended_classes
    extended = extended_resources(pod, classes)
    providers = extended.providers if extended is not None else {}
    off_in = "" if cluster.extended_resources else cluster.version
    place = pod["spec"].get("nodeName")
    mappings = ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
    taken = {mapping.get("resourceName") for mapping in mappings}
    for name in sorted(asked):
        by_plugin = tuple(node for node, amounts in allocatable.items() if amounts.get(name))
        by_claim = tuple(node for node in allocatable if node not in by_plugin) if name in providers else ()
        if place:  # already decided
            by_claim, by_plugin = ((place,), ()) if name in taken else ((), by_plugin)
        provider = providers.get(name, "")
        named_so = [each["metadata"]["name"] for each in classes if each["spec"].get("extendedResourceName") == name]
        others = tuple(each for each in sorted(named_so) if each != provider) if name in providers else ()
        yield ExtendedResource(name, provider, by_claim, by_plugin, others, off_in)


def _is_extended(name: str) -> bool:
    return name.startswith(IMPLICIT_RESOURCE) or ("/" in name and _NATIVE not in name)
