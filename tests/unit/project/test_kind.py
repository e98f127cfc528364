"""`make kind-up` and `kind-load`, by the real kind where it is installed; only Docker is a fake, and no node starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.project.projects import ANSWERS, PROJECTS

PAGE = PROJECTS.parents[2] / "docs" / "how-to" / "kind.md"
EXAMPLES = PROJECTS.parents[2] / "examples"
FOLDERS = [*(PROJECTS / answers.project for answers in ANSWERS), *sorted(EXAMPLES.glob("*/kind/cluster.yaml"))]

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="recipes of make are NOT checked: install make")

_DOCKER = """#!/bin/sh
echo "$@" >> {log}
case "$1 $2" in
  "info "*) echo '{{"CgroupVersion": "2", "MemoryLimit": true, "PidsLimit": true, "CPUShares": true}}' ;;
  "ps "* | "inspect "* | "network "*) ;;
  "image inspect") echo sha256:1 ;;
  "save --output") : > "$3" ;;
  "run "*)
    # nodes start at once, and kind waits for none after the first that does not
    until [ "$(grep -c ^run {log})" = 2 ]; do sleep 0.05; done
    echo "no node is started here" >&2; exit 1 ;;
  *) exit 1 ;;
esac
"""


class Docker:
    """A docker that has every image and starts no container.

    Args:
        folder: for the program, and for what it was asked for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "log"
        program = folder / "docker"
        program.write_text(_DOCKER.format(log=self._log))
        program.chmod(0o755)

    def make(self, project: Path, *arguments: str) -> str:
        """What ``make`` says in a project, for which this is Docker."""
        path = f"{self._folder}:{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "KIND_EXPERIMENTAL_PROVIDER": "docker"}
        command = ["make", "--directory", str(project), *arguments]
        result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=240)
        assert result.returncode != 0
        return result.stderr

    def started(self) -> list[str]:
        """Names of the nodes that it was to start."""
        commands = [line.split() for line in self._log.read_text().splitlines()]
        return sorted(words[words.index("--name") + 1] for words in commands if words[0] == "run")


@pytest.fixture
def docker(tmp_path: Path) -> Docker:
    if not shutil.which("kind"):
        pytest.skip("configs of kind are NOT checked by kind itself: install it (kind.sigs.k8s.io)")
    return Docker(tmp_path)


@pytest.fixture(params=FOLDERS, ids=lambda path: path.relative_to(EXAMPLES.parent).as_posix())
def project(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found if found.is_dir() else found.parents[1]


def test_kind_takes_the_config_and_starts_its_nodes(project: Path, docker: Docker) -> None:
    told = docker.make(project, "kind-up", "CLUSTER=here")
    assert "no node is started here" in told
    assert docker.started() == ["here-control-plane", "here-worker"]


def planned(project: Path, *arguments: str) -> str:
    """Return the commands that ``make`` would run in a project."""
    command = ["make", "--dry-run", "--directory", str(project), *arguments]
    variables = {name: value for name, value in os.environ.items() if name not in {"DOCKER", "IMAGE", "KUBE_CONTEXT"}}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=240).stdout


def test_the_demo_goes_to_the_cluster_of_kind_whatever_context_is_current(project: Path) -> None:
    lines = planned(project, "kind-demo", "CLUSTER=here").splitlines()
    talking = [line for line in lines if line.lstrip().startswith(("helm ", "kubectl ", "--values", "--kube-context"))]
    assert [line for line in talking if "kubectl" in line and "--context kind-here" not in line] == []
    assert any("--kube-context kind-here" in line for line in talking)


def test_podman_loads_the_image_under_the_name_that_it_gives_it(project: Path) -> None:
    text = planned(project, "kind-load", "kind-demo", "DOCKER=podman", "IMAGE=a:1")
    assert "KIND_EXPERIMENTAL_PROVIDER=podman kind load image-archive" in text
    assert "--set image.repository=localhost/a " in text


@pytest.mark.parametrize("image", ["ghcr.io/pizza/a:1", "localhost:5000/a:1", "localhost/a:1"])
def test_podman_keeps_the_name_of_an_image_with_a_registry(project: Path, image: str) -> None:
    text = planned(project, "kind-demo", "DOCKER=podman", f"IMAGE={image}")
    assert "helm upgrade" in text
    assert "image.repository" not in text


def test_path_of_podman_selects_the_provider_of_kind(project: Path) -> None:
    text = planned(project, "kind-up", "DOCKER=/usr/bin/podman")
    assert "KIND_EXPERIMENTAL_PROVIDER=podman kind create cluster " in text


def test_a_mistake_in_the_config_would_be_seen(tmp_path: Path, docker: Docker) -> None:
    project = Path(shutil.copytree(PROJECTS / ANSWERS[0].project, tmp_path / "project"))
    config = project / "kind" / "cluster.yaml"
    config.write_text(config.read_text().replace("featureGates", "featureGate"))
    assert "field featureGate not found" in docker.make(project, "kind-up")


def test_kind_takes_the_device_of_the_host_that_the_page_adds(tmp_path: Path, docker: Docker) -> None:
    (nodes,) = re.findall(r"```yaml\n(nodes:.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    project = Path(shutil.copytree(PROJECTS / ANSWERS[0].project, tmp_path / "project"))
    config = project / "kind" / "cluster.yaml"
    config.write_text(config.read_text().partition("nodes:")[0] + nodes)
    docker.make(project, "kind-up", "CLUSTER=here")
    assert docker.started() == ["here-control-plane", "here-worker"]


def test_kind_is_asked_to_load_the_image_that_was_built(project: Path, docker: Docker) -> None:
    told = docker.make(project, "kind-load", "CLUSTER=here", "IMAGE=driver:0.1.0")
    assert 'no nodes found for cluster "here"' in told
