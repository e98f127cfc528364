"""What ``kubectl get pods`` prints: how far a pod is, in one word.

Source: Kubernetes 1.37 ``pkg/printers/internalversion``, ``printPod``.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from dra_kit.apiserver.kinds.ages import age
from dra_kit.kubernetes.values.json import Object


class _Summary(Struct, frozen=True):
    """What is notified of a pod.

    Attributes:
        state: the word.
        ready: how many containers are, sidecars included.
        counted: the containers whose restarts count.
    """

    state: str
    ready: int
    counted: tuple[Object, ...]


def _summary(pod: Object) -> _Summary:
    status = pod.get("status") or {}
    state = status.get("reason") or status.get("phase") or ""
    if any(item.get("reason") == "SchedulingGated" for item in _conditions(pod, "PodScheduled")):
        state = "SchedulingGated"
    initial: list[Object] = status.get("initContainerStatuses") or []
    sidecars = _sidecars(pod)
    initializing, ready, looked_at = "", 0, 0
    for i, item in enumerate(initial):
        looked_at = i + 1
        is_started = item.get("name") in sidecars and item.get("started")
        ended = (item.get("state") or {}).get("terminated")
        if not is_started and (ended is None or ended.get("exitCode")):
            initializing = _initial_state(item, i, len(pod["spec"].get("initContainers") or ()))
            break
        ready += bool(is_started and item.get("ready") and not ended)
    counted = tuple(initial[:looked_at])
    state = initializing or state
    if not initializing or any(item.get("status") == "True" for item in _conditions(pod, "Initialized")):
        own: list[Object] = status.get("containerStatuses") or []
        counted = (*(item for item in counted if item.get("name") in sidecars), *own)
        running = [item for item in own if item.get("ready") and _running(item)]
        ready += len(running)
        state = next(filter(None, map(_own_state, own)), state)
        if state == "Completed" and running:
            is_ready = any(item.get("status") == "True" for item in _conditions(pod, "Ready"))
            state = "Running" if is_ready else "NotReady"
    if "deletionTimestamp" in pod["metadata"]:
        if status.get("reason") == "NodeLost":
            state = "Unknown"
        elif status.get("phase") not in {"Succeeded", "Failed"}:
            state = "Terminating"
    return _Summary(state, ready, counted)


def _sidecars(pod: Object) -> set[str]:
    """Return the initial containers that go on running."""
    initial = pod["spec"].get("initContainers") or ()
    return {item.get("name", "") for item in initial if item.get("restartPolicy") == "Always"}


def _conditions(pod: Object, type_: str) -> Iterable[Object]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return (item for item in conditions if item.get("type") == type_)


def _initial_state(item: Object, index: int, count: int) -> str:
    state = item.get("state") or {}
    if ended := state.get("terminated"):
        return f"Init:{_ended(ended)}"
    reason = (state.get("waiting") or {}).get("reason")
    return f"Init:{reason}" if reason and reason != "PodInitializing" else f"Init:{index}/{count}"


def _own_state(item: Object) -> str:
    """Return what a container that does not run waits for, or how it ended."""
    state = item.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated")
    return str(waiting.get("reason") or (_ended(ended) if ended is not None else ""))


def _running(item: Object) -> bool:
    return not _own_state(item) and (item.get("state") or {}).get("running") is not None


def _ended(ended: Object) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def ready(pod: Object) -> str:
    """Return how many of the containers that stay are ready, such as ``1/2``."""
    return f"{_summary(pod).ready}/{len(pod['spec'].get('containers') or ()) + len(_sidecars(pod))}"


def state(pod: Object) -> str:
    """Return the word, such as ``Running``, ``Init:0/1`` or ``CrashLoopBackOff``."""
    return _summary(pod).state


def restarts(pod: Object) -> str:
    """Return how often containers were restarted, and when the last was, such as ``2 (19s ago)``."""
    counted = _summary(pod).counted
    count = sum(item.get("restartCount", 0) for item in counted)
    ends = [((item.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for item in counted]
    last = max(filter(None, ends), default="")
    return f"{count} ({age(last, datetime.now(UTC))} ago)" if count and last else str(count)


def readiness_gates(pod: Object) -> str:
    """Return how many of the conditions that a pod waits for are true."""
    gates = pod["spec"].get("readinessGates") or ()
    true = sum(
        any(item.get("status") == "True" for item in _conditions(pod, gate.get("conditionType", ""))) for gate in gates
    )
    return f"{true}/{len(gates)}" if gates else "<none>"
