"""Small clusters to explain claims in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterView, MissingRight, model_of_claim
from dra_kit.diagnosis.explain.verdicts import ClaimExplanation, DeviceVerdict
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Release
from tests.unit.kubernetes.allocator.cluster import claim, device, device_class, request, result, slice_of

Document: TypeAlias = dict[str, Any]

PIZZA = 'device.attributes["gpu.example.com"]'
"""The attributes of the devices, in expressions."""

__all__ = ["claim", "device", "device_class", "request", "slice_of"]  # from elsewhere


def pizza(name: str, cheese: str = "mozzarella", **fields: Any) -> Document:
    return device(name, attributes={"cheese": {"string": cheese}}, **fields)


def local(name: str, *devices: Document) -> Document:
    """A pool of a node, by the node's name."""
    return slice_of(*devices, name=f"slice-{name}", pool=name, nodeName=name)


def node(name: str = "node-1", **labels: str) -> Document:
    return {"metadata": {"name": name, "labels": labels}}


def held(name: str, *devices: str, namespace: str = "default", **fields: Any) -> Document:
    """A claim that holds devices."""
    results = [result(device_, **fields) for device_ in devices]
    return {
        "metadata": {"name": name, "namespace": namespace},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def cluster(
    *slices: Document,
    classes: Iterable[Document] | None = None,
    claims: Iterable[Document] = (),
    nodes: Iterable[Document] | None = None,
    rules: Iterable[Document] = (),
    gates: AllocatorRules | None = None,
    gaps: Iterable[MissingRight] = (),
    **more: Iterable[Document],
) -> ClusterView:
    documents: Mapping[str, list[Document]] = {
        "ResourceSlice": list(slices),
        "DeviceClass": [device_class()] if classes is None else list(classes),
        "ResourceClaim": list(claims),
        "DeviceTaintRule": list(rules),
        "Node": [node()] if nodes is None else list(nodes),
        **{kind: list(found) for kind, found in more.items()},
    }
    return ClusterView(
        documents,
        gates=gates or AllocatorRules.of(Release.of().also("DRAFractionalCapacityRange")),
        gaps=gaps,
    )


def explain(where: ClusterView, wanted: Document) -> ClaimExplanation:
    return ClaimExplainer(where).explain(model_of_claim(wanted, where.gates))


def verdicts(where: ClusterView, wanted: Document) -> dict[str, DeviceVerdict]:
    """The verdict on each device for the first request of a claim, by the device's name."""
    [first, *_] = explain(where, wanted).requests
    return {verdict.id.device: verdict for verdict in first.choices[0].devices}


def texts(where: ClusterView, wanted: Document | None = None) -> dict[str, list[str]]:
    """Return the reasons against each device for the first request of a claim."""
    found = verdicts(where, wanted or claim(request()))
    return {name: [reason.text for reason in verdict.reasons] for name, verdict in found.items()}


def reasons(where: ClusterView, wanted: Document | None = None) -> dict[str, list[str]]:
    """The checks that each device fails."""
    found = verdicts(where, wanted or claim(request()))
    return {name: [str(reason.check) for reason in verdict.reasons] for name, verdict in found.items()}
