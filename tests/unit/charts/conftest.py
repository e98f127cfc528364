from __future__ import annotations

import subprocess

import pytest

from tests.cluster.find import NotFound
from tests.unit.charts.rendering import Helm, find_helm


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Helm; without it the chart cannot be tested."""
    try:
        return find_helm()
    except (NotFound, subprocess.SubprocessError) as error:
        pytest.skip(f"the chart is NOT tested, for there is no helm: {error}")
