"""Nodes on which a claim gets no devices, by the verdicts on the devices alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_kit.explain.reasons import Check, Reason
from dra_kit.explain.verdicts import JudgedChoice, Request
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.v1 import ResourceClaim


def hopeless_nodes(claim: ResourceClaim, requests: Sequence[Request], nodes: Sequence[Node]) -> frozenset[str]:
    """Find the nodes that have too few devices for one of the requests, and no error.

    The first node is never among them: an error that ends the attempt on every node comes up there.

    Args:
        claim: without an allocation.
        requests: of the claim.
        nodes: all nodes.
    """
    choices = [judged for request in requests for judged in request.choices]
    if any(judged.choice is None or judged.choice.all_devices for judged in choices):
        return frozenset()
    if claim.spec.devices.constraints and any(
        judged.choice is not None and judged.choice.derived for judged in choices
    ):
        return frozenset()  # a constraint on a derived attribute may fail before a request is found to be hopeless
    hopeful = {nodes[0].name} if nodes else set()
    hopeful |= {name for judged in choices for name in _with_errors(judged)}
    sufficient = [set().union(*map(_sufficient, request.choices)) for request in requests]
    if sufficient:
        hopeful |= set.intersection(*sufficient)
    else:
        hopeful |= {node.name for node in nodes}
    return frozenset(node.name for node in nodes if node.name not in hopeful)


def _sufficient(judged: JudgedChoice) -> set[str]:
    """Find the nodes with enough fitting devices for a choice."""
    assert judged.choice is not None  # noqa: S101 - the caller looked
    # one that can be shared may be taken more than once
    needed = 1 if any(verdict.shareable for verdict in judged.fits) else judged.choice.count
    return {name for name, number in judged.fitting.items() if number >= needed}


def _with_errors(judged: JudgedChoice) -> Iterable[str]:
    """Find the nodes with a device whose reasons include an error."""
    known: dict[int, bool] = {}  # like devices share their reasons
    for verdict in judged.devices:
        wrong = known.get(id(verdict.reasons))
        if wrong is None:
            wrong = known[id(verdict.reasons)] = _is_error(verdict.reasons)
        if wrong:
            yield from verdict.nodes


def _is_error(reasons: Iterable[Reason]) -> bool:
    for reason in reasons:  # noqa: SIM110 - asked of every device of a cluster: any() takes longer
        if reason.check is Check.ERROR or reason.check is Check.POOL:
            return True
    return False
