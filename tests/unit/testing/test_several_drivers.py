"""Tests and stories of several drivers on one cluster: each is named, killed and configured by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.stories.runner import run_story
from dra_kit.sandbox.stories.story import load_story
from dra_kit.testing import Harness, TestBed, sandbox
from tests.unit.testing.bakery import DRIVER, ORDER, write_project
from tests.unit.testing.test_plugin import report

pytestmark = pytest.mark.processes

PAGE = (Path(__file__).resolve().parents[3] / "docs/how-to/test-a-driver.md").read_text(encoding="utf-8")
BREAD, WINE = "bread.example", "wine.example"
OTHER = (
    DRIVER.replace(BREAD, WINE)
    .replace('BREADS = ("bread-0", "bread-1")', 'BREADS = ("wine-0", "wine-1")')
    .replace("flame", "glow")
    .replace('"FLAME"', '"GLOW"')
)
DINNER = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: anything}
spec: {selectors: [{cel: {expression: device.driver.endsWith("example")}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: dinner}
spec:
  devices:
    requests:
    - name: bread
      exactly:
        deviceClassName: anything
        selectors: [{cel: {expression: device.driver == "bread.example"}}]
    - name: wine
      exactly:
        deviceClassName: anything
        selectors: [{cel: {expression: device.driver == "wine.example"}}]
---
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 0
  containers:
  - name: eater
    image: busybox:stable
    command: [sh, -c, "echo $FLAME $GLOW; sleep 3600"]
    resources: {claims: [{name: dinner}]}
  resourceClaims: [{name: dinner, resourceClaimName: dinner}]
"""
STORY = f"""\
steps:
  - apply: [dinner.yaml]
    pods: {{guest: {{phase: Running, containers: {{eater: {{output: flame-200 glow-200}}}}}}}}
  - kill: {{}}
    driver: {WINE}
    pods: {{guest: {{phase: Running}}}}
    devices: {{wine-0: {{}}, bread-1: {{}}}}
"""
TEST = f"""\
import pytest

DRIVER = "{WINE}"


@pytest.mark.dra_killed("EFFECT_APPLIED", driver=DRIVER)
def test_dinner(dra):
    dra.apply("dinner.yaml")
    dra.wait_for(lambda: dra.wait("guest").containers["eater"].output == "flame-200 glow-200\\n")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    others = {"cellar.py": OTHER, "tests/dinner.yaml": DINNER, "story/dinner.yaml": DINNER, "story/expect.yaml": STORY}
    return write_project(tmp_path_factory.mktemp("house"), others)


@pytest.fixture(scope="module")
def bed(project: Path) -> Iterator[TestBed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        settings = {f"{WINE}.oven_dir": "{directory}/cellar"}
        with sandbox(".", "./cellar.py", settings=settings, time_scale=60, timeout=60) as bed:
            patch.undo()
            yield bed


@pytest.fixture
def dra(bed: TestBed, project: Path) -> Iterator[Harness]:
    with bed.harness("dinner", directory=project / "tests", process=True) as harness:
        yield harness


def test_a_kill_of_one_leaves_the_other_serving(dra: Harness) -> None:
    dra.apply("dinner.yaml")
    dra.wait_for(lambda: dra.wait("guest").containers["eater"].output == "flame-200 glow-200\n")
    roles = {name: pid(dra, name) for name in (BREAD, WINE)}

    dra.kill(driver=WINE, restart=False)
    dra.apply(DINNER.split("---\n")[1].replace("name: dinner", "name: loaf").partition("    - name: wine")[0])
    dra.apply(DINNER.split("---\n")[2].replace("name: guest", "name: fast").replace("Name: dinner", "Name: loaf"))
    fast = dra.wait("fast")

    assert fast.containers["eater"].environment["FLAME"] == "flame-200"
    assert pid(dra, BREAD) == roles[BREAD]
    dra.start(driver=WINE)
    assert pid(dra, WINE) != roles[WINE]


def pid(dra: Harness, driver: str) -> int:
    [node] = dra.cluster.nodes  # type: ignore[attr-defined]  # of the sandbox
    number: int = node.drivers[driver]._role._process._process.pid
    return number


def test_one_that_is_not_named_is_asked_for(dra: Harness) -> None:
    with pytest.raises(ConfigurationError, match=r"2 drivers run here, bread\.example and wine\.example; say which"):
        dra.kill()


def test_a_story_names_the_driver_that_it_kills(bed: TestBed, project: Path) -> None:
    result = bed.background.call(run_story(load_story(project / "story"), bed.cluster, timeout=60))
    assert result.passed, result.report()


def test_settings_of_pytest_name_several_drivers(tmp_path: Path) -> None:
    [of_page] = re.findall(
        r"```python\n(.*?)```", PAGE.partition("## Several drivers")[2].partition("\n## ")[0], re.DOTALL
    )
    for word, here in (("nic.example", WINE), ("gpu.yaml", "order.yaml"), ('"trainer"', '"guest"')):
        assert word in of_page
        of_page = of_page.replace(word, here)
    tests = {
        "tests/dinner.yaml": DINNER,
        "tests/test_dinner.py": TEST,
        "tests/test_page.py": f"import pytest\n{of_page}",
    }
    write_project(tmp_path, {"cellar.py": OTHER, **tests})
    targets = ["dra_target=.\n./cellar.py", f"dra_settings={WINE}.oven_dir={{directory}}/cellar"]

    assert "3 passed" in report(tmp_path, *(word for text in targets for word in ("-o", text)))


def test_beds_of_one_driver_do_not_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = write_project(tmp_path / "bakery", {"tests/order.yaml": ORDER})
    monkeypatch.chdir(project)
    with (
        sandbox(".", time_scale=60, settings={"oven_dir": str(tmp_path / "first")}) as first,
        sandbox(".", time_scale=60, settings={"oven_dir": str(tmp_path / "second")}) as second,
    ):
        for bed, oven in ((first, "first"), (second, "second")):
            with bed.harness("order", directory=project / "tests") as dra:
                dra.apply("order.yaml")
                dra.wait("guest")
                assert [path.parent.name for path in tmp_path.glob("*/bread-*")] == [oven]
