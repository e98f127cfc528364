"""A DaemonSet with maxSurge replaces its pod without a gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import DAEMON_SETS, PODS
from dra_kit.sandbox.cluster import Sandbox
from dra_kit.sandbox.controllers.workload_plans import is_ready
from tests.unit.sandbox.cluster.kubelet.polling import until

pytestmark = pytest.mark.processes  # containers are processes, and each test takes seconds

DAEMON_SET = Path(__file__).parents[3] / "data" / "cases" / "max-surge-of-a-daemonset" / "daemonset.yaml"


def value(pod: Any) -> str:
    """What tells old and new pods apart."""
    return str(pod["spec"]["containers"][0]["env"][0]["value"])


async def test_old_pod_is_deleted_once_the_new_one_is_ready() -> None:
    daemon_set = yaml.safe_load(DAEMON_SET.read_text(encoding="utf-8"))
    async with Sandbox([]) as sandbox:
        pods = sandbox.informers.objects(PODS)
        await sandbox.client.create(DAEMON_SETS, daemon_set, "default")
        await until(lambda: [value(pod) for pod in pods.values() if is_ready(pod)] == ["1"])
        ready_at_deletion: list[list[str]] = []

        def changed(change: ObjectChange) -> None:
            if value(change.object) == "1" and "deletionTimestamp" in change.object["metadata"]:
                ready_at_deletion.append([value(pod) for pod in pods.values() if is_ready(pod)])

        sandbox.informers.listen(PODS, changed)
        container = daemon_set["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "V", "value": "2"}]
        body = {"spec": {"template": {"spec": {"containers": [container]}}}}
        await sandbox.client.patch(DAEMON_SETS, "surge", body, "default")
        await until(lambda: [value(pod) for pod in pods.values()] == ["2"])

    assert "2" in ready_at_deletion[0]
