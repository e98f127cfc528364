"""A separate control plane: nodes of worlds have no kubelet, and a real one would change their objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cluster.find import NotFound, find
from tests.cluster.plane import Plane, start


@pytest.fixture(scope="module")
def empty_plane() -> Iterator[Plane]:
    """API server, controllers and scheduler, without nodes."""
    try:
        found = find()
    except NotFound as error:
        pytest.skip(str(error))
    if found.tool is None:
        pytest.skip(f"worlds need a scheduler and controllers; found {found.why}")
    with start(replace(found, node=False, running=None)) as up:
        yield up
