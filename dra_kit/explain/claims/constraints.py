"""Claims for which each request alone finds devices, and all together do not: constraints, and rivalry for devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dra_kit.explain.changes.changed import with_constraints
from dra_kit.explain.changes.trials import Trials
from dra_kit.explain.claims.disjoint import disjoint_requests
from dra_kit.explain.text.summary import counted
from dra_kit.explain.verdicts import DeviceVerdict, JudgedChoice, Request
from dra_kit.kubernetes.allocator.devices import DeviceID, Scalar, elements, published_attribute
from dra_kit.kubernetes.resource.v1 import DeviceConstraint, ResourceClaim

_VALUES: Final = 5


def constraint_blockers(claim: ResourceClaim, requests: Sequence[Request], trials: Trials) -> Iterator[str]:
    """Which constraint cannot be satisfied, or that the requests ask for devices of different nodes, or for the same.

    Args:
        claim: does not fit, although some node has enough devices for each of its requests.
        requests: of the claim.
        trials: asks the allocator.
    """
    nodes = trials.promising(requests)
    constraints = claim.spec.devices.constraints
    found = False
    for constraint in constraints:
        others = tuple(each for each in constraints if each is not constraint)
        if trials.fits(with_constraints(claim, others), nodes):
            found = True
            yield f"{_rule(constraint)}{_there_is(constraint, requests, nodes[:1])}"
    if found:
        return
    if constraints and trials.fits(with_constraints(claim, ()), nodes):
        names = ", ".join(_attribute(constraint) for constraint in constraints)
        yield f"no set of devices satisfies all constraints at once: {names}"
        return
    if places := disjoint_requests(requests):
        yield f"no node has devices for all requests: {places}"
    elif len(requests) > 1:
        yield (
            "each request finds devices for itself, but no node has devices for all of them at once: they need the "
            "same devices, or share counters or capacity"
        )
    else:
        yield "no node has enough devices at once: those that fit share counters or capacity"
    for constraint in constraints:
        if values := _nothing_in_common(constraint, requests):
            yield f"{_rule(constraint)}; {values}"


def _rule(constraint: DeviceConstraint) -> str:
    attribute = _attribute(constraint)
    short = attribute.partition("/")[2] or attribute
    whose = f"of {' and '.join(constraint.requests)}" if constraint.requests else "of the claim"
    rule = "have the same" if constraint.match_attribute is not None else "each have another"
    return f"constraint: all devices {whose} must {rule} {short} ({attribute})"


def _there_is(constraint: DeviceConstraint, requests: Sequence[Request], nodes: Sequence[str]) -> str:
    """Return as text what the devices on some nodes have that fit a request of the constraint, each counted once."""
    fits: dict[DeviceID, DeviceVerdict] = {}
    for request in requests:
        for judged in _covered(constraint, request):
            fits.update({fit.id: fit for fit in judged.fits if not set(nodes).isdisjoint(fit.nodes)})
    return f"; on {nodes[0]} those that fit have {_counted(fits.values(), _attribute(constraint))}" if fits else ""


def _nothing_in_common(constraint: DeviceConstraint, requests: Sequence[Request]) -> str:
    """Return as text what devices that fit each request have, if no value is in enough of them, on whatever nodes."""
    name = constraint.match_attribute
    if name is None:
        return ""
    possible: list[set[Scalar]] = []
    parts: list[str] = []
    for request in requests:
        choices = _covered(constraint, request)
        if not choices or len(choices) < len(request.choices):
            continue
        if any(judged.choice is None or name in judged.choice.derived for judged in choices):
            return ""
        possible.append({value for judged in choices for value in _frequent(judged, name)})
        parts.append(
            f"those that fit {request.name} have {_counted([fit for judged in choices for fit in judged.fits], name)}"
        )
    return "" if not possible or set.intersection(*possible) else ", ".join(parts)


def _frequent(judged: JudgedChoice, name: str) -> Iterator[Scalar]:
    """Return the values that as many devices have as are wanted of them."""
    assert judged.choice is not None  # noqa: S101 - the caller looked
    needed = 1 if judged.choice.all_devices else judged.choice.count
    found = Counter(value for fit in judged.fits for value in _values(fit, name))
    return (value for value, number in found.items() if number >= needed)


def _covered(constraint: DeviceConstraint, request: Request) -> list[JudgedChoice]:
    """Return the choices of a request that a constraint is about."""
    named = constraint.requests
    return [judged for judged in request.choices if not named or not {request.name, judged.name}.isdisjoint(named)]


def _attribute(constraint: DeviceConstraint) -> str:
    return constraint.match_attribute or constraint.distinct_attribute or "?"


def _counted(verdicts: Iterable[DeviceVerdict], name: str) -> str:
    found = Counter(
        value for verdict in verdicts for value in (sorted(map(_shown, _values(verdict, name))) or ["none at all"])
    )
    parts = [f"{value} ({counted(number, 'device')})" for value, number in found.items()]
    return ", ".join(parts[:_VALUES]) + (", …" if len(parts) > _VALUES else "")


def _values(verdict: DeviceVerdict, name: str) -> frozenset[Scalar]:
    attribute = published_attribute(verdict.device, name)
    return frozenset() if attribute is None else elements(attribute)


def _shown(value: Scalar) -> str:
    kind, plain = value
    return f'"{plain}"' if kind == "string" else str(plain)
