"""What `dra-kit new` makes is built, installed and used as its README says, without a change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.deployed import wait_until
from tests.cluster.find import find
from tests.cluster.image import CannotBuild
from tests.cluster.new_project import NewProject, new_project
from tests.cluster.plane import Plane
from tests.unit.scaffold.projects import ANSWERS

MADE = {answers.project: answers for answers in ANSWERS}
GIVEN = {"simple-driver": "DEVICE_0_MODE=fast", "network-driver": "VF_0_MTU=9000"}
"""What the container of the demo has: of a plain pod, and of one whose driver is in the network of the host."""


@pytest.fixture(scope="module", params=GIVEN)
def project(
    request: pytest.FixtureRequest, node_plane: Plane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewProject]:
    """In the cluster, with its demo."""
    with new_project(node_plane, MADE[request.param], tmp_path_factory.mktemp("new")) as project:
        try:
            project.image(find())
        except CannotBuild as error:
            pytest.skip(str(error))
        project.make("kind-demo")
        yield project


def test_the_pod_of_the_demo_gets_a_device(project: NewProject) -> None:
    def output() -> str:
        return project.plane.kubectl("logs", "demo").stdout

    wait_until("what the container has", lambda: GIVEN[project.answers.project] in output())


def test_its_device_class_belongs_to_the_release(project: NewProject) -> None:
    found = project.plane.get("deviceclass", project.answers.driver)
    assert found["metadata"]["annotations"]["meta.helm.sh/release-name"] == project.answers.project


def test_wrong_config_is_refused_when_it_is_applied(project: NewProject) -> None:
    wrong = (project.folder / "demo" / "pod.yaml").read_text().replace("name: demo", "name: wrong")
    wrong = wrong.replace("mode: fast", "mode: faster").replace("mtu: 9000", "mtu: 90000")
    result = project.plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=wrong, check=False)
    assert result.returncode != 0
    assert "opaque.parameters.m" in result.stderr
    assert project.answers.driver in result.stderr
