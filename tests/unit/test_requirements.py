"""What images are built of: pinned with hashes, in the versions that the tests ran with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, str]:
    """The versions in a file of requirements, by project."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, flags=re.MULTILINE))


def dependencies(*path: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / Path(*path) / "pyproject.toml").read_text(encoding="utf-8"))
    return [Requirement(text) for text in project["project"]["dependencies"]]


@pytest.mark.parametrize("name", ["dev.txt", "docs.txt", "runtime.txt", "otel.txt", "build.txt"])
def test_every_pin_has_a_hash(name: str) -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements" / name).read_text(encoding="utf-8").strip())

    assert entries
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("name", ["runtime.txt", "otel.txt", "build.txt"])
def test_images_are_built_of_what_was_tested(name: str) -> None:
    tested = pins("dev.txt")

    assert {project: tested.get(project) for project in pins(name)} == pins(name)


@pytest.mark.parametrize("path", [(), ("examples", "pizza-driver")], ids=["dra-kit", "pizza-driver"])
def test_every_dependency_is_pinned_in_a_version_that_it_takes(path: tuple[str, ...]) -> None:
    pinned = pins("runtime.txt")

    for requirement in dependencies(*path):
        if requirement.name != "dra-kit":
            assert requirement.specifier.contains(pinned[requirement.name]), requirement
