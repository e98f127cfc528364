"""What `dra-kit new` makes is built, installed and used as its README says, without a change."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.cluster.deployed import wait_until
from tests.cluster.find import find
from tests.cluster.image import CannotBuild, fill_wheelhouse, make_base_image
from tests.cluster.new_project import NewProject, demonstrated, new_project
from tests.cluster.plane import Plane
from tests.unit.project.projects import ANSWERS

MADE = {answers.project: answers for answers in ANSWERS}
GIVEN = {
    "simple-driver": "DEVICE_0_MODE=fast",
    "partitionable-driver": "CARD_0_QUARTER_0_MODE=fast",
    "modes-driver": "CARD_0_HD_0_MODE=fast",
    "shared-driver": "DEVICE_0_MEMORY=2Gi",
    "unguarded-driver": "DEVICE_0_MODE=fast",
}
"""What the container of the demo has: of each kind without a reference driver, and without a webhook."""
ALWAYS = {"simple-driver"}
KINDS = [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.long) for name in GIVEN]


@pytest.fixture(scope="module")
def built(
    node_plane: Plane, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[NewProject]]]:
    """Their images, of the same wheels: built one after the other while the tests wait for the cluster."""
    here = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    wanted = {item.callspec.params["project"] for item in here}
    found = find()
    try:
        make_base_image(found)
    except CannotBuild as error:
        pytest.skip(str(error))
    wheels = tmp_path_factory.mktemp("wheels")
    fill_wheelhouse(wheels)

    def build(name: str) -> NewProject:
        project = new_project(node_plane, MADE[name], tmp_path_factory.mktemp("new"))
        project.image(found, wheels)
        return project

    builder = ThreadPoolExecutor(max_workers=1)
    try:
        yield {name: builder.submit(build, name) for name in GIVEN if name in wanted}
    finally:
        builder.shutdown(cancel_futures=True)


@pytest.fixture(scope="module", params=KINDS)
def project(request: pytest.FixtureRequest, built: dict[str, Future[NewProject]]) -> Iterator[NewProject]:
    """In the cluster, with its demo."""
    made = built[request.param].result()
    with demonstrated(made):
        yield made


def test_the_pod_of_the_demo_gets_a_device(project: NewProject) -> None:
    def output() -> str:
        return project.kubectl("logs", "demo").stdout

    wait_until("what the container has", lambda: GIVEN[project.answers.project] in output())


def test_its_device_class_belongs_to_the_release(project: NewProject) -> None:
    found = project.plane.get("deviceclass", project.answers.driver)
    assert found["metadata"]["annotations"]["meta.helm.sh/release-name"] == project.answers.project


def test_invalid_config_is_reported_by_the_webhook_or_an_event(
    project: NewProject,
) -> None:
    wrong = (project.folder / "demo" / "pod.yaml").read_text().replace("demo", "wrong")
    wrong = wrong.replace("mode: fast", "mode: faster")
    if project.answers.webhook:
        result = project.kubectl("apply", "--dry-run=server", "-f", "-", stdin=wrong, check=False)
        assert result.returncode != 0
        assert "opaque.parameters.m" in result.stderr
        assert project.answers.driver in result.stderr
        return
    project.kubectl("apply", "-f", "-", stdin=wrong)
    try:
        wait_until(
            "the problem in an Event",
            lambda: 'mode: "faster" is not supported' in project.kubectl("events").stdout,
        )
    finally:
        project.kubectl("delete", "-f", "-", stdin=wrong)
