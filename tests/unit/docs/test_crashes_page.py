"""What docs/how-to/test-crashes-and-upgrades.md says is so: its tests, in a driver's project."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.unit.testing.bakery import write_project
from tests.unit.testing.test_plugin import report

pytestmark = pytest.mark.processes

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "test-crashes-and-upgrades.md"
*TESTS, NEXT_RELEASE, REBOOTED = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
NOT_REACHED = """
@pytest.mark.dra_killed("EFFECT_APPLIED", "EFFECT_LOST")
def test_killed_after_steps(dra):
    dra.apply("order.yaml")
    dra.wait("guest")
"""


@pytest.mark.timeout(600)
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    tests = "\n\n".join([*TESTS, REBOOTED, NOT_REACHED])
    project = write_project(tmp_path, {"tests/test_page.py": tests, "tests/next_release.py": NEXT_RELEASE})
    output = report(project, "-rs", "-k", "not a_crash or undisturbed or OUTCOME or AUTHOR_UNPREPARED")

    # a step that is named and not reached is an error
    assert "8 passed, 1 skipped, 15 deselected, 1 error in" in output, output
    assert re.search(r"SKIPPED .*: the driver never reached AUTHOR_UNPREPARED", output), output
    heading = r"^_+ ERROR at teardown of test_killed_after_steps\[EFFECT_LOST\] _+$"
    section = re.search(rf"{heading}\n(.*)$", output, re.MULTILINE)
    assert section is not None, output
    assert section[1] == "the driver never reached EFFECT_LOST in this test, after which it should have been killed"


def test_what_needs_a_process_is_skipped_on_a_real_cluster(tmp_path: Path) -> None:
    cluster = {"name": "far", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "far", "context": {"cluster": "far", "user": "me"}}
    kubeconfig = {
        "apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "current-context": "far",
        "users": [{"name": "me", "user": {"token": "x"}}],
    }  # fmt: skip
    files = {"tests/test_page.py": TESTS[0] + TESTS[1], "kubeconfig": json.dumps(kubeconfig)}
    output = report(write_project(tmp_path, files), "--dra-kubeconfig", "kubeconfig")
    assert re.search(r"^\d+ skipped in", output, re.MULTILINE), output
