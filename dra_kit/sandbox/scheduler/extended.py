"""Extended resources that DeviceClasses provide (KEP-5004): the claim the scheduler makes of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_kit.kubelet.pods import containers, init_containers
from dra_kit.sandbox.controllers.generation import pod_owner
from dra_kit.sandbox.pods import Object
from dra_kit.values.quantity import Quantity

EXTENDED_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"
_IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class ExtendedClaim:
    """The claim for a pod's extended resources.

    Attributes:
        document: the ResourceClaim to create.
        mappings: ``pod.status.extendedResourceClaimStatus.requestMappings``.
    """

    document: dict[str, Any]
    mappings: tuple[dict[str, str], ...]

    @property
    def resources(self) -> frozenset[str]:
        """Names of the extended resources that it provides."""
        return frozenset(item["resourceName"] for item in self.mappings)


def extended_claim(pod: Object, classes: Iterable[Object], advertised: Iterable[str]) -> ExtendedClaim | None:
    """The claim that a pod needs for the extended resources which DeviceClasses provide; None without any.

    Args:
        pod: asks for resources.
        classes: all DeviceClasses.
        advertised: resources that nodes have themselves, from device plugins; those are not claimed.
    """
    providers = _providers(classes)
    known = set(advertised)
    requests: list[dict[str, Any]] = []
    mappings: list[dict[str, str]] = []
    for number, container in enumerate([*init_containers(pod), *containers(pod)]):
        wanted: Mapping[str, Any] = (container.get("resources") or {}).get("requests") or {}
        for position, resource in enumerate(sorted(wanted)):
            count = Quantity(wanted[resource]).value
            if resource not in providers or resource in known or count <= 0:
                continue
            name = f"container-{number}-request-{position}"
            exactly = {"deviceClassName": providers[resource], "allocationMode": "ExactCount", "count": count}
            requests.append({"name": name, "exactly": exactly})
            mappings.append({"containerName": container["name"], "resourceName": resource, "requestName": name})
    if not requests:
        return None
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": f"{name}-extended-resources-",
            "namespace": namespace,
            "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
            "ownerReferences": [pod_owner(pod)],
        },
        "spec": {"devices": {"requests": requests}},
    }
    return ExtendedClaim(document, tuple(mappings))


def made_for(claim: Object) -> str | None:
    """UID of the pod for whose extended resources the claim was made; None where it is an ordinary claim."""
    metadata = claim["metadata"]
    if EXTENDED_CLAIM_ANNOTATION not in metadata.get("annotations", {}):
        return None
    return next((item["uid"] for item in metadata.get("ownerReferences", []) if item.get("controller")), None)


def _providers(classes: Iterable[Object]) -> dict[str, str]:
    """Names of DeviceClasses by the extended resource they provide; of several the newest, then the first by name."""
    found: dict[str, str] = {}
    by_age = sorted(classes, key=lambda item: item["metadata"]["name"], reverse=True)
    for item in sorted(by_age, key=lambda item: item["metadata"].get("creationTimestamp", "")):
        name = item["metadata"]["name"]
        found[_IMPLICIT + name] = name
        if explicit := item["spec"].get("extendedResourceName"):
            found[explicit] = name
    return found
