"""What happens to a node, and what must hold afterwards: the one list of scenarios.

``docs/explanation/node-life.md`` shows it, and each scenario is played by the function that names its id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.life.node import Node


@dataclass(frozen=True)
class Scenario:
    """One thing that happens.

    Attributes:
        id: of the scenario, and of its test.
        happens: what is done to the node.
        holds: what must be true then, beside what always must.
        long: it takes so long on a real node that it is played there by ``make test-cluster-long`` only.
        sandbox: it is played in the sandbox, too.
    """

    id: str
    happens: str
    holds: str
    long: bool = False
    sandbox: bool = True


Play = Callable[[Node], None]

_WHO = {"kubelet": "the kubelet", "driver": "the driver", "both": "kubelet and driver"}
_HOW = {"restarted": "restarted with SIGTERM", "killed": "restarted with SIGKILL"}
_WHEN = {
    "prepared": ("while a claim is prepared", "the pod keeps running, and its claim gets the same answer"),
    "in-prepare": ("during a prepare, with an effect in force", "the pod starts, and its claim has one answer"),
    "in-unprepare": ("during an unprepare", "the pod is deleted, and its claim is released"),
}

SCENARIOS = (
    Scenario("driver-after-kubelet", "the driver starts after the kubelet", "a pod is served"),
    Scenario("driver-before-kubelet", "the driver starts before the kubelet", "a pod is served"),
    *(
        Scenario(
            f"{who}-{how}-{when}",
            f"{_WHO[who]} {_HOW[how]} {moment}",
            holds,
            # the kubelet repeats a call that failed after 10 s and more
            long=when != "prepared" and (how == "restarted" or who == "both"),
            # whose kubelet ends in one way only
            sandbox=(who, how) not in {("kubelet", "killed"), ("both", "restarted")},
        )
        for when, (moment, holds) in _WHEN.items()
        for who in _WHO
        for how in _HOW
    ),
    Scenario("prepare-fails-twice", "the driver's `prepare` fails twice", "the third call of the kubelet succeeds"),
    Scenario(
        "deleted-while-driver-down",
        "pod and claim are deleted while the driver is down",
        "the claim is released when the driver is back",
    ),
    Scenario("registration-v1", "the driver offers only v1 of the DRA service", "a pod is served"),
    Scenario("registration-v1beta1", "the driver offers only v1beta1 of the DRA service", "a pod is served"),
    Scenario(
        "cdi-emptied", "the CDI directory is emptied, and a container restarts", "its file is restored unchanged"
    ),
    Scenario(
        "fifty-pods",
        "50 pods are created at once, and deleted at once",
        "each is served with one write of its status",
        long=True,
    ),
    Scenario(
        "prepare-too-slow",
        "a prepare takes longer than the driver's deadline",
        "the kubelet gets an error in time, the partial work is undone, and its next call succeeds",
        long=True,
    ),
    Scenario(
        "kubelet-deadline-missed",
        "the driver's process is paused for longer than the kubelet waits",
        "the process continues, and the kubelet's next call is answered",
        long=True,
    ),
    Scenario(
        "force-deleted-while-running",
        "pod and claim are deleted by force, the container keeps running, and its device is allocated to another pod",
        "the other pod does not get the device until the kubelet has stopped the container and released the claim",
        sandbox=False,
    ),
    Scenario(
        "force-deleted-while-driver-down",
        "pod and claim are deleted by force while the driver is down, and another pod is created",
        "the kubelet releases the claim when the driver is back, and the other pod gets its device",
        long=True,
    ),
    Scenario(
        "reallocated-while-kubelet-down",
        "a pod is deleted by force while the kubelet is down, and its claim is reallocated for another pod",
        "the claim keeps its former device until the first pod's container has stopped, then both are served",
        long=True,
    ),
    Scenario(
        "forgotten-by-kubelet",
        "pod and claim are deleted by force while kubelet and driver are down, and the kubelet loses its own state",
        "the driver releases the claim without the kubelet",
        long=True,
    ),
    Scenario(
        "slices-wiped", "the driver is down until the kubelet wipes its slices", "they are published again", long=True
    ),
    Scenario(
        "node-recreated", "the Node is deleted, and the kubelet creates it again", "the slices belong to the new Node",
        long=True,
    ),
    Scenario(
        "api-server-down",
        "the API server is down for a minute while pods start, and the driver is killed in that time",
        "the running prepare completes without the API server, and its status is written when it is back",
        long=True,
    ),
    Scenario(
        "quiet",
        "nothing, for longer than the interval of any check",
        "no write",
        long=True,
        sandbox=False,
    ),
)  # fmt: skip

CLUSTERS = {
    "alpha-gates": ("--alpha",),
    "release-1.34": ("--release", "1.34"),
}
"""Other clusters, by id, and the flags of the cluster tool: on each, all scenarios that are not long (long tier)."""

PLAYS: dict[str, Play] = {}
"""Who plays a scenario, by id; filled when the modules that play them are imported."""


def plays(scenario: str) -> Callable[[Play], Play]:
    """Decorates the function that plays a scenario."""

    def register(play: Play) -> Play:
        assert scenario not in PLAYS, f"{scenario} has two plays"
        PLAYS[scenario] = play
        return play

    return register
