from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[tuple[Api, Path]]:
    """A fake API server and its kubeconfig."""
    with Api() as api:
        yield api, api.kubeconfig(tmp_path / "kubeconfig")
