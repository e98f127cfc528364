"""``python -m benchmarks.explain``: how long an explanation takes, in seconds; exit 1 when the budget is exceeded."""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.table import Row, part
from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterDocuments, model_of_claim
from dra_kit.diagnosis.explain.text import ReportWriter, render_claim

BUDGET = 1.0  # seconds with 5,000 nodes of 8 devices
GROWTH = 1.5  # maximum factor per device from the smallest to the largest cluster
NODES = (50, 500, 5000)
DEVICES = 8
DRIVER = "gpu.example.com"
MODELS = (("H200", "141Gi"), ("A100", "80Gi"), ("L4", "24Gi"))
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
MEMORY = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{{}}")) >= 0'

CLAIMS = {
    "fits everywhere": (1, f'{ATTRIBUTES}.model == "H200"'),
    "matches nothing": (1, f'{ATTRIBUTES}.model == "H200" && {MEMORY.format("200Gi")}'),
    "too few on one node": (4, MEMORY.format("100Gi")),
    "distinct devices": (1, f'{ATTRIBUTES}.uuid == "GPU-7-3"'),  # all devices differ in it
}
COMMAND = "matches nothing"


def objects(nodes: int) -> ClusterDocuments:
    """A cluster of nodes with devices of three models, all different."""

    def device(node: int, index: int) -> dict[str, Any]:
        model, memory = MODELS[(node + index) % len(MODELS)]
        return {
            "name": f"gpu-{index}",
            "attributes": {
                "model": {"string": model},
                "uuid": {"string": f"GPU-{node}-{index}"},
                "index": {"int": index},
                "driverVersion": {"version": "550.1.0"},
            },
            "capacity": {"memory": {"value": memory}},
        }

    def slice_(node: int) -> dict[str, Any]:
        name = f"node-{node:05}"
        return {
            "metadata": {"name": f"{name}-slice"},
            "spec": {
                "driver": DRIVER,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [device(node, index) for index in range(DEVICES)],
            },
        }

    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    return ClusterDocuments(
        {
            "Node": [{"metadata": {"name": f"node-{node:05}"}} for node in range(nodes)],
            "ResourceSlice": [slice_(node) for node in range(nodes)],
            "DeviceClass": [{"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}],
        },
        "1.37",
    )


def claim_of(name: str, count: int, selector: str) -> dict[str, Any]:
    exactly = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": selector}}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def seconds(known: ClusterDocuments, count: int, selector: str) -> float:
    """Return the CPU time from parsed objects to the text of the report."""
    claim = claim_of("claim", count, selector)
    gc.collect()
    gc.disable()  # as the command does
    begun = time.process_time()
    page = ReportWriter(100, colour=False)
    cluster = known.cluster()
    render_claim(page, ClaimExplainer(cluster).explain(model_of_claim(claim, cluster.gates)))
    str(page)
    taken = time.process_time() - begun
    gc.enable()
    return taken


def command(known: ClusterDocuments) -> float:
    """Return the CPU time of the whole command, with interpreter start and reading of a file with all objects."""
    documents = [
        {"apiVersion": "v1" if kind == "Node" else "resource.k8s.io/v1", "kind": kind, **document}
        for kind, found in known.documents.items()
        for document in found
    ]
    documents.append(claim_of("claim", *CLAIMS[COMMAND]))
    with tempfile.TemporaryDirectory() as directory:
        saved = Path(directory) / "objects.json"
        saved.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
        code = "from dra_kit.cli import main; main()"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code, "explain", "claim", "claim", "--from", str(saved)],
                       stdout=subprocess.DEVNULL, check=False)  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure() -> list[Row]:
    table = []
    known = {nodes: objects(nodes) for nodes in NODES}
    for name, (count, selector) in CLAIMS.items():
        taken = {nodes: min(seconds(known[nodes], count, selector) for _ in range(2)) for nodes in NODES}
        table += [
            Row(
                f"explain: {name}, {nodes} x {DEVICES} devices",
                taken[nodes],
                "s",
                BUDGET if nodes == NODES[-1] else None,
            )
            for nodes in NODES
        ]
        growth = taken[NODES[-1]] / NODES[-1] / (taken[NODES[-2]] / NODES[-2])
        table.append(Row(f"explain: {name}, growth for a device", growth, "times", GROWTH))
    largest = known[NODES[-1]]
    table.append(Row(f"explain: {COMMAND}, {NODES[-1]} x {DEVICES}, command", command(largest), "s", None))
    return table


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.explain", __doc__, measure))
