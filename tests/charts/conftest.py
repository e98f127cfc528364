from __future__ import annotations

import os
import subprocess

import pytest

from tests.charts.rendering import Helm, find_helm
from tests.cluster.find import NotFound


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm; without it the chart cannot be tested."""
    base = tmp_path_factory.getbasetemp()
    # that of the workers lies in one of the whole run
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "rendered-charts"
    cache.mkdir(exist_ok=True)
    try:
        return find_helm(cache)
    except (NotFound, subprocess.SubprocessError) as error:
        pytest.skip(f"the chart is NOT tested, because helm is missing: {error}")
