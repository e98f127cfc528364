"""Worlds in which several equal pods come at once, and the scheduler chooses their nodes.

Kubernetes takes the pods in any order and any of the nodes that are equally good; as the pods want the same, how many
of them get it is certain all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.cluster.worlds import hardware
from tests.cluster.worlds.outcome import BY_OUTCOME
from tests.cluster.worlds.requests import Request, delete
from tests.cluster.worlds.strategies import World, claim, classes, pod, template

_PODS_MAX = 8


@st.composite
def bursts(draw: Callable[[st.SearchStrategy[Any]], Any]) -> World:
    """A scenario without answers: hardware, pods that come at once, and some of them deleted at once."""
    stock = draw(hardware.stocks())
    names = [f"pod-{number}" for number in range(draw(st.integers(2, _PODS_MAX)))]
    setup, pods = draw(_pods(names, shared_pools="network" in stock.published))
    phases = [_phase([*stock.requests(), *classes(), *setup]), _phase(pods, at_once=True)]
    gone = draw(st.lists(st.sampled_from(names), unique=True))
    if gone:
        phases.append(_phase([delete("pods", name, grace=0) for name in gone], at_once=True))
    return {"gates": "default", "phases": phases}


def _phase(requests: list[Request], *, at_once: bool = False) -> World:
    return {"do": requests, "until": "quiet 2", "compare": BY_OUTCOME, "at_once": at_once}


@st.composite
def _pods(
    draw: Callable[[st.SearchStrategy[Any]], Any], names: list[str], *, shared_pools: bool
) -> tuple[list[Request], list[Request]]:
    """What there is before the pods, and the pods."""
    # where nodes share a pool, how many pairs there are depends on who takes what first
    wish = {"deviceClassName": draw(st.sampled_from(("gpu", "gpu", "large")))}
    wish |= {"count": draw(st.integers(1, 1 if shared_pools else 2))}
    spec = {"devices": {"requests": [{"name": "r0", "exactly": wish}]}}
    match draw(st.sampled_from(("extended", "extended", "template", "claims", "shared"))):
        case "extended":
            amount = {"example.com/gpu": str(wish["count"])}
            return [], [pod(name, None, {"requests": amount, "limits": amount}) for name in names]
        case "template":
            source = {"resourceClaimTemplateName": "template"}
            return [template("template", spec)], [pod(name, source) for name in names]
        case "shared":
            return [], [claim("claim", spec), *(pod(name, {"resourceClaimName": "claim"}) for name in names)]
    made = [claim(f"claim-{name}", spec) for name in names]
    return made, [pod(name, {"resourceClaimName": f"claim-{name}"}) for name in names]
