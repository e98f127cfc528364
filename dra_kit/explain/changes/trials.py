"""Asks the allocator what would become of a claim if something were different."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from dra_kit.errors import AllocationError
from dra_kit.explain.budget import Budget
from dra_kit.explain.cluster.cluster import Cluster
from dra_kit.explain.verdicts import Request
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.selectors import CelEvaluator
from dra_kit.kubernetes.resource.v1 import DeviceClass, ResourceClaim

_NODES: Final = 20
"""Nodes on which a change is tried: those with most devices come first."""

_STEPS: Final = 200_000
"""Visits of a device after which a trial is given up: a tenth of what a verdict may take, since trials are many."""


class Trials:
    """Tries claims in a cluster.

    Args:
        cluster: the cluster.
        evaluator: caches the results of selectors.
        budget: how much work the trials may be.
        beside: other claims that the pod needs together with the one that is tried.
        nodes: names of the nodes that count; None means all.
    """

    def __init__(
        self,
        cluster: Cluster,
        evaluator: CelEvaluator,
        budget: Budget,
        beside: Sequence[ResourceClaim] = (),
        nodes: Collection[str] | None = None,
    ) -> None:
        self._cluster = cluster
        self._evaluator = evaluator
        self._budget = budget
        self._beside = tuple(beside)
        self._nodes = {node.name: node for node in cluster.nodes if nodes is None or node.name in nodes}

    def allowed(self, names: Iterable[str]) -> Iterable[str]:
        """Those of the nodes that count."""
        return (name for name in names if name in self._nodes)

    def promising(self, requests: Sequence[Request]) -> list[str]:
        """Return the nodes to try, sorted by the number of requests with devices there, then by that of devices."""
        counts: Counter[str] = Counter()
        served: Counter[str] = Counter()
        for request in requests:
            for judged in request.choices:
                counts.update(judged.fitting)
            served.update({name for judged in request.choices for name in judged.fitting})
        names = sorted(counts, key=lambda name: (-served[name], -counts[name]))
        return [*self.allowed(names)][:_NODES]

    def fits(
        self,
        claim: ResourceClaim,
        nodes: Sequence[str],
        *,
        released: bool = False,
        device_class: DeviceClass | None = None,
    ) -> bool:
        """Whether one of some nodes has devices for a claim.

        Args:
            claim: the claim, changed or not.
            nodes: names of the nodes, the best first.
            released: as if no claim held any device.
            device_class: as if a class were like this.

        Raises:
            Unsupported: Kubernetes could decide this, and dra-kit cannot.
            WorkSpent: it is too much work.
        """
        classes = () if device_class is None else (device_class,)
        snapshot = self._cluster.snapshot.overlaid(classes=classes, released=released)
        allocator = Allocator(snapshot, self._cluster.gates, evaluator=self._evaluator, max_steps=_STEPS)
        attempt = allocator.attempt([claim, *self._beside], is_aborted=self._budget.asked)
        for name in [*self.allowed(nodes)][:_NODES]:
            try:
                if attempt.on(self._nodes[name]) is not None:
                    return True
            except AllocationError as error:
                if not error.node_only:
                    return False
        return False
