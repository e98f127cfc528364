"""Allocating the claims of one pod: first what each request means on a node, then the search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.cluster.nodes import Node
from dra_kit.allocator.cluster.pools import NodePool, NodePools
from dra_kit.allocator.cluster.snapshot import Snapshot
from dra_kit.allocator.gates import Gates
from dra_kit.allocator.memo.memo import Memo
from dra_kit.allocator.requests.constraints import constraints_of
from dra_kit.allocator.requests.requests import Choice, choices_of
from dra_kit.allocator.search.holding import Holding
from dra_kit.allocator.search.prospects import ClaimSearch, NodeChoice
from dra_kit.allocator.search.result import Allocations, node_selector
from dra_kit.allocator.search.search import Limits, Search, Solution, check_size
from dra_kit.allocator.selectors.expressions import CelEvaluator, Evaluator
from dra_kit.allocator.selectors.selection import Selection
from dra_kit.errors import AllocationError
from dra_kit.resource.v1 import AllocationResult, ResourceClaim
from dra_kit.values.json import ObjectView

MAX_STEPS = 2_000_000
"""Tries of a device after which a search gives up: some ten seconds, which kube-scheduler has, too.

It tries more in that time, but also all those devices that are left out here (see ``shortlist``).
"""


class Allocator:
    """Allocates devices as kube-scheduler of Kubernetes 1.37 does.

    One for all pods caches the results of selectors, and of attempts on nodes that look the same.

    Args:
        snapshot: the cluster; changes of it are seen by the next attempt.
        gates: of the scheduler, by default those of a plain Kubernetes 1.37.
        evaluator: of CEL expressions, by default ``dra_kit.cel``.
        max_steps: visits of a device after which an attempt gives up.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        gates: Gates | None = None,
        *,
        evaluator: Evaluator | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._snapshot = snapshot
        self._gates = gates or Gates.of("1.37")
        self._evaluator = evaluator or CelEvaluator()
        self._max_steps = max_steps
        self._memo = Memo(snapshot.usage, self._gates, self._evaluator)

    def allocate(self, node: Node, claims: Sequence[ResourceClaim | ObjectView]) -> list[AllocationResult] | None:
        """Find devices for all claims of a pod on one node; the snapshot is not changed.

        Args:
            node: the node.
            claims: those without an allocation, in the order of the pod. Defaults of the API are filled in.

        Returns:
            The allocation of each claim, or None if they do not fit on this node.

        Raises:
            AllocationError: see its kinds; with ``node_only`` other nodes may still fit.
            Unsupported: Kubernetes could decide this, and this allocator cannot.
            pydantic.ValidationError: a claim does not have the shape of the API.
        """
        found = self.attempt(claims).on(node)
        return None if found is None else list(found)

    def attempt(
        self, claims: Sequence[ResourceClaim | ObjectView], *, is_aborted: Callable[[], bool] = lambda: False
    ) -> Attempt:
        """Return the attempt for one pod, to be made on one node after the other.

        Args:
            claims: see ``allocate``.
            is_aborted: asked now and then; once it is true, every search ends with an AllocationError.
        """
        limits = Limits(self._max_steps, is_aborted)
        return Attempt(self._snapshot, self._gates, self._evaluator, claims, memo=self._memo, limits=limits)


class Attempt:
    """The claims of one pod, read once for all nodes; see :meth:`Allocator.attempt`."""

    def __init__(
        self,
        snapshot: Snapshot,
        gates: Gates,
        evaluator: Evaluator,
        claims: Iterable[ResourceClaim | ObjectView],
        *,
        memo: Memo,
        limits: Limits,
    ) -> None:
        self._snapshot = snapshot
        self._gates = gates
        self._evaluator = evaluator
        self._memo = memo
        self._limits = limits
        self._claims = [ResourceClaim.model_validate(claim) for claim in claims]
        self._requests = [
            [choices_of(claim, request, snapshot.classes, gates) for request in claim.spec.devices.requests]
            for claim in self._claims
        ]
        self._choices = _without_errors(self._requests)
        self._question = None if self._choices is None else memo.question(self._claims, self._choices)

    def on(self, node: Node) -> Allocations | None:
        """Find devices on one node; arguments, result and errors are those of :meth:`Allocator.allocate`."""
        pools = self._snapshot.pools(node, self._gates)
        key = None if self._question is None else self._question.key(node, pools)
        found = self._memo.outcome(key, lambda: self._search(node, pools))
        if found is None or self._choices is None:
            return None
        return Allocations(self._claims, self._choices, found, pools, node=node, gates=self._gates)

    def _search(self, node: Node, pools: NodePools) -> Solution | None:
        selection = Selection(node, self._gates, self._evaluator)
        holding = Holding(node, self._gates, self._snapshot.usage, pools.ordered)
        claims = [
            ClaimSearch(
                self._requests_on(claim, requests, pools.ordered, selection, holding),
                constraints_of(claim, self._gates, selection.attribute),
            )
            for claim, requests in zip(self._claims, self._requests, strict=True)
        ]
        search = Search(claims, pools.devices, selection, holding, self._limits)
        if search.run():
            for claim, picks in zip(self._claims, search.picks, strict=True):
                node_selector(claim, picks, node, self._gates)  # an error of the result is one of the attempt
            return search.solution()
        if any(pool.invalid for pool in pools.ordered):
            raise AllocationError("invalid resource pools were encountered", kind="invalid-pools", node_only=True)
        return None

    def _requests_on(
        self,
        claim: ResourceClaim,
        requests: Sequence[Sequence[Choice | AllocationError]],
        pools: Sequence[NodePool],
        selection: Selection,
        holding: Holding,
    ) -> list[list[NodeChoice]]:
        counted = 0
        on_node = []
        for request, choices in zip(claim.spec.devices.requests, requests, strict=True):
            alternatives = []
            for choice in choices:
                if isinstance(choice, AllocationError):
                    raise choice
                everything = _everything(choice, pools, selection, holding) if choice.all_devices else None
                alternatives.append(NodeChoice(choice, everything))
            minimum = min(alternative.count for alternative in alternatives)
            check_size(f"{claim.metadata.namespace}/{claim.metadata.name}", request.name, minimum, counted)
            counted += minimum
            on_node.append(alternatives)
        return on_node


def _without_errors(
    requests: Sequence[Sequence[Sequence[Choice | AllocationError]]],
) -> list[list[list[Choice]]] | None:
    """Return the choices of each request of each claim; None if one is an error, which ends every attempt."""
    found = [[[choice for choice in choices if isinstance(choice, Choice)] for choices in asked] for asked in requests]
    return found if _count(found) == _count(requests) else None


def _count(requests: Sequence[Sequence[Sequence[object]]]) -> int:
    return sum(len(choices) for asked in requests for choices in asked)


def _everything(
    choice: Choice, pools: Sequence[NodePool], selection: Selection, holding: Holding
) -> tuple[AdvertisedDevice, ...]:
    """Return the devices that mode All asks for; those in use are among them, since the request fails without them."""
    devices = []
    for pool in pools:
        if pool.incomplete or pool.invalid:
            state, kind = ("being updated", "incomplete") if pool.incomplete else ("invalid", "invalid")
            raise choice.error(
                f"asks for all devices, but resource pool {pool.id} is currently {state}", kind=f"all-pool-{kind}"
            )
        devices += [
            device
            for device in pool.devices
            if selection.matches(choice, device) and holding.could_ever_serve(choice, device)
        ]
    return tuple(devices)
