"""Whether the pods of applied files did what they were to do: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_kit.kubelet.pods import containers
from dra_kit.sandbox.pods import Object, is_terminal, shown


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the pods stand.

    Attributes:
        settled: nothing more is waited for.
        failures: what is not as it should be, a line for each pod; none when all is well.
    """

    settled: bool
    failures: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Every pod did what it was to do."""
        return self.settled and not self.failures


def judge(pods: Sequence[Object], problems: Mapping[str, str]) -> Outcome:
    """How pods stand.

    A pod must end with 0; one that lasts, because a container of it has no command or is always started again, must
    be ready when all others have ended.

    Args:
        pods: to look at.
        problems: what stands in the way of a pod, by its UID.
    """
    waiting = [pod for pod in pods if not (_is_ready(pod) if lasts(pod) else is_terminal(pod))]
    failed = [pod for pod in pods if pod.get("status", {}).get("phase") == "Failed"]
    bad = [pod for pod in pods if pod in waiting or pod in failed]
    return Outcome(
        settled=not waiting, failures=tuple(_reason(pod, problems.get(pod["metadata"]["uid"], "")) for pod in bad)
    )


def lasts(pod: Object) -> bool:
    """Whether the pod is not expected to end."""
    if pod["spec"].get("restartPolicy", "Always") == "Always":
        return True
    return any(not container.get("command") for container in containers(pod))


def _is_ready(pod: Object) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _reason(pod: Object, problem: str) -> str:
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    ends = [(item["name"], item.get("state", {}).get("terminated", {})) for item in status.get("containerStatuses", [])]
    codes = [
        f"container {name} ended with exit code {end['exitCode']}: {end.get('message', '')}".rstrip(": ")
        for name, end in ends
        if end.get("exitCode")
    ]
    text = f"Pod {shown(pod)} is {phase}"
    if codes:
        return f"{text}: {'; '.join(codes)}"
    if phase == "Failed":
        return f"{text}: {status.get('reason', '')} {status.get('message', '')}".rstrip(" :")
    if problem:
        return f"{text}: {problem}"
    return f"{text} and not ready" if phase == "Running" else text
