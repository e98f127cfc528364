"""Facts about pods and other objects, as scheduler and controllers read them: pure."""

from __future__ import annotations

import datetime as dt
from typing import TypeAlias

from dra_kit.values.json import ObjectView

Key: TypeAlias = tuple[str, str]
"""Namespace (empty for a cluster-scoped object) and name."""


def key_of(obj: ObjectView) -> Key:
    """Where an informer keeps the object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def shown(obj: ObjectView) -> str:
    """``namespace/name``, as Kubernetes' texts have it."""
    namespace, name = key_of(obj)
    return f"{namespace}/{name}"


def is_terminal(pod: ObjectView) -> bool:
    """Whether the pod's containers have ended for good."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def is_done(pod: ObjectView) -> bool:
    """Whether the pod needs its claims no more: it ended, or was deleted before it had a node."""
    return is_terminal(pod) or ("deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName"))


def owns(pod: ObjectView, obj: ObjectView) -> bool:
    """Whether the pod is the controlling owner of an object."""
    owners = obj["metadata"].get("ownerReferences", [])
    return any(item.get("controller") and item.get("uid") == pod["metadata"]["uid"] for item in owners)


def is_reserved_for(claim: ObjectView, pod: ObjectView) -> bool:
    """Whether the pod is among the claim's consumers."""
    consumers = claim.get("status", {}).get("reservedFor", [])
    return any(item.get("uid") == pod["metadata"]["uid"] for item in consumers)


def held(obj: ObjectView) -> str:
    """Return what keeps a deleted object, as words to follow its name; empty for nothing that is known."""
    finalizers = obj["metadata"].get("finalizers", []) if "deletionTimestamp" in obj["metadata"] else []
    return f" (waits for whoever removes the finalizer {', '.join(finalizers)})" if finalizers else ""


def timestamp(moment: dt.datetime | None = None) -> str:
    """Return a time (default: now) as ``metav1.Time`` has it: RFC 3339, whole seconds, UTC."""
    return (moment or dt.datetime.now(dt.UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(text: str) -> float:
    """How long ago a time was, as ``metav1.Time`` has it."""
    return (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(text)).total_seconds()
