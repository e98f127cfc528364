"""Keeps what is to be known of every pod at the end: its last state, its containers, and what stood in its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from dra_kit.kube.informer import Change
from dra_kit.kube.resources import PODS
from dra_kit.sandbox.cluster.kubelet.activity import (
    Activity,
    ClaimsPrepared,
    ContainerStarted,
    PluginCalled,
    PodTerminating,
)
from dra_kit.sandbox.cluster.kubelet.dra.claims import PREPARE
from dra_kit.sandbox.cluster.workload.report import ContainerReport
from dra_kit.sandbox.sandbox import Sandbox, SandboxObserver
from dra_kit.sandbox.stories.outcome import status_problem
from dra_kit.sandbox.timeline.report import pod_report
from dra_kit.scheduler.decision import Decision
from dra_kit.scheduler.pods import Object, key_of

_REMEMBERED: Final = 1_000  # pods that are deleted

START_ERROR: Final = "StartError"
"""Reason of a container that never ran; a quick one may have ended by the time its start is told."""


_Final: TypeAlias = tuple[Sequence[ContainerReport], str]  # the containers, and what stood in the pod's way


class PodRecorder(SandboxObserver):
    """An observer of a sandbox; pods are reported as they were before they were deleted."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None
        self._pods: dict[str, Object] = {}  # the last state, by UID, of those that are not deleted
        self._final: dict[str, _Final] = {}  # by UID, of those that are
        self._containers: dict[str, Sequence[ContainerReport]] = {}  # by UID, from when its kubelet began to end them
        self._problems: dict[str, str] = {}
        self.unprepared: set[str] = set()
        """UIDs of the pods whose claims the driver was asked for last with an error."""
        self.left_out: int = 0
        """How many pods were deleted so long ago that nothing is known of them any more."""

    @property
    def problems(self) -> Mapping[str, str]:
        """What stands in the way of a pod, by its UID, in the words of scheduler, kubelet or runtime."""
        return self._problems

    def explained(self, uid: str, cause: str) -> None:
        """Why a pod waits that neither scheduler nor kubelet has said anything of."""
        self._problems.setdefault(uid, cause)

    def reports(self) -> list[dict[str, Any]]:
        """The report of every pod, also of those that are deleted, in the order they came."""
        return [pod_report(pod, *(self._final.get(uid) or self._known(pod))) for uid, pod in self._pods.items()]

    def started(self, sandbox: Sandbox) -> None:
        """API server, controllers and scheduler run."""
        self._sandbox = sandbox
        sandbox.informers.listen(PODS, self._pod_changed)

    def decided(self, decision: Decision) -> None:
        """The scheduler decided about a pod."""
        uid = decision.pod["metadata"]["uid"]
        if decision.refusal is None:
            self._problems.pop(uid, None)
        else:
            self._problems[uid] = decision.refusal.message

    def acted(self, node: str, activity: Activity) -> None:
        """A kubelet did something."""
        del node
        match activity:
            case PluginCalled(pod_uid=uid, method=method, driver=driver, claims=claims) if method == PREPARE:
                names = ", ".join(claim.name for claim in claims)
                # what an earlier call came to says more
                self._problems.setdefault(uid, f"driver {driver} has not answered {method} for ResourceClaim {names}")
            case ClaimsPrepared(pod=pod, error=""):
                self.unprepared.discard(pod.uid)
                self._problems.pop(pod.uid, None)
            case ClaimsPrepared(pod=pod, error=error):
                self._problems[pod.uid] = error
                self.unprepared.add(pod.uid)
            case ContainerStarted(config=config, status=status) if status.exit and status.exit.reason == START_ERROR:
                self._problems[config.pod.uid] = f"container {config.name} cannot start: {status.exit.message}"
            case PodTerminating(pod=pod) if pod.uid not in self._containers:
                # the kubelet may know of the deletion before it is told here
                self._containers[pod.uid] = self._reports(pod.namespace, pod.name)
            case _:
                pass

    def _pod_changed(self, change: Change) -> None:
        pod = change.object
        uid = pod["metadata"]["uid"]
        ended = change.type == "DELETED" or "deletionTimestamp" in pod["metadata"]
        if not ended:
            self._pods[uid] = pod
        elif uid in self._pods and uid not in self._final:
            self._final[uid] = self._known(self._pods[uid])
            if len(self._final) > _REMEMBERED:
                self._forget(next(iter(self._final)))

    def _forget(self, uid: str) -> None:
        known: Sequence[dict[str, Any]] = (self._pods, self._final, self._containers, self._problems)
        for items in known:
            items.pop(uid, None)
        self.unprepared.discard(uid)
        self.left_out += 1

    def _known(self, pod: Object) -> _Final:
        uid = pod["metadata"]["uid"]
        containers = self._containers[uid] if uid in self._containers else self._reports(*key_of(pod))
        return containers, self._problems.get(uid, "") or status_problem(pod)

    def _reports(self, namespace: str, name: str) -> Sequence[ContainerReport]:
        return self._sandbox.reports(namespace, name) if self._sandbox else []
