"""Claims for which each request alone finds devices, and all together do not: constraints, and rivalry for devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeAlias

from dra_kit.allocator.attributes import elements, published
from dra_kit.allocator.devices import DeviceID
from dra_kit.explain.verdicts import DeviceVerdict, NodeOutcome, Request
from dra_kit.resource.v1 import DeviceConstraint, ResourceClaim

_NODES: Final = 20
"""Nodes on which it is tried what would help: those with most devices that fit."""

_VALUES: Final = 5

Outcomes: TypeAlias = Callable[[Sequence[ResourceClaim], Sequence[str]], Sequence[NodeOutcome]]
"""The allocator's verdicts on claims that a pod needs together, on some nodes."""


def constraint_blockers(claim: ResourceClaim, requests: Sequence[Request], outcomes: Outcomes) -> Iterator[str]:
    """Which constraint cannot be satisfied, or that the requests ask for the same devices.

    Args:
        claim: does not fit, although some node has enough devices for each of its requests.
        requests: of the claim.
        outcomes: asks the allocator.
    """
    nodes = _promising(requests)
    constraints = claim.spec.devices.constraints
    found = False
    for constraint in constraints:
        others = tuple(each for each in constraints if each is not constraint)
        if _fits(claim, others, outcomes, nodes):
            found = True
            yield _sentence(constraint, requests, nodes)
    if found:
        return
    if constraints and _fits(claim, (), outcomes, nodes):
        names = ", ".join(_attribute(constraint) for constraint in constraints)
        yield f"no set of devices satisfies all constraints at once: {names}"
    elif len(requests) > 1:
        yield (
            "each request finds devices for itself, but no node has devices for all of them at once: they need the "
            "same devices, or share counters or capacity"
        )
    else:
        yield "no node has enough devices at once: those that fit share counters or capacity"


def _promising(requests: Sequence[Request]) -> list[str]:
    """The nodes with most fitting devices."""
    counts: Counter[str] = Counter()
    for request in requests:
        for way in request.ways:
            counts.update(way.fitting)
    return [name for name, _ in counts.most_common(_NODES)]


def _fits(
    claim: ResourceClaim, constraints: Sequence[DeviceConstraint], outcomes: Outcomes, nodes: Sequence[str]
) -> bool:
    devices = claim.spec.devices.model_copy(update={"constraints": tuple(constraints)})
    relaxed = claim.model_copy(update={"spec": claim.spec.model_copy(update={"devices": devices})})
    return any(outcome.allocations is not None for outcome in outcomes([relaxed], nodes))


def _sentence(constraint: DeviceConstraint, requests: Sequence[Request], nodes: Sequence[str]) -> str:
    attribute = _attribute(constraint)
    short = attribute.partition("/")[2] or attribute
    whose = f"of {' and '.join(constraint.requests)}" if constraint.requests else "of the claim"
    rule = "have the same" if constraint.match_attribute is not None else "each have another"
    sentence = f"constraint: all devices {whose} must {rule} {short} ({attribute})"
    counted = Counter(
        value for verdict in _concerned(constraint, requests, nodes[:1]) for value in _values(verdict, attribute)
    )
    if not counted:
        return sentence
    told = [f"{value} ({number} {'device' if number == 1 else 'devices'})" for value, number in counted.items()]
    more = ", …" if len(told) > _VALUES else ""
    return f"{sentence}; on {nodes[0]} those that fit have {', '.join(told[:_VALUES])}{more}"


def _concerned(
    constraint: DeviceConstraint, requests: Sequence[Request], nodes: Sequence[str]
) -> Collection[DeviceVerdict]:
    """The devices on some nodes that fit one of the requests which a constraint is about, each once."""
    found: dict[DeviceID, DeviceVerdict] = {}
    for request in requests:
        for way in request.ways:
            if not constraint.requests or not {request.name, way.name}.isdisjoint(constraint.requests):
                found.update({fit.id: fit for fit in way.fits if not set(nodes).isdisjoint(fit.nodes)})
    return found.values()


def _attribute(constraint: DeviceConstraint) -> str:
    return constraint.match_attribute or constraint.distinct_attribute or "?"


def _values(verdict: DeviceVerdict, name: str) -> list[str]:
    attribute = published(verdict.device, name)
    if attribute is None:
        return ["none at all"]
    return [str(value) if kind != "string" else f'"{value}"' for kind, value in sorted(elements(attribute))]
