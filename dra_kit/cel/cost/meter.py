"""What an evaluation has cost so far, and how much it may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from dra_kit.cel.failure import Exhausted

RUNTIME_LIMIT: Final = 1_000_000
"""Kubernetes' limit of the actual cost of one evaluation (CELSelectorExpressionMaxCost, resource.k8s.io/v1)."""

# Operations that Kubernetes charges too little for, like comparing nested lists, are counted beside the cost: about
# one second of work.
_WORK_LIMIT: Final = 3_000_000

Frame: TypeAlias = list[Any]
"""State of one evaluation: the cost so far, the work beside it, what is given (a device, or variables by their names),
then one place for each variable of a macro."""

Meter: TypeAlias = Callable[[int], None]
"""Adds up the cost of many evaluations, in units of which an evaluation has up to a million or so."""

COST: Final = 0
WORK: Final = 1
INPUT: Final = 2
VARIABLES: Final = 3


def spend(frame: Frame, work: int) -> None:
    """Count work that the cost does not.

    Raises:
        Exhausted: there was too much of it.
    """
    frame[WORK] += work
    if frame[WORK] > _WORK_LIMIT:
        raise Exhausted


def check_cost(frame: Frame) -> None:
    """Stop an evaluation that has cost more than it may.

    Raises:
        Exhausted: the limit is exceeded.
    """
    if frame[COST] > RUNTIME_LIMIT:
        raise Exhausted
