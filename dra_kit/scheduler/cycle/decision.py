"""What the scheduler decided about a pod, for whoever watches."""

from __future__ import annotations

from msgspec import Struct

from dra_kit.scheduler.cycle.choice import DeviceChoice
from dra_kit.scheduler.cycle.cycle import Placement, Unschedulable
from dra_kit.values.json import ObjectView


class Decision(Struct, frozen=True):
    """One decision; exactly one of ``placement`` and ``refusal`` is there.

    Attributes:
        pod: it is about.
        placement: where the pod goes.
        choices: claim and choice for each device it gets.
        refusal: why it goes nowhere.
    """

    pod: ObjectView
    placement: Placement | None = None
    choices: tuple[tuple[ObjectView, DeviceChoice], ...] = ()
    refusal: Unschedulable | None = None
