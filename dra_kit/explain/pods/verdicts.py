"""What an explanation of a pod consists of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.explain.pods.deletion import Deletion
from dra_kit.explain.pods.resources import ExtendedResource
from dra_kit.explain.verdicts import ClaimExplanation

UNSCHEDULABLE: Final = "FailedScheduling"
"""Reason of kube-scheduler's Event on a pod that no node takes."""

NOT_PREPARED: Final = "FailedPrepareDynamicResources"
"""Reason of the kubelet's Event on a pod whose devices it cannot prepare."""

Outcome: TypeAlias = Literal[
    "ended", "runs", "scheduled", "bypassed", "not-prepared", "not-running", "fits", "devices-fit", "unknown",
    "waits", "does-not-fit", "error", "stopped", "ending", "terminating",
]  # fmt: skip


class PodClaimExplanation(Struct, frozen=True):
    """One claim of a pod.

    Attributes:
        entry: its name in ``spec.resourceClaims``; empty for the claim of extended resources.
        problem: why there is no claim to explain; empty if there is one.
        explanation: of the claim, made or to be made.
        origin: what it is made from, where it is not made yet: ``template one-pizza``.
    """

    entry: str
    problem: str = ""
    explanation: ClaimExplanation | None = None
    origin: str = ""


class Report(Struct, frozen=True):
    """What a controller, the scheduler or the kubelet reported of a pod.

    Attributes:
        reason: in one word: ``FailedScheduling``.
        note: the same in a sentence.
    """

    reason: str
    note: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.note}"


class PodExplanation(Struct, frozen=True):
    """Why a pod runs, or why not.

    Attributes:
        name: ``namespace/name``.
        outcome: ``waits``: for a claim; ``bypassed``: it has a node and no devices; ``not-prepared``: it has a node and
            devices, which the kubelet cannot prepare; ``not-running``: it has them prepared, and a container fails;
            ``devices-fit``: it can run as far as its devices go, and not everything was looked at; ``unknown``: that
            depends on nodes that could not be read; ``stopped``: it is too much work to find out.
        node: where it is.
        claims: that it needs.
        problems: what stands in its way besides the devices of one claim, a sentence each.
        rejections: why nodes are not for it, whatever its devices, by name.
        fitting: nodes on which it could run.
        events: what controllers, the scheduler and the kubelet reported last.
        resources: extended resources that it asks for.
        foreword: what is to be known first, a sentence each.
        not_looked_at: what may keep it from running all the same, in a few words each.
        deletion: what its deletion waits for; None where it is not being deleted.
    """

    name: str
    outcome: Outcome
    node: str = ""
    claims: tuple[PodClaimExplanation, ...] = ()
    problems: tuple[str, ...] = ()
    rejections: Mapping[str, tuple[str, ...]] | None = None
    fitting: tuple[str, ...] = ()
    events: tuple[Report, ...] = ()
    resources: tuple[ExtendedResource, ...] = ()
    foreword: tuple[str, ...] = ()
    not_looked_at: tuple[str, ...] = ()
    deletion: Deletion | None = None

    @property
    def good(self) -> bool:
        """Whether it runs or can run."""
        return self.outcome in {"ended", "runs", "scheduled", "fits", "ending"}

    @property
    def undecided(self) -> bool:
        """Whether it may run, or may not."""
        return self.outcome in {"devices-fit", "unknown", "stopped"}
