"""What `dra-kit new` makes is built, installed and used as its README says, without a change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.deployed import wait_until
from tests.cluster.find import find
from tests.cluster.image import CannotBuild
from tests.cluster.new_project import DRIVER, NewProject, new_project
from tests.cluster.plane import Plane


@pytest.fixture(scope="module")
def project(node_plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewProject]:
    """In the cluster, with its demo."""
    with new_project(node_plane, tmp_path_factory.mktemp("new")) as project:
        try:
            project.image(find())
        except CannotBuild as error:
            pytest.skip(str(error))
        project.make("kind-demo")
        yield project


def test_the_pod_of_the_demo_gets_a_device(project: NewProject) -> None:
    def output() -> str:
        return project.plane.kubectl("logs", "demo").stdout

    wait_until("what the container has", lambda: "DEVICE_0_MODE=fast" in output())


def test_its_device_class_belongs_to_the_release(project: NewProject) -> None:
    found = project.plane.get("deviceclass", DRIVER)
    assert found["metadata"]["annotations"]["meta.helm.sh/release-name"] == "led-driver"


def test_wrong_config_is_refused_when_it_is_applied(project: NewProject) -> None:
    wrong = (project.folder / "demo" / "pod.yaml").read_text().replace("mode: fast", "mode: faster")
    wrong = wrong.replace("name: demo", "name: wrong")
    result = project.plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=wrong, check=False)
    assert result.returncode != 0
    assert "mode" in result.stderr
    assert DRIVER in result.stderr
