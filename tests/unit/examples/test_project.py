"""Each example is a project of `dra-kit new` with an author's files, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from dra_kit.project.rendering import BASE, FILE, installed_version, project_template, read_answers, read_base, render
from tests.unit.examples.kitchen import PROJECT


@dataclass(frozen=True)
class Example:
    """What became of a project.

    Attributes:
        edited: files of the template that the author has changed.
        replaced: those that are gone, by stories and tests with other names.
        of_the_author: where files are that the template knows nothing of.
    """

    folder: Path
    edited: frozenset[str]
    replaced: frozenset[str]
    of_the_author: frozenset[str]


FIRST_STORY = {"stories/first-device/expect.yaml", "stories/first-device/pod.yaml", "tests/test_driver.py"}
PIZZA = Example(
    PROJECT,
    frozenset(
        {
            "Dockerfile",  # the menu
            "Makefile",  # its own story; lint finds problems in stories of failure; this checkout
            "README.md",
            "demo/pod.yaml",
            "deploy/values.yaml",
            "deviceclasses.yaml",
            "pyproject.toml",
            "src/pizza_driver/config.py",
            "src/pizza_driver/driver.py",
        }
    ),
    frozenset(FIRST_STORY),
    frozenset({"conformance.yaml", "menu.yaml", "src", "stories", "tests", "values.yaml"}),
)
GPU = Example(
    PROJECT.parent / "gpu-driver",
    frozenset(
        {
            "AGENTS.md",
            "Makefile",  # fake GPUs in Docker
            "README.md",
            "demo/pod.yaml",
            "deploy/values.yaml",
            "deviceclasses.yaml",
            "kind/cluster.yaml",  # one gate more
            "kind/values.yaml",  # fake GPUs
            "pyproject.toml",
            "src/gpu_driver/driver.py",
        }
    ),
    frozenset({*FIRST_STORY, "src/gpu_driver/config.py"}),
    frozenset({"conformance.yaml", "docs", "src", "stories", "tests", "values.yaml"}),
)
NIC = Example(
    PROJECT.parent / "nic-driver",
    frozenset(
        {
            "AGENTS.md",
            "Makefile",  # its own story; this checkout
            "README.md",
            "demo/pod.yaml",
            "deploy/values.yaml",
            "deviceclasses.yaml",
            "pyproject.toml",
            "src/nic_driver/config.py",
            "src/nic_driver/driver.py",
            "tests/test_driver.py",
        }
    ),
    frozenset(FIRST_STORY - {"tests/test_driver.py"}),
    frozenset({"conformance.yaml", "src", "stories", "tests", "values.yaml"}),
)
CPU = Example(
    PROJECT.parent / "cpu-driver",
    frozenset(
        {
            "AGENTS.md",
            "Makefile",  # its own story; lint of single CPUs; this checkout
            "README.md",
            "demo/pod.yaml",
            "deploy/values.yaml",
            "deviceclasses.yaml",
            "pyproject.toml",
            "src/cpu_driver/driver.py",
        }
    ),
    frozenset({*FIRST_STORY, "src/cpu_driver/config.py"}),
    # demo/memory.yaml, and the folder of the second driver
    frozenset({"conformance.yaml", "demo", "memory", "src", "stories", "tests", "topologies", "values.yaml"}),
)
EXAMPLES = pytest.mark.parametrize("example", [PIZZA, GPU, NIC, CPU], ids=lambda example: example.folder.name)


@EXAMPLES
def test_the_template_makes_the_rest_of_it(example: Example) -> None:
    answers, version = read_answers(example.folder)
    made = render(project_template(), answers, installed_version())
    assert version == installed_version()
    assert read_base(example.folder) == made, "`make golden-projects`, and look at `git diff`"

    files = {path: example.folder / path for path in made}
    there = {path: file.read_text() if file.is_file() else None for path, file in files.items()}
    assert {str(path) for path, text in there.items() if text is None} == example.replaced
    assert {str(path) for path, text in there.items() if text not in {None, made[path]}} == example.edited


@EXAMPLES
def test_what_the_template_does_not_make_is_where_an_author_puts_it(example: Example) -> None:
    answers, _ = read_answers(example.folder)
    made = {str(path) for path in render(project_template(), answers, installed_version())}
    found = {PurePosixPath(path.relative_to(example.folder)) for path in example.folder.rglob("*") if path.is_file()}
    # caches, and what property tests remember
    others = {path for path in found if str(path) not in made and not {"cache", "hypothesis"} & _words(path)}
    assert {path.parts[0] for path in others} - {BASE} == example.of_the_author
    assert FILE in {str(path) for path in found}


def _words(path: PurePosixPath) -> set[str]:
    return {word for part in path.parts for word in part.replace("_", ".").strip(".").split(".")}


@EXAMPLES
def test_an_image_is_built_without_an_active_environment(example: Example, tmp_path: Path) -> None:
    """dra-kit of this checkout is on no index: what needs it from there fails before the image is begun."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(example.folder / name, tmp_path)
    environment = {name: text for name, text in os.environ.items() if name != "VIRTUAL_ENV"}
    planned = subprocess.run(
        ["make", "--dry-run", "image", "DOCKER=buildah"],  # noqa: S607 - the one of the PATH
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=240,
    ).stdout.splitlines()  # fmt: skip

    assert [line.split("#")[0].strip() for line in planned] == [
        "python3 -m venv .venv",
        ".venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir wheelhouse ../..",
        f"buildah build --tag {example.folder.name}:0.1.0 .",
    ]
