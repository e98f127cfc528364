"""The driver of memory of examples/cpu-driver on a real node: containers get their memory nodes from containerd."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.find import REPOSITORY
from tests.cluster.node_driver import node_driver, play
from tests.cluster.plane import Plane

PROJECT = REPOSITORY / "examples" / "cpu-driver"
ORDER = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: memory}
spec:
  devices: {requests: [{name: memory, exactly: {deviceClassName: dra.memory, capacity: {requests: {size: 64Mi}}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: solver}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox:stable
      command: [sh, -c, "while sleep 1; do grep Mems_allowed_list /proc/self/status; done"]
      resources: {claims: [{name: memory}]}
  resourceClaims: [{name: memory, resourceClaimName: memory}]
"""
EXPECTED = """
pods: {solver: {phase: Running, containers: {main: {output: "Mems_allowed_list:\\t0"}}}}
claims: {memory: {devices: [memory-0]}}
"""


async def test_container_allocates_on_the_numa_node_of_its_claim(
    node_plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "order.yaml").write_text(ORDER, encoding="utf-8")
    (tmp_path / "expect.yaml").write_text(EXPECTED, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT / 'src'}:{REPOSITORY}")
    classes = (PROJECT / "memory" / "deviceclasses.yaml").read_text(encoding="utf-8")
    target = "cpu_driver.memory:driver"
    with node_driver(node_plane, target, "dra.memory", classes=classes, directory=tmp_path) as driver:
        async with driver.cluster() as cluster:
            await play(tmp_path, cluster)
