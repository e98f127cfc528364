from __future__ import annotations

import io
from pathlib import Path

from dra_kit.sandbox.story import load_story
from dra_kit.sandbox.story_run import run_story
from dra_kit.sandbox.view import TerminalView
from tests.unit.sandbox.cluster import Cluster, Object, allocated, runs

MANIFESTS = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: lunch}
spec:
  devices:
    requests:
      - name: pizza
        exactly:
          deviceClassName: pizza
          selectors: [{cel: {expression: 'device.attributes["dra.pizza"].dough == "pan"'}}]
---
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  containers: [{name: eater, image: busybox}]
"""
EXPECT = "pods: {guest: {phase: Running, containers: {eater: {environment: {PIZZA_0_DOUGH: pan}}}}}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def tell(directory: Path, stream: io.StringIO, *, leaves: bool = False) -> str:
    (directory / "expect.yaml").write_text(EXPECT)
    (directory / "order.yaml").write_text(MANIFESTS)
    attributes = {"dough": {"string": "pan"}, "hot": {"bool": True}, "toppings": {"strings": ["basil", "olives"]}}
    devices = [
        {"name": "pizza-0", "attributes": attributes, "capacity": {"slices": {"value": "8"}}},
        {"name": "pizza-1"},
    ]
    pool = {"name": "node-a", "generation": 3}
    async with Cluster().serving() as cluster:
        spec = {"driver": "dra.pizza", "pool": pool, "devices": devices}
        cluster.add("resourceslices", {"metadata": {"name": "slice-1"}, "spec": spec})

        def serve(item: Object) -> None:
            if item["kind"] == "ResourceClaim":
                allocated(item, "pizza-0")
                uid = item["metadata"]["uid"]
                cluster.log += [
                    "claim prepared claim=elsewhere/dinner claim_uid=other",
                    f"claim prepared claim_uid={uid}",
                ]
                cluster.specs = {
                    f"/cdi/{uid}.json": {"kind": "k8s.dra.pizza/claim"},
                    "/cdi/other.json": {"kind": "k8s.dra.salad/claim"},
                }
            if item["kind"] == "Pod":
                runs(item)
                namespace = item["metadata"]["namespace"]
                environment = {"PATH": "/bin", "PIZZA_0_DOUGH": "pan"}
                cluster.containers["guest", "eater"] = (environment, "PATH=/bin\nPIZZA_0_DOUGH=pan\nenjoying it")
                cluster.log.append(f"claim released claim={namespace}/lunch")
                if leaves:
                    cluster.node.add("CDI file forgotten.json")

        cluster.on_create = serve
        await run_story(load_story(directory), cluster, observer=TerminalView(cluster, stream), timeout=0.1)
    return stream.getvalue()


async def test_the_chapters_come_in_the_order_of_events(tmp_path: Path) -> None:
    lines = (await tell(tmp_path, io.StringIO())).splitlines()

    titles = [line for line in lines if line[:1].isdigit()]
    assert titles == [
        "1. The ResourceSlice: what the driver offers",
        "2. The claim: what is asked for",
        "3. The allocation: what the scheduler chose, and for whom",
        "4. The kubelet's call, as the driver logs it",
        "5. The CDI spec: what the driver wrote for the container runtime",
        "6. Pod guest, container eater: what it sees of the claim",
        "7. Pod guest, container eater: what it says",
        "8. The clean-up: the pod is gone, and its claim with it",
    ]


async def test_each_chapter_shows_what_it_is_about(tmp_path: Path) -> None:
    text = await tell(tmp_path, io.StringIO())
    chapters = text.split("\n\n")

    assert chapters[1].splitlines()[1:] == [
        "slice-1: pool node-a, generation 3",
        "  device   dough  hot  toppings       slices",
        "  pizza-0  pan    yes  basil, olives  8",
        "  pizza-1  -      -    -              -",
    ]
    assert 'selector device.attributes["dra.pizza"].dough == "pan"' in chapters[2]
    assert "device pizza-0 of pool node-a\n  reserved for pods/guest" in chapters[3]
    assert "claim prepared claim_uid=" in chapters[4]
    assert "dinner" not in text
    assert "k8s.dra.pizza/claim" in chapters[5]
    assert "salad" not in text
    assert chapters[6].endswith("\n  PIZZA_0_DOUGH=pan")
    assert chapters[7].endswith("\n  enjoying it\npod guest is Running; container eater runs")
    assert "claim released" in chapters[8]
    assert "left over: no claim" in chapters[8]


async def test_what_is_left_over_is_listed(tmp_path: Path) -> None:
    text = await tell(tmp_path, io.StringIO(), leaves=True)

    assert text.endswith("left over:\n  CDI file forgotten.json\n")


async def test_colours_are_for_terminals_only(tmp_path: Path) -> None:
    plain, coloured = await tell(tmp_path, io.StringIO()), await tell(tmp_path, Terminal())

    assert "\x1b" not in plain
    assert "\x1b[" in coloured
