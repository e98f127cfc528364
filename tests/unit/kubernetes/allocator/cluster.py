"""Objects of a small cluster, with defaults for irrelevant fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import DEFAULT
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.v1 import AllocationResult

Document: TypeAlias = dict[str, Any]

DRIVER = "gpu.example.com"
NODE = Node("node-1", {"kubernetes.io/hostname": "node-1"})
ALL = AllocatorRules.alpha(DEFAULT)


def device(name: str, **fields: Any) -> Document:
    return {"name": name, **fields}


def slice_of(*devices: Document, name: str = "slice-1", pool: str | Document = "pool-a", **spec: Any) -> Document:
    """Return a slice on NODE, the only one of its pool unless ``pool`` is an object."""
    scope = {"allNodes", "nodeSelector", "perDeviceNodeSelection", "nodeName"}
    content: Document = {
        "driver": DRIVER,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1} if isinstance(pool, str) else pool,
        **({} if scope & spec.keys() else {"nodeName": NODE.name}),
        **({"devices": list(devices)} if devices else {}),
    }
    return {"metadata": {"name": name}, "spec": content | spec}


def device_class(name: str = "any", *selectors: str, **spec: Any) -> Document:
    return {"metadata": {"name": name}, "spec": {"selectors": _selectors(selectors), **spec}}


def request(name: str = "r", count: int | None = 1, *selectors: str, **fields: Any) -> Document:
    """A request for ``count`` devices of class ``any``, or for all if that is None."""
    return {"name": name, "exactly": way(count, *selectors, **fields)}


def way(count: int | None = 1, *selectors: str, **fields: Any) -> Document:
    """Return the content of ``exactly`` or, with a name, of ``firstAvailable``."""
    mode: Document = {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    return {"deviceClassName": "any", "selectors": _selectors(selectors), **mode, **fields}


def claim(*requests: Document, name: str = "claim", **devices: Any) -> Document:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def holder(*results: Document) -> Document:
    """A claim with an allocation of these results."""
    return {"metadata": {"name": "other"}, "status": {"allocation": {"devices": {"results": list(results)}}}}


def result(name: str, pool: str = "pool-a", **fields: Any) -> Document:
    return {"request": "r", "driver": DRIVER, "pool": pool, "device": name, **fields}


def counters(amount: int) -> Document:
    """The content of a slice with one counter."""
    return {"sharedCounters": [{"name": "set", "counters": {"c": {"value": str(amount)}}}]}


def drawing(amount: int) -> Document:
    """The field of a device that consumes this counter."""
    return {"consumesCounters": [{"counterSet": "set", "counters": {"c": {"value": str(amount)}}}]}


def zones(*names: str) -> Document:
    """A node selector with a term for each zone."""
    return {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]} for name in names
        ]
    }


def snapshot(*slices: Document, classes: Sequence[Document] | None = None, **more: Any) -> AllocatorState:
    known = [device_class()] if classes is None else classes
    return AllocatorState(**{"version": DEFAULT, **more}, slices=slices, classes=known)


def allocate(
    world: AllocatorState, *claims: Document, gates: AllocatorRules = ALL, **options: Any
) -> list[AllocationResult] | None:
    return Allocator(world, gates, **options).allocate(NODE, claims)


def names(allocations: Iterable[AllocationResult] | None) -> list[list[str]] | None:
    """The devices of each claim."""
    if allocations is None:
        return None
    return [[one.device for one in allocation.devices.results] for allocation in allocations]


def without_share_ids(allocations: Iterable[AllocationResult]) -> list[Document]:
    """The allocations as JSON without random values."""
    shown = [item.to_json() for item in allocations]
    for item in shown:
        for one in item["devices"]["results"]:
            one.pop("shareID", None)
    return shown


def _selectors(expressions: Sequence[str]) -> list[Document]:
    return [{"cel": {"expression": expression}} for expression in expressions]
