"""Fixtures of the cluster tests: one Kubernetes for the whole run, and a kitchen for each module that needs one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import find
from tests.cluster.image import CannotBuild, load_image
from tests.cluster.node_driver import NodeDriver, RealCluster
from tests.cluster.pizza import pizza_driver
from tests.cluster.plane import Plane, start
from tests.cluster.processes import ip

# a story has several waits of up to three minutes; the first test also waits for the cluster to come up
TIMEOUT_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/cluster/" in item.path.as_posix():
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def pytest_report_header() -> str:
    try:
        return f"kubernetes: {find.find().why}"
    except find.NotFound as error:
        return f"kubernetes: NONE, every test will be skipped: {error}"


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[Plane]:
    """A Kubernetes, at least its control plane; with flags of the cluster tool where a test gives them as parameter."""
    try:
        found = find.find()
    except find.NotFound as error:
        pytest.skip(str(error))
    flags: tuple[str, ...] = getattr(request, "param", ())
    if flags and (found.tool is None or found.running is not None):
        pytest.skip(f"this test needs a cluster started with {' '.join(flags)}; found {found.why}")
    with start(found, flags) as up:
        yield up


@pytest.fixture(scope="session")
def helm_plane(plane: Plane) -> Plane:
    """A Kubernetes with helm."""
    if not (plane.binaries / "helm").exists():
        pytest.skip(f"this test needs helm, which is missing in {plane.binaries}")
    return plane


@pytest.fixture(scope="session")
def node_plane(plane: Plane) -> Plane:
    """A Kubernetes with a node."""
    if plane.node is None:
        pytest.skip(f"this test needs a node; found {plane.why}")
    return plane


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For files that all processes of a run share."""
    return Path(os.environ.get("DRA_KIT_CLUSTER_RUN") or tmp_path_factory.mktemp("run"))


@contextmanager
def one_at_a_time(file: Path) -> Iterator[None]:
    """Wait until no other process of the run is in such a context of the file."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def pizza_image(node_plane: Plane, run_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of examples/pizza-driver, on the node; one of the processes of a run builds it for all of them."""
    loaded = run_directory / "pizza-image"
    with one_at_a_time(run_directory / "pizza-image.lock"):
        if not loaded.exists():
            try:
                image = load_image(find.find(), node_plane.kubeconfig.parent, tmp_path_factory.mktemp("image"))
            except CannotBuild as error:
                pytest.skip(str(error))
            loaded.write_text(image, encoding="utf-8")
        return loaded.read_text(encoding="utf-8")


@pytest.fixture
def judging(run_directory: Path) -> Iterator[None]:
    """One ``dra-kit conformance`` at a time, since tests look for what any run has left."""
    with one_at_a_time(run_directory / "conformance.lock"):
        yield


@pytest.fixture(scope="module")
def pizza(node_plane: Plane) -> Iterator[NodeDriver]:
    """The kitchen on the node."""
    with pizza_driver(node_plane) as driver:
        yield driver


@pytest.fixture
async def cluster(pizza: NodeDriver) -> AsyncIterator[RealCluster]:
    """The cluster with the kitchen, as stories see it."""
    async with pizza.cluster() as real:
        yield real


@pytest.fixture
def interface() -> Iterator[str]:
    """One end of a veth pair, which a driver of network interfaces offers."""
    name = "dkit-nic0"
    ip("link", "add", name, "type", "veth", "peer", "dkit-nic1")
    assert "mtu 1500" in ip("link", "show", "dev", name)
    try:
        yield name
    finally:
        ip("link", "delete", "dkit-nic1")
