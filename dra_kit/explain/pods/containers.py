"""Containers of a pod that do not run, although it has a node and its devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_kit.kubernetes.values.json import ObjectView

_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons to wait that pass by themselves."""


def failing_containers(pod: ObjectView) -> list[str]:
    """List the kubelet's status of each container that fails: ``container app: CrashLoopBackOff: back-off 10s …``.

    Args:
        pod: the pod with its status.
    """
    status = pod.get("status") or {}
    entries = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return [f"container {entry.get('name', '')}: {text}" for entry in entries if (text := _failure(entry))]


def devices_cannot_be_injected(failures: list[str]) -> bool:
    """Whether a container fails because of its devices: the runtime, which injects them, speaks of CDI then."""
    return any("CDI device" in failure for failure in failures)


def _failure(entry: Mapping[str, Any]) -> str:
    state, before = entry.get("state") or {}, entry.get("lastState") or {}
    waiting, ended = state.get("waiting"), state.get("terminated")
    if waiting and waiting.get("reason", "") not in _STARTING:
        text = ": ".join(filter(None, (waiting["reason"], " ".join(str(waiting.get("message") or "").split()))))
        return "; ".join((text, *_ended(before.get("terminated"))))
    return "".join(_ended(ended)) if ended and ended.get("exitCode") else ""


def _ended(terminated: Mapping[str, Any] | None) -> Iterator[str]:
    if terminated:
        reason = f" ({terminated['reason']})" if terminated.get("reason") else ""
        yield f"it ended with exit code {terminated.get('exitCode', 0)}{reason}"
