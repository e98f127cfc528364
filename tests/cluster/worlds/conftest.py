"""A separate control plane: nodes of worlds have no kubelet, and a real one would change their objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_kit.kubernetes.release import Release
from tests.cluster.find import Found, NotFound, find, lacks_release
from tests.cluster.plane import Plane, start


def found_with_tool() -> tuple[Found, Path]:
    """Return the cluster without a node, and the tool that starts it; skip the test if there is none."""
    try:
        found = find()
    except NotFound as error:
        pytest.skip(str(error))
    if found.tool is None:
        pytest.skip(f"worlds need a scheduler and controllers; found {found.why}")
    return replace(found, node=False, running=None), found.tool


@pytest.fixture(scope="module")
def empty_plane() -> Iterator[Plane]:
    """API server, controllers and scheduler, without nodes."""
    found, _ = found_with_tool()
    with start(found) as up:
        yield up


@pytest.fixture
def plane_of_release(request: pytest.FixtureRequest) -> Iterator[tuple[Plane, Release]]:
    """A control plane of the release that a test names, with its default gates or with those of alpha features."""
    release: Release = request.param
    found, tool = found_with_tool()
    if reason := lacks_release(tool, str(release.version)):
        pytest.skip(f"Kubernetes {release.version} is NOT tested: {reason}")
    alpha = ["--alpha"] if release == Release.alpha(release.version) else []
    with start(found, ["--release", str(release.version), *alpha]) as up:
        yield up, release
