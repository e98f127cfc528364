"""Events on pods as the kubelet records them."""

from __future__ import annotations

from typing import Final, Literal

from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.kubernetes.resource.objects import init_containers, pod_reference
from dra_kit.kubernetes.values.json import ObjectView

_ACTIONS: Final = {
    "FailedPrepareDynamicResources": "Prepare",
    "Pulled": "Pull",
    "Created": "Create",
    "Started": "Start",
    "Failed": "Start",
    "BackOff": "Restart",
    "Killing": "Stop",
    "DeadlineExceeded": "Stop",
}


def record(
    recorder: EventRecorder,
    pod: ObjectView,
    type: Literal["Normal", "Warning"],  # noqa: A002 - the API's word
    reason: str,
    note: str,
    *,
    container: str = "",
) -> None:
    """Record an Event about a pod.

    Args:
        recorder: takes it.
        pod: the object.
        type: Warning when something went wrong.
        reason: one of the kubelet's.
        note: in the kubelet's words.
        container: that it is about; empty for the pod as a whole.
    """
    who = pod_reference(pod)
    part = ""
    if container:
        init = any(item["name"] == container for item in init_containers(pod))
        part = f"spec.{'initContainers' if init else 'containers'}{{{container}}}"
    regarding = ObjectReference("v1", "Pod", who.name, who.uid, who.namespace, part)
    recorder.record(regarding, type, reason=reason, action=_ACTIONS[reason], note=note)
