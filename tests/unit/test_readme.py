"""The README says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_its_driver_is_the_one_that_the_type_checkers_check() -> None:
    [source] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert source == (ROOT / "tests" / "typing" / "cases" / "design.py").read_text()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_its_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_it_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", README))
    assert named <= targets


def test_every_command_it_names_exists() -> None:
    help_text = subprocess.run(
        [str(Path(sys.executable).with_name("dra-kit")), "--help"], capture_output=True, text=True, check=True
    ).stdout
    named = re.findall(r"`dra-kit ([a-z]+) TARGET`", README)
    assert named
    assert [name for name in named if f"\n  {name} " not in help_text] == []
