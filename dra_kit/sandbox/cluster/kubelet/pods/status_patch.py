"""From the status a pod has to the one its kubelet wants: the strategic merge patch in between, pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_kit.kubernetes.values.json import ObjectView

# a condition loses these when it becomes true
_REMOVABLE = ("reason", "message")


def status_patch(pod: ObjectView, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``status`` of the patch.

    Conditions are merged by type: those of others stay, and PodScheduled is the scheduler's where it has set it.
    What a merged condition has no longer is named with a null.

    Args:
        pod: the object as the API server has it.
        wanted: the status, complete as far as the kubelet is concerned.
    """
    known = {item["type"]: item for item in (pod.get("status") or {}).get("conditions") or ()}
    merged = []
    for condition in wanted["conditions"]:
        before = known.get(condition["type"], {})
        if condition["type"] == "PodScheduled" and before:
            continue
        removed = {name: None for name in _REMOVABLE if name in before and name not in condition}
        merged.append({**condition, **removed})
    return {**wanted, "conditions": merged}
