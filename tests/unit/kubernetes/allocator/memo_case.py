"""Pairs of attempts that differ in one property and therefore have different outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import DEFAULT
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.slice_reader import SliceReader
from tests.unit.kubernetes.allocator.cluster import (
    ALL,
    DRIVER,
    Document,
    claim,
    device,
    device_class,
    drawing,
    holder,
    request,
    result,
    zones,
)


class Half(NamedTuple):
    """One attempt on its own node; ``"@"`` in a document is replaced by the node's name.

    Attributes:
        devices: of the first slice.
        spec: more fields of the first slice.
        slices: specs of further slices.
        announced: ``resourceSliceCount``; 0 for the actual number.
        held: results of other claims for devices of the pool.
        labels: of the node.
        features: declared by the node.
        claims: of the pod.
    """

    devices: Sequence[Document] = (device("d0"),)
    spec: Document = {}
    slices: Sequence[Document] = ()
    announced: int = 0
    held: Sequence[Document] = ()
    labels: Document = {}
    features: Sequence[str] = ()
    claims: Sequence[Document] = (claim(request()),)


class Case(NamedTuple):
    """Proves that parts of a key are necessary.

    Attributes:
        parts: see ``MUTANTS``.
        halves: the attempts.
        gates: of the scheduler.
        shared: specs of slices of a pool for both nodes, which comes before their own pools.
        rules: DeviceTaintRules.
        between: change between the attempts, which are both on the first node then.
        lazy: slices are read without building models of plain devices.
    """

    parts: Sequence[str]
    halves: tuple[Half, Half]
    gates: AllocatorRules
    shared: Sequence[Document]
    rules: Sequence[Document]
    between: Callable[[AllocatorState], None] | None
    lazy: bool = False


def case(
    *parts: str,
    first: Document | None = None,
    second: Document | None = None,
    node_devices: tuple[Sequence[Document], Sequence[Document]] | None = None,
    pod_claims: tuple[Sequence[Document], Sequence[Document]] | None = None,
    gates: AllocatorRules = ALL,
    shared: Sequence[Document] = (),
    rules: Sequence[Document] = (),
    between: Callable[[AllocatorState], None] | None = None,
    lazy: bool = False,
    **both: Any,
) -> Case:
    """Return a case whose halves differ in ``first`` and ``second``, in their devices or in their claims."""
    one, other = both | (first or {}), both | (second or {})
    for field, pair in (("devices", node_devices), ("claims", pod_claims)):
        if pair is not None:
            one[field], other[field] = pair
    halves = Half(**one), Half(**other)
    return Case(parts, halves, gates, shared, rules, between, lazy)


def selecting(expression: str) -> Sequence[Document]:
    return [claim(request("r", 1, expression))]


def numbered(*numas: int, **fields: Any) -> Sequence[Document]:
    return [device(f"d{place}", attributes={"numa": {"int": numa}, **fields}) for place, numa in enumerate(numas)]


def slotted(**attributes: Document) -> Sequence[Document]:
    return [device("d0", attributes=attributes)]


def having(shareable: bool = True, **capacity: Document) -> Sequence[Document]:
    return [device("d0", capacity=capacity, allowMultipleAllocations=shareable)]


def memory(value: str = "4Gi", **policy: Any) -> Sequence[Document]:
    return having(memory={"value": value, **({"requestPolicy": policy} if policy else {})})


def asking(name: str = "memory", amount: str = "1Gi") -> Sequence[Document]:
    return [claim(request(capacity={"requests": {name: amount}}))]


def drawer(name: str, amount: int = 1) -> Document:
    return device(name, **drawing(amount))


def elsewhere(amount: int = 1) -> Document:
    return {"nodeName": "elsewhere", "devices": [drawer("e0", amount)]}


def zone(*values: str) -> Document:
    return {"nodeSelector": zones(*values)}


def tolerating(**fields: str) -> Sequence[Document]:
    tolerated = {"key": "bad", "operator": "Equal", "value": "v", "effect": "NoSchedule"} | fields
    return [claim(request(tolerations=[tolerated]))]


def tainted(**fields: str) -> Sequence[Document]:
    return [device("d0", taints=[{"key": "bad", "value": "v", "effect": "NoSchedule"} | fields])]


def two(**devices: Any) -> Sequence[Document]:
    """A claim for two devices, with constraints."""
    return [claim(request("r", 2), **devices)]


def derived(expression: str) -> Sequence[Document]:
    wanted = request("r", 2, derivedAttributes=[{"name": NUMA, "expression": expression}])
    return [claim(wanted, constraints=[{"matchAttribute": NUMA}])]


def share(amount: str) -> Document:
    return {"shareID": "a", "consumedCapacity": {"memory": amount}}


HELD: Final = {"device": "d0"}
NUMA: Final = f"{DRIVER}/numa"
SLOT: Final = f"{DRIVER}/slot"
THE_SLOT: Final = f'device.attributes["{DRIVER}"].slot'
ANY_SLOT: Final = "device.attributes[device.driver].?slot"  # the text does not determine which attributes it reads
TWO_SHARES: Final = [claim(request("r0"), request("r1"))]
EVERYTHING: Final = [claim(request("r", None))]
TAKEN: Final = {"devices": {"results": [result("d0", "n1-pool")]}}
_SCOPES: Final = {"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"}
CLASSES: Final = [device_class(), device_class("none", "false"), device_class("slotted", f"{THE_SLOT} == 0")]


def world_of(case: Case) -> tuple[AllocatorState, list[Node]]:
    """The cluster of a case and its two nodes."""
    slices = _pool("all", {"allNodes": True}, case.shared)
    holders: list[Document] = []
    places: list[Node] = []
    for name, half in zip(("n1", "n2"), case.halves, strict=True):
        own = _pool(name, {"nodeName": "@"}, [{"devices": half.devices} | half.spec, *half.slices], half.announced)
        slices += json.loads(json.dumps(own).replace('"@"', f'"{name}"'))
        holders += [holder(result(item["device"], **item | {"pool": f"{name}-pool"})) for item in half.held]
        labels = {key: value.replace("@", name) for key, value in half.labels.items()}
        places.append(Node(name, labels, frozenset(half.features)))
    read: Sequence[Any] = list(map(SliceReader(DEFAULT).read, slices)) if case.lazy else slices
    return AllocatorState(slices=read, classes=CLASSES, taint_rules=case.rules, claims=holders, version=DEFAULT), places


def _pool(name: str, scope: Document, slices: Sequence[Document], announced: int = 0) -> list[Document]:
    where = {"name": f"{name}-pool", "generation": 1, "resourceSliceCount": announced or len(slices)}
    return [
        {
            "metadata": {"name": f"{name}-{number}"},
            "spec": {"driver": DRIVER, "pool": where, **({} if _SCOPES & spec.keys() else scope), **spec},
        }
        for number, spec in enumerate(slices)
    ]
