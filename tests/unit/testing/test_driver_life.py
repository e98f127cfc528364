"""What is done to a driver in tests and stories: killed, upgraded, rolled back, rebooted, with an effect in force."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kit.author.target import load_driver
from dra_kit.errors import ConfigurationError, Invalid, SandboxError
from dra_kit.sandbox.containers.runtime import ContainerReport
from dra_kit.sandbox.drivers import node_driver
from dra_kit.sandbox.stories.runner import StoryResult, run_story
from dra_kit.sandbox.stories.story import load_story
from dra_kit.testing import Harness, TestBed, sandbox
from tests.unit.testing.bakery import DRIVER, ORDER, SEEDS, write_project

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("ovens"), {"tests/seeds.yaml": SEEDS})


@pytest.fixture(scope="module")
def bed(project: Path) -> Iterator[TestBed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        made = sandbox(".", time_scale=60, timeout=60)
        with made as bed:
            patch.undo()
            yield bed


@pytest.fixture
def threaded(bed: TestBed, project: Path) -> Iterator[Harness]:
    with bed.harness("threaded", directory=project / "tests") as harness:
        yield harness


@pytest.fixture
def killable(bed: TestBed, project: Path) -> Iterator[Harness]:
    with bed.harness("killable", directory=project / "tests", process=True) as harness:
        yield harness


def eats(dra: Harness, flames: str = "flame-200\n") -> None:
    dra.wait_for(lambda: dra.wait("guest").containers["eater"].output == flames)


def degrees(dra: Harness) -> list[str]:
    return [text for text in dra._background.call(dra.cluster.node_state()) if text.startswith("effect")]


def unreleased(dra: Harness) -> list[str]:
    return [text for text in dra._background.call(dra.cluster.node_state()) if "the kubelet has not released" in text]


def test_a_driver_is_killed_with_an_effect_in_force_and_takes_it_over(killable: Harness) -> None:
    killable.apply("order.yaml")
    eats(killable)
    killable.kill()
    assert len(degrees(killable)) == 1
    killable.delete("Pod/guest")
    killable.wait_for(lambda: not degrees(killable))


def test_while_it_is_away_nothing_is_prepared_and_it_is_when_it_is_back(killable: Harness) -> None:
    killable.kill(restart=False)
    killable.apply("order.yaml")
    killable.wait("guest", message="Failed to prepare dynamic resources")
    killable.start()
    eats(killable)


def test_a_claim_that_the_kubelet_cannot_release_is_left_over_until_the_driver_is_back(killable: Harness) -> None:
    killable.apply("order.yaml")
    eats(killable)
    killable.kill(restart=False)
    killable.delete("Pod/guest")
    assert unreleased(killable) == [f"claim {killable.namespace}/loaf that the kubelet has not released"]
    killable.start()
    killable.wait_for(lambda: not unreleased(killable))


def test_a_driver_that_is_away_makes_no_device_ill(killable: Harness) -> None:
    killable.kill(restart=False)
    with pytest.raises(ConfigurationError, match="start it"):
        killable.unhealthy("bread-0", "smoke")
    killable.start()


@pytest.mark.parametrize("step", ["EFFECT_APPLIED", "EFFECT_REVERTED"])
def test_it_is_killed_after_a_step_and_what_was_begun_is_finished(killable: Harness, step: str) -> None:
    killable.kill(after=step)
    killable.apply("order.yaml")
    eats(killable)
    killable.delete("Pod/guest")
    killable.wait_for(lambda: not degrees(killable))


def test_a_step_that_is_never_reached_fails_the_test(bed: TestBed, project: Path) -> None:
    with (
        pytest.raises(AssertionError, match="never reached EFFECT_LOST"),
        bed.harness("missed", directory=project, process=True) as harness,
    ):
        harness.kill(after="EFFECT_LOST")


def test_a_step_that_is_reached_once_is_not_reached_a_second_time(bed: TestBed, project: Path) -> None:
    def order_once() -> None:
        with bed.harness("second", directory=project / "tests", process=True) as harness:
            harness.kill(after="FILES_WRITTEN:2")
            harness.apply("order.yaml")
            eats(harness)

    with pytest.raises(AssertionError, match="never reached FILES_WRITTEN"):
        order_once()


SLOW = f"import time\n{DRIVER}".replace("        yield [", "        time.sleep(2)\n        yield [")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A driver that finds its devices late: the kubelet calls it before it is ready."""
    with sandbox(str(write_project(tmp_path_factory.mktemp("slow"), {"ovens.py": SLOW})), timeout=60) as bed:
        yield bed


def test_one_that_is_killed_while_it_comes_up_is_started_again(killable: Harness) -> None:
    killable.kill(after="STATE_OPENED")
    killable.kill(restart=False)
    killable.start()
    killable.apply("order.yaml")
    eats(killable)


def test_one_that_was_killed_at_the_end_of_a_test_can_be_killed_at_the_beginning_of_the_next(
    slow: TestBed, project: Path
) -> None:
    for step in ("CLAIM_FORGOTTEN", "CLAIM_FETCHED"):
        with slow.harness("end", directory=project / "tests", process=True) as harness:
            harness.kill(after=step)
            harness.apply("order.yaml")
            eats(harness)


def test_kill_rejects_driver_without_a_process(threaded: Harness) -> None:
    with pytest.raises(ConfigurationError, match=r"runs in a thread here and cannot be killed; mark the test"):
        threaded.kill()
    with pytest.raises(ConfigurationError, match=r"unknown step 'EFECT_APPLIED'; did you mean \"EFFECT_APPLIED\"\?"):
        threaded.kill(after="EFECT_APPLIED")
    with pytest.raises(ConfigurationError, match="invalid count after the colon; write EFFECT_APPLIED:2"):
        threaded.kill(after="EFFECT_APPLIED:twice")


def test_what_the_process_logs_and_its_health_come_over(killable: Harness, caplog: pytest.LogCaptureFixture) -> None:
    killable.kill(restart=False)
    with caplog.at_level("INFO"):
        killable.start()
        killable.apply("order.yaml")
        eats(killable)
    assert [item.claim for item in caplog.records if item.getMessage() == "claim prepared" and hasattr(item, "claim")]
    with pytest.raises(ConfigurationError, match=r"driver bread\.example has no health source"):
        killable.unhealthy("bread-0", "smoke")


@pytest.mark.parametrize("driver", ["threaded", "killable"])
def test_a_release_takes_over_the_effects_of_the_one_before_and_gives_them_back(
    request: pytest.FixtureRequest, driver: str
) -> None:
    dra: Harness = request.getfixturevalue(driver)
    dra.apply("order.yaml")
    eats(dra)
    dra.upgrade("./next_ovens.py")
    dra.wait_for(lambda: "bread-2" in dra.devices())
    dra.apply("seeds.yaml")  # the webhook is of the new release, too
    assert len(degrees(dra)) == 1
    dra.rollback()
    dra.wait_for(lambda: "bread-2" not in dra.devices())
    dra.delete("Pod/guest")
    dra.wait_for(lambda: not degrees(dra))


def test_the_next_test_has_the_first_release_again(bed: TestBed, project: Path) -> None:
    with bed.harness("one", directory=project) as harness:
        harness.upgrade("./next_ovens.py")
    with bed.harness("other", directory=project / "tests") as harness:
        assert set(harness.devices()) == {"bread-0", "bread-1"}
        with pytest.raises(Invalid, match="seeds"):
            harness.apply("seeds.yaml")


def test_upgrade_accepts_driver_object_without_process(threaded: Harness, project: Path) -> None:
    threaded.upgrade(load_driver(f"{project}/next_ovens.py"))
    threaded.wait_for(lambda: "bread-2" in threaded.devices())


@pytest.mark.parametrize("driver", ["threaded", "killable"])
def test_a_release_may_be_the_one_that_runs(request: pytest.FixtureRequest, driver: str) -> None:
    dra: Harness = request.getfixturevalue(driver)
    dra.apply("order.yaml")
    eats(dra)
    dra.upgrade(".")
    dra.rollback()
    dra.restart()
    eats(dra)


def test_release_that_cannot_be_copied_is_rejected(threaded: Harness, project: Path) -> None:
    (project / "locked_ovens.py").write_text(f"import threading\n{DRIVER}driver.preparer.lock = threading.Lock()\n")
    with pytest.raises(ConfigurationError, match=r"driver bread\.example cannot be copied .*thread\.lock.* in startup"):
        threaded.upgrade("./locked_ovens.py")
    threaded.restart()
    threaded.apply("order.yaml")
    eats(threaded)


def test_a_release_that_does_not_come_up_leaves_the_former_one(killable: Harness) -> None:
    killable.apply("order.yaml")
    eats(killable)
    with pytest.raises(SandboxError, match=r"driver bread\.example does not come up: "):
        killable.upgrade("./broken_ovens.py")
    killable.delete("Pod/guest")
    killable.wait_for(lambda: not degrees(killable))


def test_hanging_release_is_reported_with_its_cause(
    threaded: Harness, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_driver, "_COMES_UP", 0.5)
    slow = DRIVER.replace("self.oven_dir = str", "__import__('time').sleep(2)\n        self.oven_dir = str")
    (project / "slow_ovens.py").write_text(slow)
    with pytest.raises(SandboxError, match=r"within 0\.5 s not all of its parts are ready.*; see its log"):
        threaded.upgrade("./slow_ovens.py")


def test_upgrade_rejects_another_driver(killable: Harness, project: Path) -> None:
    (project / "cakes.py").write_text(DRIVER.replace("bread.example", "cake.example"))
    with pytest.raises(ConfigurationError, match=r"cake\.example is not a release of driver bread\.example"):
        killable.upgrade("./cakes.py")
    with pytest.raises(ConfigurationError, match="is an object of this process and cannot run in a separate process"):
        killable.upgrade(load_driver(f"{project}/next_ovens.py"))
    with pytest.raises(ConfigurationError, match="there is nothing to roll back"):
        killable.rollback()


@pytest.mark.parametrize("driver", ["threaded", "killable"])
def test_after_a_reboot_effects_are_applied_again_and_pods_start_again(
    request: pytest.FixtureRequest, driver: str
) -> None:
    dra: Harness = request.getfixturevalue(driver)
    dra.apply("order.yaml")
    eats(dra)
    [node] = dra.cluster.nodes  # type: ignore[attr-defined]  # of the sandbox
    oven = node.directory / "oven"
    before = dra.wait("guest").containers["eater"]
    dra.reboot(lost=["oven_dir"])
    dra.wait_for(lambda: [path.read_text() for path in oven.iterdir()] == ["200"])
    [first, second] = dra.wait_for(lambda: _two(node.runtime.reports(dra.namespace, "guest")))
    assert first.status.exit is not None
    assert first.status.exit.code == 255
    assert second.status.running
    assert before.exit_code is None


def _two(reports: list[ContainerReport]) -> list[ContainerReport]:
    return reports if len(reports) == 2 else []


def test_a_pod_that_is_not_restarted_has_failed_after_a_reboot(killable: Harness) -> None:
    killable.apply(ORDER.replace("restartPolicy: Always", "restartPolicy: Never"))
    eats(killable)
    killable.reboot()
    assert killable.wait("guest", phase="Failed").containers["eater"].exit_code == 255
    killable.wait_for(lambda: not degrees(killable))


def test_reboot_rejects_unknown_lost_setting(threaded: Harness) -> None:
    with pytest.raises(ConfigurationError, match="'oven' is not a setting of the driver that names"):
        threaded.reboot(lost=["oven"])


# --- stories


KILLED = """\
steps:
  - pods: {guest: {phase: Running, containers: {eater: {output: flame-200}}}}
    claims: {loaf: {conditions: {Burns: "True"}}}
    devices: {bread-1: {attributes: {crusty: true}, capacity: {slices: "8"}}, bread-2: null}
  - kill: {}
    pods: {guest: {phase: Running}}
  - kill: {restart: false}
  - start: {}
  - restart: {}
    pods: {guest: {phase: Running}}
  - kill: {after: EFFECT_REVERTED}
    delete: [Pod/guest]
    gone: [Pod/guest]
    claims: {loaf: {devices: []}}
"""

UPGRADED = """\
steps:
  - pods: {guest: {phase: Running}}
  - upgrade: {target: ../next_ovens.py}
    pods: {guest: {phase: Running}}
    devices: {bread-2: {}}
  - rollback: {}
    devices: {bread-2: null}
  - reboot: {lost: [oven_dir]}
    pods: {guest: {phase: Running, containers: {eater: {output: flame-200}}}}
"""


def tell(bed: TestBed, project: Path, name: str, expect: str) -> StoryResult:
    folder = project / name
    folder.mkdir()
    (folder / "expect.yaml").write_text(expect)
    (folder / "order.yaml").write_text(ORDER)
    return bed.background.call(run_story(load_story(folder), bed.cluster, timeout=60))


def test_a_story_kills_the_driver(bed: TestBed, project: Path) -> None:
    result = tell(bed, project, "killed", KILLED)
    assert result.passed, result.report()


def test_a_story_upgrades_the_driver_and_reboots_the_node(bed: TestBed, project: Path) -> None:
    result = tell(bed, project, "upgraded", UPGRADED)
    assert result.passed, result.report()


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("rollback: {}", "rollback of the driver\n    expected: is done\n    got:      there is nothing to roll back"),
        ("gone: [Pod/other]", "Pod/other\n    expected: an earlier step created it"),
        (
            "devices: {bread-0: {attributes: {crusty: false}}, bread-9: {}, bread-1: null}",
            "device bread-0, attribute crusty\n    expected: False\n    got:      True",
        ),
        ("kill: {after: EFFECT_LOST}", "the driver\n    expected: is killed after EFFECT_LOST"),
    ],
)
def test_failed_story_reports_actual_state(bed: TestBed, project: Path, tmp_path: Path, step: str, told: str) -> None:
    (tmp_path / "expect.yaml").write_text(f"steps: [{{{step}}}]")
    result = bed.background.call(run_story(load_story(tmp_path), bed.cluster, timeout=0.5))
    assert told in result.report()


def test_no_process_of_a_driver_outlives_the_sandbox(tmp_path: Path) -> None:
    project = write_project(tmp_path / "ovens")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        with sandbox(".") as bed, bed.harness("one", directory=project, process=True):
            [node] = bed.cluster.nodes  # type: ignore[attr-defined]  # of the sandbox
            pid = node.drivers["bread.example"]._role._process._process.pid
            os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
