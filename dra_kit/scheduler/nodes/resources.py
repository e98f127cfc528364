"""What pods ask of a node besides devices: cpu, memory, pods, extended resources. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from dra_kit.resource.pods import containers, init_containers, is_sidecar
from dra_kit.values.json import ObjectView
from dra_kit.values.quantity import InvalidQuantity, Quantity


def pod_requests(pod: ObjectView) -> dict[str, int]:
    """Return what a pod needs of its node, in thousandths of each resource's unit (KEP-753, KEP-2837).

    That is the sum of its containers and sidecars, or more where an init container needs more while it runs.
    """
    total: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    for container in init_containers(pod):
        needs = _requests(container)
        if is_sidecar(container):
            sidecars.update(needs)
            needs = Counter()
        peak |= sidecars + needs
    for container in containers(pod):
        total.update(_requests(container))
    total.update(sidecars)
    # those of the whole pod, where it has any, take the place of the sum
    requests = Counter({**(total | peak), **_requests(pod["spec"])})
    requests.update(_amounts(pod["spec"].get("overhead")))
    return dict(requests)


def allocatable(node: ObjectView) -> dict[str, int]:
    """Return what a node has, in thousandths of each resource's unit."""
    return dict(_amounts(node.get("status", {}).get("allocatable")))


class Shortage(Struct, frozen=True):
    """What a node has too little of for a pod.

    Attributes:
        resource: its name; ``pods`` where there are too many.
        never: the node could not take the pod if it were empty.
    """

    resource: str
    never: bool

    @property
    def text(self) -> str:
        """In kube-scheduler's words (1.37)."""
        return "Too many pods" if self.resource == "pods" else f"Insufficient {self.resource}"


def shortages(
    requests: Mapping[str, int],
    allocatable: Mapping[str, int],
    used: Mapping[str, int],
    *,
    pods: int,
    provided: Iterable[str] = (),
) -> list[Shortage]:
    """Why a pod does not fit.

    Args:
        requests: of the pod.
        allocatable: of the node.
        used: sum of the requests of the node's pods.
        pods: on the node.
        provided: extended resources that devices of claims provide.
    """
    found = []
    limit = allocatable.get("pods", 0)
    if pods + 1 > limit // 1000:
        found.append(Shortage("pods", limit == 0))
    covered = set(provided)
    for name, amount in requests.items():
        has = allocatable.get(name, 0)
        if amount and name not in covered and amount > has - used.get(name, 0):
            found.append(Shortage(name, amount > has))
    return found


def _requests(holder: ObjectView) -> Counter[str]:
    return _amounts((holder.get("resources") or {}).get("requests"))


def _amounts(document: Any) -> Counter[str]:
    amounts: Counter[str] = Counter()
    for name, text in (document or {}).items():
        amounts[name] = _thousandths(text)
    return amounts


@lru_cache(maxsize=1024)
def _thousandths(text: str | int) -> int:
    """Return a quantity in thousandths; 0 for a text that is none, which the API server would not have stored."""
    try:
        return Quantity(text).milli_value
    except InvalidQuantity:
        return 0
