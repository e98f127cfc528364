from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.stories import namespace as stage
from dra_kit.sandbox.stories import runner
from dra_kit.sandbox.stories.completion import PodsOutcome
from dra_kit.sandbox.stories.facts import StoryFacts
from dra_kit.sandbox.stories.manifests import Manifest
from dra_kit.sandbox.stories.namespace import CreatedObject, namespace_name
from dra_kit.sandbox.stories.runner import StoryFailure, StoryObserver, StoryResult, run_story
from dra_kit.sandbox.stories.story import Story, StoryStep, load_story
from dra_kit.sandbox.stories.verdict import Mismatch
from tests.unit.sandbox.stories.story_cluster import DRIVER, Cluster, Control, Object, allocated, runs
from tests.unit.sandbox.stories.test_story import write

CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: lunch}
spec: {devices: {requests: [{name: pizza, exactly: {deviceClassName: pizza}}]}}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  containers: [{name: eater, image: busybox}]
"""
CLASS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: pizza-of-the-day}
spec: {}
"""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster().serving() as cluster:
        cluster.on_create = lambda item: _serve(cluster, item)
        cluster.on_delete = lambda item: cluster.node.discard(f"record of {item['metadata']['name']}")
        yield cluster


def _serve(cluster: Cluster, item: Object) -> None:
    name = item["metadata"]["name"]
    if item["kind"] == "Pod":
        runs(item)
        cluster.containers[name, "eater"] = ({"DOUGH": "pan"}, "enjoying")
    if item["kind"] == "ResourceClaim":
        allocated(item, "margherita-0")
        cluster.node.add(f"record of {name}")


def publish(
    cluster: Cluster, pool: str, *devices: Object, number: int = 0, generation: int = 1, count: int = 1
) -> Object:
    """Publish one of the slices of a pool; its spec."""
    identity = {"name": pool, "generation": generation, "resourceSliceCount": count}
    spec: Object = {"driver": DRIVER, "pool": identity, "devices": list(devices)}
    cluster.add("resourceslices", {"metadata": {"name": f"{pool}-{number}"}, "spec": spec})
    return spec


def story(directory: Path, expect: str, **manifests: str) -> Story:
    return load_story(write(directory, expect, **manifests))


RUNNING = """
pods: {guest: {phase: Running, containers: {eater: {environment: {DOUGH: pan}, output: enjoying}}}}
claims: {lunch: {devices: [margherita-0], reserved_for: [guest]}}
"""


async def test_passing_story_leaves_nothing_behind(cluster: Cluster, tmp_path: Path) -> None:
    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD, type=CLASS), cluster)

    assert result.report().startswith(f"story {tmp_path.name} passed in ")
    assert result.passed
    assert result.pods["guest"].containers["eater"].environment == {"DOUGH": "pan"}
    assert not cluster.objects
    assert not cluster.node


async def test_a_story_for_another_release_than_that_of_the_cluster_applies_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    expect = f'kubernetes: "1.35"{RUNNING}'

    result = await run_story(story(tmp_path, expect, claim=CLAIM, pod=POD, type=CLASS), cluster)

    assert "the cluster\n    expected: is Kubernetes 1.35\n    got:      it is 1.37" in result.report()
    assert not cluster.created


async def test_devices_whose_status_has_no_conditions_have_none(cluster: Cluster, tmp_path: Path) -> None:
    def serve(item: Object) -> None:
        _serve(cluster, item)
        if item["kind"] == "ResourceClaim":  # as the API server stores a status with data alone
            item["status"]["devices"] = [{"driver": DRIVER, "conditions": None, "data": {"crust": "thin"}}]

    cluster.on_create = serve
    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD, type=CLASS), cluster)
    assert result.passed, result.report()


async def test_story_runs_in_its_own_labelled_namespace(cluster: Cluster, tmp_path: Path) -> None:
    expect = f"namespace: {{labels: {{kitchen: open}}}}{RUNNING}"

    result = await run_story(story(tmp_path, expect, claim=CLAIM, pod=POD, type=CLASS), cluster)

    made = list(cluster.created.values())
    assert [item["kind"] for item in made] == ["Namespace", "ResourceClaim", "Pod", "DeviceClass"]
    assert made[0]["metadata"]["name"] == result.namespace
    assert made[0]["metadata"]["labels"] == {"kitchen": "open"}
    assert [item["metadata"].get("namespace") for item in made[1:]] == [result.namespace, result.namespace, None]


async def test_failure_contains_expected_got_and_events(cluster: Cluster, tmp_path: Path) -> None:
    def pending(item: Object) -> None:
        if item["kind"] == "Pod":
            runs(item, phase="Pending", message="cannot allocate all claims", started=False)
            event = {
                "metadata": {"name": "e"},
                "type": "Warning",
                "reason": "FailedScheduling",
                "note": "0/1 nodes",
                "regarding": {"kind": "Pod", "name": "guest"},
            }
            cluster.add("events", event, item["metadata"]["namespace"])

    cluster.on_create = pending

    result = await run_story(story(tmp_path, "pods: {guest: {phase: Running}}", pod=POD), cluster, timeout=0.1)

    assert not result.passed
    assert result.report().splitlines()[1:] == [
        "step 1 of 1:",
        "  pod guest",
        "    expected: Running",
        "    got:      Pending",
        "  events and conditions:",
        "    guest: condition PodScheduled=False Unschedulable: cannot allocate all claims",
        "    guest: event Warning FailedScheduling: 0/1 nodes",
    ]
    assert not cluster.of("pods")
    assert not cluster.of("namespaces")


async def test_failure_lists_events_of_all_objects_in_order_of_time(cluster: Cluster, tmp_path: Path) -> None:
    def pending(item: Object) -> None:
        if item["kind"] != "Pod":
            return
        runs(item, phase="Pending", started=False)
        for name, kind, about, note, moment in (
            ("a", "Pod", "guest", "third", {"deprecatedLastTimestamp": "2026-01-01T00:00:01Z"}),
            ("b", "ResourceClaim", "lunch", "fourth", {"series": {"lastObservedTime": "2026-01-01T00:00:02.100000Z"}}),
            ("c", "Pod", "guest", "second", {"eventTime": "2026-01-01T00:00:01.900000Z"}),
            ("d", "ResourceClaim", "lunch", "first", {"eventTime": "2026-01-01T00:00:00.500000Z"}),
            ("e", "Pod", "guest", "undated", {"deprecatedLastTimestamp": None, "series": None}),
            ("f", "Pod", "guest", "second", {"eventTime": "2026-01-01T00:00:09.000000Z"}),  # again
        ):
            version = {"second": "9", "third": "10"}.get(note, "1")  # as numbers: 10 is later than 9
            event = {"metadata": {"name": name, "resourceVersion": version}, "note": note, **moment}
            regarding = {"kind": kind, "name": about}
            cluster.add("events", {**event, "regarding": regarding}, item["metadata"]["namespace"])

    cluster.on_create = pending
    expect = "pods: {guest: {phase: Running}}\nclaims: {lunch: {devices: []}}"

    result = await run_story(story(tmp_path, expect, claim=CLAIM, pod=POD), cluster, timeout=0.1)

    found = [message.rpartition(" ")[2] for message in result.failures[0].messages if "event" in message]
    assert found == ["undated", "first", "second", "third", "fourth"]


async def test_observer_learns_once_what_a_step_waits_for(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(runner, "SLOW_CALL_SECONDS", -1.0)
    cluster.on_create = lambda item: runs(item, phase="Pending", started=False) if item["kind"] == "Pod" else None
    seen: list[object] = []

    class Waiting(StoryObserver):
        def unmet(self, where: str, mismatches: Sequence[Mismatch], seconds: float) -> None:
            seen.append((where, [mismatch.got for mismatch in mismatches], seconds))

    expect = "pods: {guest: {phase: Running}}"
    await run_story(story(tmp_path, expect, pod=POD), cluster, observer=Waiting(), timeout=0.2)

    assert seen == [("step 1 of 1", ["Pending"], 0.2)]


async def test_observer_learns_once_of_slices_that_are_missing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(stage, "SLOW_CALL_SECONDS", -1.0)
    publish(cluster, "node-a", {"name": "first"}, count=2)
    seen: list[object] = []

    class Waiting(StoryObserver):
        def waiting(self, subject: str, found: Sequence[str], seconds: float) -> None:
            seen.append((subject, [*found], round(seconds)))
            publish(cluster, "node-a", {"name": "second"}, number=1, count=2)

    await run_story(story(tmp_path, "steps: [{apply: []}]"), cluster, observer=Waiting())

    assert seen == [("all slices of these pools", [f"pool node-a of driver {DRIVER}"], 60)]


async def test_observer_learns_how_long_a_step_waits_for_what_it_deletes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(stage, "SLOW_CALL_SECONDS", -1.0)
    cluster.stuck.add("guest")
    seen: list[object] = []

    class Waiting(StoryObserver):
        def waiting(self, subject: str, found: Sequence[str], seconds: float) -> None:
            seen.append((subject, [*found], round(seconds, -2)))
            cluster.objects = {key: item for key, item in cluster.objects.items() if key[0] != "pods"}

    expect = "steps: [{apply: [pod.yaml]}, {delete: [Pod/guest]}]"
    await run_story(story(tmp_path, expect, pod=POD), cluster, observer=Waiting(), timeout=300, clean_up=60)

    assert seen == [("what is deleted", ["Pod/guest"], 300)]


async def test_story_that_cannot_pass_does_not_wait(cluster: Cluster, tmp_path: Path) -> None:
    cluster.on_create = lambda item: runs(item, phase="Failed", exit_code=1) if item["kind"] == "Pod" else None

    result = await run_story(story(tmp_path, "pods: {guest: {phase: Running}}", pod=POD), cluster, timeout=3600)

    assert [str(item.got) for item in result.failures[0].mismatches] == ["Failed"]


async def test_step_forgets_earlier_rejections(cluster: Cluster, tmp_path: Path) -> None:
    cluster.controlled.texts["menu"] = "old"
    cluster.refused["lunch"] = "unknown pizza"
    (tmp_path / "menu.txt").write_text("new")
    result = await run_story(story(tmp_path, "steps: [{edit: {menu: menu.txt}}]"), cluster, timeout=1)

    assert result.passed
    assert cluster.refused == {}


async def test_step_forgets_earlier_rejections_in_the_namespaces_of_objects(cluster: Cluster, tmp_path: Path) -> None:
    cluster.controlled.texts["menu"] = "old"
    cluster.add("namespaces", {"metadata": {"name": "shop"}})
    cluster.refused |= {"shop/lunch": "unknown pizza", "other/lunch": "unknown pizza"}
    (tmp_path / "menu.txt").write_text("new")
    claim = CLAIM.replace("{name: lunch}", "{name: lunch, namespace: shop}")
    expect = "steps: [{apply: [claim.yaml]}, {edit: {menu: menu.txt}}]"
    result = await run_story(story(tmp_path, expect, claim=claim), cluster, timeout=1)

    assert result.passed, result.report()
    assert cluster.refused == {"other/lunch": "unknown pizza"}


async def test_files_of_the_nodes_are_compared(cluster: Cluster, tmp_path: Path) -> None:
    cluster.controlled.texts["oven"] = "cold"
    steps = "steps: [{files: {oven: cold}}, {edit: {oven: lit.txt}, files: {oven: [li, it]}}, {files: {oven: cold}}]"
    (tmp_path / "lit.txt").write_text("lit")

    (failure,) = (await run_story(story(tmp_path, steps), cluster, timeout=0.1)).failures

    assert failure.where == "step 3 of 3"
    assert failure.mismatches[0].got == "'lit'"


async def test_files_of_an_unknown_setting_fail_the_story(cluster: Cluster, tmp_path: Path) -> None:
    (failure,) = (await run_story(story(tmp_path, "files: {fridge: cold}"), cluster, timeout=0.1)).failures

    assert failure.mismatches[0].got == "the driver has no setting 'fridge'"


async def test_inaccessible_node_files_are_reported_and_do_not_fail_the_story(cluster: Cluster, tmp_path: Path) -> None:
    result = await run_story(story(tmp_path, "files: {far: cold}"), cluster, timeout=0.1)

    assert result.passed
    assert result.report().endswith("; not checked, because files of a real node cannot be read: file far")


async def test_state_left_on_the_node_is_a_leftover(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node.add("CDI file of another driver")
    cluster.on_delete = lambda _: None

    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD), cluster, timeout=0.1)

    (failure,) = result.failures
    assert failure.where == "clean-up"
    assert failure.mismatches[0].got == "record of lunch"


async def test_cleanup_does_not_wait_for_allowed_leftovers(cluster: Cluster, tmp_path: Path) -> None:
    cluster.on_delete = lambda item: None
    cluster.stuck.add("pizza-of-the-day")
    expect = f"leftovers: [record of l.*, DeviceClass/.*]{RUNNING}"

    result = await run_story(story(tmp_path, expect, claim=CLAIM, pod=POD, type=CLASS), cluster, timeout=3600)

    assert result.passed, result.report()


async def test_a_step_that_fails_ends_the_story_before_anything_is_deleted(cluster: Cluster, tmp_path: Path) -> None:
    seen: list[str] = []

    class Ending(StoryObserver):
        async def ended(self, failure: StoryFailure | None) -> None:
            assert failure is not None
            seen.append(f"{failure.where}: {len(cluster.of('pods'))} pod")

    expect = RUNNING.replace("phase: Running", "phase: Failed")
    await run_story(story(tmp_path, expect, claim=CLAIM, pod=POD), cluster, observer=Ending(), timeout=0.1)

    assert seen == ["step 1 of 1: 1 pod"]


class Done:
    """Expects that all pods run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def look(self, made: Sequence[CreatedObject]) -> PodsOutcome:
        phases = [pod["status"]["phase"] for pod in self._cluster.of("pods") if pod["metadata"]["uid"] in uids(made)]
        return PodsOutcome(settled=len(phases) == len(made), failures=tuple(set(phases) - {"Running"}))

    async def judge(self, made: Sequence[CreatedObject]) -> PodsOutcome:
        return await self.look(made)


def uids(made: Sequence[CreatedObject]) -> set[str]:
    return {item.uid for item in made}


def of_files(cluster: Cluster, *texts: str) -> Story:
    manifests = tuple(Manifest("order.yaml", yaml.safe_load(text)) for text in texts)
    return Story("files", {}, (StoryStep(manifests, {}, {}, (), completion=Done(cluster)),), (), own_namespace=False)


async def test_objects_without_an_expectation_are_applied_where_they_say_and_deleted(cluster: Cluster) -> None:
    elsewhere = POD.replace("{name: guest}", "{name: guest, namespace: elsewhere}")
    cluster.add("namespaces", {"metadata": {"name": "elsewhere"}})

    result = await run_story(of_files(cluster, POD, elsewhere), cluster)

    assert result.passed, result.report()
    assert list(cluster.created) == [("pods", "default", "guest"), ("pods", "elsewhere", "guest")]
    assert list(cluster.objects) == [("namespaces", "", "elsewhere")]


async def test_a_refused_object_without_an_expectation_is_an_error_of_its_file(cluster: Cluster) -> None:
    cluster.refusals.append((422, "spec.containers: bad dough"))

    with pytest.raises(ConfigurationError, match=r"order\.yaml: CREATE pods default/guest: .*bad dough"):
        await run_story(of_files(cluster, POD), cluster)


async def test_claim_that_was_not_deleted_is_a_leftover(cluster: Cluster, tmp_path: Path) -> None:
    def make_claim(item: Object) -> None:
        if item["kind"] == "Pod":
            claim: Object = {"metadata": {"name": "guest-pizza-x7"}}
            cluster.add("resourceclaims", claim, item["metadata"]["namespace"])

    cluster.on_created = make_claim

    result = await run_story(story(tmp_path, "pods: {guest: {phase: Running}}", pod=POD), cluster, timeout=0.1)

    assert "ResourceClaim/guest-pizza-x7" in result.report()


async def test_claims_of_a_pod_group_are_gone_with_the_group(cluster: Cluster, tmp_path: Path) -> None:
    group = "apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup\nmetadata: {name: band}\nspec: {}\n"
    claim: Object = {"metadata": {"name": "band-pizza-x7"}}
    places: list[str] = []

    def make_claim(item: Object) -> None:
        if item["kind"] == "PodGroup":
            places.append(item["metadata"]["namespace"])
            cluster.add("resourceclaims", claim, places[0])

    def take_claim(item: Object) -> None:
        if item["kind"] == "PodGroup":
            del cluster.objects["resourceclaims", places[0], "band-pizza-x7"]

    cluster.on_created, cluster.on_delete = make_claim, take_claim
    expected = "pods: {guest: {phase: Running}}"

    result = await run_story(story(tmp_path, expected, group=group, pod=POD), cluster, timeout=60)

    assert result.passed, result.report()


async def test_object_that_ignores_its_deletion_is_a_leftover(cluster: Cluster, tmp_path: Path) -> None:
    cluster.stuck.add("pizza-of-the-day")

    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD, type=CLASS), cluster, timeout=0.1)

    assert result.failures[0].mismatches[0].got == "DeviceClass/pizza-of-the-day"


async def test_cleanup_has_one_deadline_and_names_blocking_finalizers(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hold(item: Object) -> None:
        if item["kind"] == "Pod":
            item["metadata"] |= {"finalizers": ["kitchen/dishes"], "deletionTimestamp": "2026-01-01T00:00:00Z"}

    cluster.on_created = hold
    cluster.stuck |= {"guest", "lunch", "pizza-of-the-day"}
    cluster.on_delete = lambda _: cluster.node.add("record of a claim")
    seconds = itertools.count()  # one at each look at the clock
    monkeypatch.setattr(stage, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(stage, "POLL_SECONDS", 0.0)

    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD, type=CLASS), cluster, timeout=20)

    assert next(seconds) < 50  # five things that do not go, twenty seconds for all of them
    got = result.failures[0].mismatches[0].got
    assert "Pod/guest (waits for the finalizer kitchen/dishes)" in got
    assert "DeviceClass/pizza-of-the-day" in got


async def test_objects_of_other_kinds_are_deleted_with_the_namespace(cluster: Cluster, tmp_path: Path) -> None:
    menu = "{apiVersion: v1, kind: ConfigMap, metadata: {name: menu}}"

    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, menu=menu, pod=POD), cluster)

    assert result.passed, result.report()
    assert ("configmaps", result.namespace, "menu") in cluster.created
    assert not cluster.objects


async def test_a_kind_that_the_api_server_does_not_have_fails_the_step(cluster: Cluster, tmp_path: Path) -> None:
    job = "{apiVersion: v1, kind: Pizza, metadata: {name: thin}}"

    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD, thin=job), cluster, timeout=3600)

    (mismatch,) = result.failures[0].mismatches
    assert mismatch.subject == "Pizza/thin of thin.yaml"
    assert "the API server has no kind Pizza of v1" in mismatch.got


async def test_changed_slice_is_a_leftover_but_a_new_generation_is_not(cluster: Cluster, tmp_path: Path) -> None:
    spec = publish(cluster, "node-a", {"name": "a"}, {"name": "b"})

    cluster.on_created = lambda _: spec["pool"].update(generation=2)
    unchanged = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD), cluster, timeout=0.1)
    cluster.on_created = lambda _: spec.update(devices=[{"name": "a"}, {"name": "c"}])
    changed = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD), cluster, timeout=0.1)

    assert unchanged.passed, unchanged.report()
    assert "device node-a/b is gone" in changed.report()
    assert "device node-a/c is published" in changed.report()


@pytest.mark.parametrize("tainted", [True, False], ids=["gets a taint", "recovers"])
async def test_a_new_taint_is_left_over_but_a_recovery_is_not(cluster: Cluster, tmp_path: Path, tainted: bool) -> None:
    """A device may recover during any test, such as one whose fault an earlier test has injected."""
    healthy, unhealthy = {"name": "a"}, {"name": "a", "taints": [{"key": "lost", "effect": "NoSchedule"}]}
    spec = publish(cluster, "node-a", healthy if tainted else unhealthy)
    cluster.on_created = lambda _: spec.update(devices=[unhealthy if tainted else healthy])
    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD), cluster, timeout=0.1)

    assert result.passed is not tainted
    if tainted:
        text = 'device node-a/a has taints [{"effect": "NoSchedule", "key": "lost"}] instead of null'
        assert text in result.report()


async def test_steps_come_one_after_the_other_and_edits_are_undone(cluster: Cluster, tmp_path: Path) -> None:
    cluster.controlled.texts["menu"] = "old"
    (tmp_path / "new-menu.yaml").write_text("new")
    expect = """
steps:
  - apply: [pod.yaml]
    pods: {guest: {phase: Running}}
  - edit: {menu: new-menu.yaml}
    pods: {guest: {phase: Running}}
  - delete: [Pod/guest]
    apply: [claim.yaml]
    claims: {lunch: {devices: [margherita-0]}}
"""
    observer = Recorder(cluster)

    result = await run_story(story(tmp_path, expect, claim=CLAIM, pod=POD), cluster, observer=observer)

    assert result.passed, result.report()
    assert observer.seen == ["begun", ["guest"], ["guest"], [], "cleaned []"]
    assert cluster.controlled.replaced == [("menu", "new"), ("menu", "old")]


async def test_edit_waits_until_every_pool_is_complete_with_other_devices(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "POLL_SECONDS", 0.0)
    later = [
        lambda: publish(cluster, "node-a", {"name": "new-0"}, generation=2, count=2),
        lambda: publish(cluster, "node-a", {"name": "new-1"}, number=1, generation=2, count=2),
        lambda: publish(cluster, "node-b", {"name": "new-2"}, generation=2),
    ]
    for pool in ("node-a", "node-b"):
        publish(cluster, pool, {"name": "old"})
    cluster.controlled.texts["menu"] = "old"
    (tmp_path / "menu.txt").write_text("new")

    def on_list(plural: str) -> None:
        if plural == "resourceslices" and len(cluster.controlled.replaced) == 1 and later:
            later.pop(0)()
        if len(cluster.controlled.replaced) == 2:  # in the end the file is put back
            del cluster.objects["resourceslices", "", "node-a-1"]
            for pool in ("node-a", "node-b"):
                publish(cluster, pool, {"name": "old"}, generation=3)
            cluster.controlled.replaced.clear()

    cluster.on_list = on_list
    left: list[int] = []

    class Watching(StoryObserver):
        async def done(self, step: StoryStep, facts: StoryFacts) -> None:
            left.append(len(later))

    told = story(tmp_path, "steps: [{edit: {menu: menu.txt}}]")
    result = await run_story(told, cluster, observer=Watching(), timeout=60)
    assert result.passed, result.report()
    assert left == [0]


async def test_story_waits_for_all_slices(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(stage, "_PUBLISHES", 0.0)  # a slow machine takes longer
    looks: list[int] = []

    def on_list(plural: str) -> None:
        if plural == "resourceslices":
            looks.append(1)
            if len(looks) == 3:
                publish(cluster, "node-a", {"name": "device-1"}, number=1, count=2)

    publish(cluster, "node-a", {"name": "device-0"}, count=2)
    cluster.on_list = on_list
    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD), cluster, timeout=60)
    assert result.passed, result.report()


async def test_driver_actions_run_first_and_are_undone_at_the_end(cluster: Cluster, tmp_path: Path) -> None:
    expect = """
steps:
  - kill: {after: EFFECT_APPLIED}
    apply: [pod.yaml]
  - kill: {}
  - kill: {restart: false}
  - start: {}
  - restart: {}
  - upgrade: {target: next.module}
  - rollback: {}
  - reboot: {lost: [oven_dir]}
"""
    result = await run_story(story(tmp_path, expect, pod=POD), cluster)
    assert result.passed, result.report()
    assert cluster.controlled.done == [
        "in a process", "kill after EFFECT_APPLIED", "kill", "start", "kill", "start", "restart",
        "upgrade to next.module", "rollback", "reboot, losing ['oven_dir']", "start", "restore",
    ]  # fmt: skip


async def test_failed_driver_action_is_reported_with_its_step(cluster: Cluster, tmp_path: Path) -> None:
    cluster.controlled.refused = "it is on a node of a real cluster"
    result = await run_story(story(tmp_path, "steps: [{kill: {}}]"), cluster)
    assert "the driver\n    expected: can be killed\n    got:      it is on a node of a real cluster" in result.report()


async def test_a_step_acts_on_the_driver_that_it_names(cluster: Cluster, tmp_path: Path) -> None:
    other = cluster.controls["dra.wine"] = Control()
    other.texts["shelf"] = "old"
    expect = """
steps:
  - kill: {}
    driver: dra.wine
  - edit: {shelf: new.txt}
    health: {wine-0: {burnt: black}}
    driver: dra.wine
  - reboot: {}
"""
    (tmp_path / "new.txt").write_text("new")
    result = await run_story(story(tmp_path, expect), cluster)

    assert result.passed, result.report()
    assert other.done == ["in a process", "kill", "start", "start", "restore"]
    assert other.replaced == [("shelf", "new"), ("shelf", "old")]
    assert other.injected == [("wine-0", "burnt", "black"), ("wine-0", "burnt", None)]
    assert cluster.controlled.done == ["in a thread", "reboot, losing []", "start", "restore"]


@pytest.mark.parametrize(
    "what", ["kill: {}", "edit: {shelf: new.txt}", "health: {a: {b: c}}", "reboot: {lost: [oven]}"]
)
async def test_step_must_name_one_of_several_drivers(cluster: Cluster, tmp_path: Path, what: str) -> None:
    cluster.controls["dra.wine"] = Control()
    (tmp_path / "new.txt").touch()

    result = await run_story(story(tmp_path, f"steps: [{{pods: {{}}}}, {{{what}}}]"), cluster)

    assert (
        "step 2 of 2:\n  the driver\n    expected: is there\n    got:      several drivers run here" in result.report()
    )
    assert cluster.objects == {}


async def test_injected_health_is_reset_when_the_story_ends(cluster: Cluster, tmp_path: Path) -> None:
    expect = """
steps:
  - health: {pizza-0: {burnt: black, burnt-edge: brown}}
  - health: {pizza-0: {burnt: null}}
"""
    result = await run_story(story(tmp_path, expect), cluster)

    assert result.passed, result.report()
    assert cluster.controlled.injected == [
        ("pizza-0", "burnt", "black"),
        ("pizza-0", "burnt-edge", "brown"),
        ("pizza-0", "burnt", None),
        ("pizza-0", "burnt-edge", None),
    ]


async def test_rejected_health_injection_fails_the_step(cluster: Cluster, tmp_path: Path) -> None:
    result = await run_story(story(tmp_path, "steps: [{health: {pizza-0: {cold: ''}}}]"), cluster)

    (mismatch,) = result.failures[0].mismatches
    assert (mismatch.subject, mismatch.got) == ("health of device pizza-0", "cold is not in the policy")


async def test_an_object_that_the_api_server_refuses_fails_the_step(cluster: Cluster, tmp_path: Path) -> None:
    cluster.refusals.append((422, "spec.devices: bad dough"))

    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD), cluster, timeout=3600)

    (mismatch,) = result.failures[0].mismatches
    assert mismatch.subject == "ResourceClaim/lunch of claim.yaml"
    assert "bad dough" in mismatch.got


async def test_object_of_another_owner_is_rejected_and_kept(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("deviceclasses", {"metadata": {"name": "pizza-of-the-day"}})

    result = await run_story(story(tmp_path, RUNNING, claim=CLAIM, pod=POD, type=CLASS), cluster)

    assert result.failures[0].mismatches[0].subject == "DeviceClass/pizza-of-the-day of type.yaml"
    assert len(cluster.of("deviceclasses")) == 1


async def test_a_namespace_without_its_service_account_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    cluster.refusals += [(403, "in whatever words the API server says it")] * 2

    result = await run_story(story(tmp_path, "pods: {guest: {phase: Running}}", pod=POD), cluster)

    assert result.passed, result.report()


async def test_forbidden_pod_with_a_service_account_is_not_retried(cluster: Cluster, tmp_path: Path) -> None:
    cluster.on_create = lambda item: cluster.add(
        "serviceaccounts", {"metadata": {"name": "default"}}, item["metadata"]["name"]
    )
    cluster.refusals += [(403, 'policy "no pods" denied request')]

    result = await run_story(story(tmp_path, "pods: {guest: {phase: Running}}", pod=POD), cluster, timeout=3600)

    assert "no pods" in result.failures[0].mismatches[0].got


async def test_step_cannot_delete_objects_that_no_step_created(cluster: Cluster, tmp_path: Path) -> None:
    result = await run_story(story(tmp_path, "steps: [{delete: [Pod/waiter]}]"), cluster)

    assert result.failures[0].mismatches[0].expected == "an earlier step created it"


async def test_a_cancelled_story_cleans_up_too(cluster: Cluster, tmp_path: Path) -> None:
    created = asyncio.Event()

    def notice(item: Object) -> None:
        if item["kind"] == "Pod":
            created.set()

    cluster.on_created = notice
    tale = story(tmp_path, RUNNING.replace("pan", "thin"), claim=CLAIM, pod=POD)
    task: asyncio.Task[StoryResult] = asyncio.create_task(run_story(tale, cluster))
    await created.wait()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert not cluster.objects


@pytest.mark.parametrize("name", ["order-by-claim", "Two_pizzas!", "x" * 200, "--a--"])
def test_a_namespace_is_a_dns_label(name: str) -> None:
    namespace = namespace_name("story", name)

    assert len(namespace) <= 63
    assert namespace.replace("-", "").isalnum()
    assert namespace == namespace.lower()
    assert namespace_name("story", name) != namespace


class Recorder(StoryObserver):
    def __init__(self, cluster: Cluster) -> None:
        self.seen: list[object] = []
        self._cluster = cluster

    async def begun(self, story: Story, namespace: str) -> None:
        assert [item["metadata"]["name"] for item in self._cluster.of("namespaces")] == [namespace]
        self.seen.append("begun")

    async def done(self, step: StoryStep, facts: StoryFacts) -> None:
        self.seen.append(sorted(facts.pods))

    async def cleaned(self, leftovers: Sequence[str]) -> None:
        self.seen.append(f"cleaned {list(leftovers)}")
