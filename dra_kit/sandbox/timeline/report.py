"""The report of a run as JSON: for tools, and for tests of a driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dra_kit.sandbox.cluster.workload.report import ContainerReport
from dra_kit.scheduler.pods import Object

_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


def pod_report(pod: Object, containers: Iterable[ContainerReport], message: str) -> dict[str, Any]:
    """What became of a pod.

    Args:
        pod: the object, in its last state.
        containers: the newest one of each name counts.
        message: what stands in its way; empty for nothing.
    """
    newest = {item.config.name: item for item in containers if item.config.pod.uid == pod["metadata"]["uid"]}
    return {
        "namespace": pod["metadata"].get("namespace", ""),
        "name": pod["metadata"]["name"],
        "node": pod["spec"].get("nodeName", ""),
        "phase": pod.get("status", {}).get("phase", "Pending"),
        "message": message,
        "containers": [_container(item) for item in newest.values()],
    }


def _container(report: ContainerReport) -> dict[str, Any]:
    edits, ended = report.config.edits, report.status.exit
    return {
        "name": report.config.name,
        "exitCode": ended.code if ended else None,
        "reason": ended.reason if ended else "Running",
        "restarts": report.config.attempt,
        "environment": dict(report.environment),
        "fromClaims": {
            "environment": list(edits.env),
            "mounts": [item.model_dump(mode="json", by_alias=True, exclude_defaults=True) for item in edits.mounts],
            "deviceNodes": [
                item.model_dump(mode="json", by_alias=True, exclude_defaults=True) for item in edits.device_nodes
            ],
            "cdiDevices": list(report.config.cdi_devices),
        },
        "output": report.log.text,
        "outputDropped": report.log.begin.offset,
    }


def api_writes(requests: Mapping[tuple[str, str, str], int], seconds: float) -> dict[str, Any]:
    """How much was written, by whom.

    Args:
        requests: how many came, by user agent, verb and resource.
        seconds: in which they came.
    """
    writes: Counter[str] = Counter()
    for (agent, verb, _), number in requests.items():
        if verb in _WRITES:
            writes[agent] += number
    total = sum(writes.values())
    return {
        "total": total,
        "perMinute": round(total * 60 / seconds, 1) if seconds > 0 else 0.0,
        "by": dict(writes.most_common()),
    }


def run_report(
    *,
    drivers: Sequence[str],
    passed: bool,
    seconds: float,
    pods: Sequence[Mapping[str, Any]],
    pods_left_out: int,
    failures: Sequence[str],
    leftovers: Sequence[str],
    writes: Mapping[str, Any],
) -> dict[str, Any]:
    """The whole report."""
    return {
        "drivers": list(drivers),
        "passed": passed,
        "seconds": round(seconds, 3),
        "pods": list(pods),
        "podsLeftOut": pods_left_out,
        "failures": list(failures),
        "leftovers": list(leftovers),
        "apiWrites": dict(writes),
    }
