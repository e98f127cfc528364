"""What a page gets of a timeline: short records, bounded, and the state of the cluster at any moment."""

from __future__ import annotations

import asyncio
import json
import re
from importlib.resources import files
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.sandbox.page.history import PageHistory
from dra_kit.sandbox.records import DriverLogged, ObjectChanged, Record
from tests.support.page_world import DRIVER, PageWorld, gpu_cluster

PODS = "pods"


def received(history: PageHistory, since: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in history.lines(since, most=1 << 62)[0]]


def test_a_page_gets_the_parts_of_objects_that_it_shows() -> None:
    history = gpu_cluster().history

    pods = [record["object"] for record in received(history) if record.get("resource") == PODS]

    assert pods[0]["metadata"] == {"name": "train-1", "namespace": "default", "uid": "pod-train-1"}
    assert pods[0]["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "train-1"}]
    assert not any("managedFields" in json.dumps(pod) for pod in pods)


def test_a_change_that_a_page_does_not_show_is_left_out() -> None:
    world = PageWorld()
    world.node("node-1")
    before = world.history.last
    world.node("node-1")  # with another resource version, such as a heartbeat has it

    assert world.history.last == before


def test_objects_that_a_page_does_not_show_are_not_sent() -> None:
    world = PageWorld()
    secret = {"metadata": {"name": "token", "namespace": "default", "uid": "s"}, "data": {"token": "c2VjcmV0"}}
    world.add(ObjectChanged(change="ADDED", resource="secrets", object=secret))
    world.add(ObjectChanged(change="ADDED", resource="configmaps", object=secret))
    world.start(DRIVER)  # with a class, which explanations need and the page does not

    assert [record["kind"] for record in received(world.history)] == ["ClusterStarted"]


def test_records_follow_those_that_a_reader_has() -> None:
    history = gpu_cluster().history
    everything = received(history)

    lines, last = history.lines(everything[4]["number"])

    assert [json.loads(line) for line in lines] == everything[5:]
    assert (last, history.lines(last)) == (history.last, ([], history.last))


def test_a_reader_gets_a_long_history_in_parts() -> None:
    history = gpu_cluster().history
    since, parts = 0, list[list[bytes]]()
    while (part := history.lines(since, most=2_000))[0]:
        parts.append(part[0])
        since = part[1]

    assert len(parts) > 3
    assert [line for part in parts for line in part] == history.lines(0, most=1 << 62)[0]


def test_output_is_sent_on_request_only() -> None:
    world = gpu_cluster()
    world.write("train-1", "epoch 3\n", offset=16)
    before = world.history.last
    world.write("train-1", "epoch 4\n", offset=24)

    assert "epoch" not in json.dumps(received(world.history))
    assert world.history.output("local-process://train-1", before) == "epoch 1\nepoch 2\nepoch 3\n"
    assert world.history.output("local-process://train-1", world.history.last).endswith("epoch 4\n")
    assert not world.history.output("local-process://other", world.history.last)


def test_missing_output_is_marked() -> None:
    world = PageWorld()
    world.write("train-1", "first\n")
    world.write("train-1", "last\n", offset=100)

    assert world.history.output("local-process://train-1", 2) == "first\n… output is missing here\nlast\n"


def test_a_pod_is_explained_as_of_a_moment() -> None:
    world = gpu_cluster()
    before = world.history.last
    for number in range(2, 8):
        world.claim(f"more-{number}", f"node-1/gpu-{number}")
    world.claim("more-9", *(f"node-2/gpu-{number}" for number in range(8)))

    explain, later = world.history.explanation("pod-train-9", before), world.history.explanation("pod-train-9", 1 << 40)

    assert explain is not None
    assert later is not None
    assert "no node has more than 7 that fit" in str(explain())
    assert "allocated to default/more-9" in str(later())


def test_only_pods_and_claims_that_exist_at_a_moment_are_explained() -> None:
    world = gpu_cluster()
    assert world.history.explanation("pod-train-9", 3) is None
    assert world.history.explanation("claim-train-9", world.history.last) is not None
    world.delete(PODS, "pod-train-9")
    assert world.history.explanation("pod-train-9", world.history.last) is None


# --- bounds


def test_a_full_history_drops_old_events_and_retains_what_exists() -> None:
    world = PageWorld(PageHistory(UNMODIFIED, limit=100_000))
    world.start(DRIVER)
    world.node("node-1")
    world.devices("node-1")
    for number in range(200):
        world.run(f"job-{number}", "node-1/gpu-0", output="x" * 100)
        world.delete(PODS, f"pod-job-{number}")
        world.delete("resourceclaims.resource.k8s.io", f"claim-job-{number}")

    found = received(world.history)

    assert world.history.generation > 0
    assert sum(map(len, world.history.lines(0, most=1 << 62)[0])) < 100_000
    assert next(record["lost"] for record in found if record["kind"] == "RecordsLost") > 1_000
    assert {"ClusterStarted", "RecordsLost"} <= {record["kind"] for record in found}
    assert [record["object"]["metadata"]["name"] for record in found if record.get("resource") == "nodes"] == ["node-1"]
    assert not any("job-0" in json.dumps(record) for record in found)


def test_a_cluster_that_is_larger_than_the_limit_is_retained() -> None:
    world = PageWorld(PageHistory(UNMODIFIED, limit=10_000))
    for number in range(100):
        world.node(f"node-{number}")

    assert len([record for record in received(world.history) if record["kind"] == "ObjectChanged"]) == 100


@given(
    st.lists(
        st.tuples(st.sampled_from(["claim", "pod", "delete", "log"]), st.integers(0, 4), st.integers(0, 7)), max_size=60
    )
)
def test_the_state_is_the_same_whether_older_records_were_dropped_or_not(steps: list[tuple[str, int, int]]) -> None:
    whole, reduced = PageWorld(), PageWorld(PageHistory(UNMODIFIED, limit=4_000))
    for world in (whole, reduced):
        alive = set[int]()
        for step, number, device in steps:
            if step == "delete" and number in alive:
                world.delete(PODS, f"pod-p-{number}")
                alive.discard(number)
            elif step == "pod":
                world.pod(f"p-{number}", f"node-{device}")
                alive.add(number)
            elif step == "claim":
                world.claim(f"c-{number}", f"node-1/gpu-{device}")
            elif step == "log":
                world.add(DriverLogged(text="x" * 300))

    assert newest_objects(reduced.history) == newest_objects(whole.history)


def newest_objects(history: PageHistory) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for record in received(history):
        if record["kind"] == "ObjectChanged":
            uid = record["object"]["metadata"]["uid"]
            found.pop(uid, None)
            if record["change"] != "DELETED":
                found[uid] = record["object"]
    return found


def test_records_that_cannot_be_written_as_json_are_left_out() -> None:
    world = PageWorld()
    world.add(DriverLogged(text="\ud800"))
    world.add(DriverLogged(text="readable"))

    assert [record["text"] for record in received(world.history)] == ["readable"]


# --- words


def test_the_page_has_a_sentence_for_each_kind_of_record() -> None:
    words = files("dra_kit.sandbox.page").joinpath("assets", "words.js").read_text()
    sentences = words.partition("const SENTENCES = {\n")[2].partition("\n};\n")[0]

    assert set(re.findall(r"^  (\w+):", sentences, re.MULTILINE)) == {kind.__name__ for kind in get_args(Record)}


# --- waiting


async def test_a_reader_waits_for_the_next_record() -> None:
    world = gpu_cluster()
    waiting = asyncio.create_task(world.history.wait(world.history.last, 0, 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    world.pod("next")
    await waiting


async def test_a_reader_of_a_closed_history_does_not_wait() -> None:
    world = gpu_cluster()
    waiting = asyncio.create_task(world.history.wait(world.history.last, 0, 60))
    await asyncio.sleep(0)
    world.history.close()
    await waiting
    await world.history.wait(world.history.last, 0, 60)
