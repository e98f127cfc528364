"""``python -m benchmarks.allocation``: what CPU time it takes to find a pod's devices on 500 nodes of 8.

A pod costs what kube-scheduler asks of the allocator: attempts on one node after the other, from where it stopped the
last time, until as many nodes fit as it compares (230 of 500), or all were tried; the devices of the first
one are in use then.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.table import Row, part
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import DEFAULT, UNMODIFIED
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.v1 import AllocationResult

NODES = 500
DEVICES = 8
LARGER = 32  # devices per node, to measure growth
GROWTH = 1.5  # maximum factor per device
DRIVER = "gpu.example.com"
PODS = 100
COMPARED = 230  # fitting nodes after which kube-scheduler stops: 50 % less 1 % for each 125 nodes
BUDGET = 3.0  # milliseconds of CPU time
# kube-scheduler's whole cycle on six cores, empty cluster (kubernetes/kubernetes #140254)
RIVAL = {"a CEL selector": 241.0, "matchAttribute": 109.0}
# devices in use when the measurement begins; "full" leaves room for the measured pods only
STATES = {"empty": 0.0, "half full": 0.5, "full": 1.0}

EXPRESSION = f'device.attributes["{DRIVER}"].model == "H200"'
CLAIMS: dict[str, dict[str, Any]] = {
    "a CEL selector": {
        "requests": [
            {
                "name": "gpu",
                "exactly": {
                    "deviceClassName": "gpu",
                    "allocationMode": "ExactCount",
                    "count": 1,
                    "selectors": [{"cel": {"expression": EXPRESSION}}],
                },
            }
        ]
    },
    "matchAttribute": {
        "requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}}
        ],
        "constraints": [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/numa"}],
    },
}


def snapshot(devices_each: int) -> AllocatorState:
    def slice_(node: int) -> dict[str, Any]:
        name = f"node-{node:03}"
        devices = [
            {"name": f"gpu-{index}", "attributes": {"model": {"string": "H200"}, "numa": {"int": index // 4}}}
            for index in range(devices_each)
        ]
        return {
            "metadata": {"name": f"{name}-slice"},
            "spec": {
                "driver": DRIVER,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }

    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    return AllocatorState(
        slices=[slice_(node) for node in range(NODES)],
        classes=[{"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}}],
        version=DEFAULT,
    )


class Cluster:
    """Schedules pods with one claim each."""

    def __init__(self, spec: dict[str, Any], devices: int) -> None:
        self._spec = spec
        self._snapshot = snapshot(devices)
        self._allocator = Allocator(self._snapshot, AllocatorRules.of(UNMODIFIED))
        self._nodes = [Node(f"node-{node:03}", {}) for node in range(NODES)]
        self._next = 0
        self._pods = 0

    def place(self, compared: int = COMPARED) -> None:
        self._pods += 1
        name = f"claim-{self._pods}"
        claim = {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"devices": self._spec}}
        attempt = self._allocator.attempt([claim])
        fitting: list[Sequence[AllocationResult]] = []
        step = 0
        while step < NODES and len(fitting) < compared:
            found = attempt.on(self._nodes[(self._next + step) % NODES])
            step += 1
            if found is not None:
                fitting.append(found)
        self._next = (self._next + step) % NODES
        for allocation in fitting[0]:
            self._snapshot.allocate(allocation)


def milliseconds(spec: dict[str, Any], share: float, devices: int = DEVICES) -> float:
    count = sum(request["exactly"]["count"] for request in spec["requests"])
    cluster = Cluster(spec, devices)
    for _ in range(min(int(NODES * devices * share), NODES * devices - PODS * count) // count):
        cluster.place(compared=1)
    gc.collect()
    begun = time.process_time()
    for _ in range(PODS):
        cluster.place()
    return (time.process_time() - begun) / PODS * 1000


def measure() -> list[Row]:
    table = []
    for name, spec in CLAIMS.items():
        taken = {state: milliseconds(spec, share) for state, share in STATES.items()}
        table += [
            Row(f"allocation for a pod: {name}, {state}", figure, "ms", BUDGET, 1000 / RIVAL[name])
            for state, figure in taken.items()
        ]
        larger = milliseconds(spec, STATES["half full"], LARGER) / LARGER
        growth = larger / (taken["half full"] / DEVICES)
        table.append(Row(f"allocation: {name}, growth for a device", growth, "times", GROWTH))
    return table


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.allocation", __doc__, measure))
