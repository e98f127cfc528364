"""The README says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(*command: str, cwd: Path) -> str:
    program = str(Path(sys.executable).with_name(command[0]))
    done = subprocess.run([program, *command[1:]], cwd=cwd, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder of a user who follows it."""
    (tmp_path / "driver.py").write_text(blocks("python")[0])
    (tmp_path / "order.yaml").write_text(blocks("yaml")[0])
    return tmp_path


def test_its_order_is_served_in_the_sandbox(own: Path) -> None:
    output = run("dra-kit", "sandbox", "./driver.py", "-f", "order.yaml", cwd=own)
    (told,) = [block for block in blocks("console") if block.startswith("$ dra-kit sandbox ./driver.py")]
    for line in told.splitlines()[2:]:
        assert re.sub(r"^ *[0-9.]+ s", "", line).strip() in output


def test_its_first_test_passes(own: Path) -> None:
    (own / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "driver:driver"\n')
    (own / "test_driver.py").write_text(blocks("python")[1])
    assert "1 passed" in run("pytest", "-q", "-p", "no:asyncio", cwd=own)


def test_its_driver_is_the_one_that_the_type_checkers_check() -> None:
    assert blocks("python")[0] == (ROOT / "tests" / "typing" / "cases" / "design.py").read_text()


def figures(text: str) -> dict[str, str]:
    """What was measured, by what it is; tables have it in their second column."""
    return dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE))


def test_its_figures_are_those_of_the_page_that_has_them_all() -> None:
    every = figures((ROOT / "docs" / "reference" / "measured.md").read_text())
    ours = figures(README.split("\n## Measured\n")[1].split("\n## ")[0])
    assert len(ours) > 4
    assert {what: every.get(what) for what in ours if not set(what) <= {"-"}} == {
        what: figure for what, figure in ours.items() if not set(what) <= {"-"}
    }


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_its_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_it_names_exists() -> None:
    ours, new = ROOT / "Makefile", ROOT / "tests" / "data" / "projects" / "simple-driver" / "Makefile"
    targets = {name for file in (ours, new) for name in re.findall(r"^([a-z-]+):", file.read_text(), re.MULTILINE)}
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", README))
    assert named <= targets


def test_every_command_it_names_exists() -> None:
    help_text = subprocess.run(
        [str(Path(sys.executable).with_name("dra-kit")), "--help"], capture_output=True, text=True, check=True
    ).stdout
    named = re.findall(r"`dra-kit ([a-z]+) TARGET`", README)
    assert named
    assert [name for name in named if f"\n  {name} " not in help_text] == []
