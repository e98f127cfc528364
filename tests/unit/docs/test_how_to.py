"""The pages of docs/how-to that have a driver: it is complete and short, passes mypy, and does what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from tests.unit.docs import pages
from tests.unit.docs.test_small_examples import MIGRATION, WHY_EFFECTS, code

pytestmark = pytest.mark.processes

TOPICS = [
    "binding.md",
    "config-versions.md",
    "controller.md",
    "effects.md",
    "health.md",
    "hot-plug.md",
    "modes.md",
    "network-attached.md",
    "partitions.md",
    "pod-hooks.md",
    "programs-and-objects.md",
    "read-the-cluster.md",
    "several-pools.md",
    "sharing.md",
    "status.md",
    "taint-rules.md",
    "taints.md",
    "upgrade.md",
    "what-a-container-gets.md",
]
WALK = "write-a-driver.md"
MOST_WORDS = dict.fromkeys(TOPICS, 900) | {WALK: 1400}
MOST_LINES = 40


@pytest.mark.parametrize("name", MOST_WORDS)
def test_a_page_can_be_read_in_a_few_minutes(name: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", pages.page(name).text, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= MOST_WORDS[name]


@pytest.mark.parametrize("name", MOST_WORDS)
def test_its_first_two_lines_say_who_needs_it_and_when(name: str) -> None:
    title, first, *_ = pages.page(name).text.split("\n\n")
    assert re.fullmatch("# [^\n]+", title)
    assert first.startswith("For ")
    assert len(first.splitlines()) <= 2


@pytest.mark.parametrize("name", TOPICS)
def test_its_first_block_is_a_whole_driver(name: str) -> None:
    first = pages.page(name).blocks[0]
    assert (first.language, first.file) == ("python", "driver.py")
    assert "\ndriver = dra.Driver(" in first.text
    assert len(first.text.splitlines()) < MOST_LINES


@pytest.mark.timeout(600)  # slow without a cache
def test_the_types_of_all_pages_are_right(tmp_path: Path) -> None:
    modules = [(page, file, text) for page in map(pages.page, [*TOPICS, WALK]) for file, text in page.modules().items()]
    for page, file, whole in modules:
        prefix = page.path.stem.replace("-", "_")
        own = "|".join(name.removesuffix(".py") for name in page.modules())
        text = re.sub(rf"^from ({own}) import", rf"from {prefix}_\1 import", whole, flags=re.MULTILINE)
        (tmp_path / f"{prefix}_{file}").write_text(text, encoding="utf-8")
    for small in (MIGRATION, WHY_EFFECTS):  # one run: each reads all of dra_kit
        name = Path(small).stem.replace("-", "_")
        (tmp_path / f"{name}.py").write_text(code(small), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run([*command, str(tmp_path)], cwd=pages.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", TOPICS)
def test_its_manifests_have_no_errors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = pages.page(name)
    page.lay_out(tmp_path)
    files = [file for file in page.files() if file.endswith(".yaml") and file != pages.WRONG]
    assert files
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["lint", *files, "--driver", "./driver.py"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", TOPICS)
def test_its_commands_print_what_it_tells(name: str, tmp_path: Path) -> None:
    page = pages.page(name)
    page.lay_out(tmp_path)
    commands = page.commands()
    assert commands
    for command in commands:
        assert not pages.prints(pages.run(command, tmp_path), command.output)
