"""Documentation and code support the same releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.client.api import require_v1
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import DEFAULT, NEWEST, OLDEST, Release
from dra_kit.sandbox.cluster import SandboxSettings

ROOT = Path(__file__).parents[4]


def test_allocator_supports_all_releases() -> None:
    for minor in range(OLDEST.minor, NEWEST.minor + 1):
        AllocatorRules.of(Release.parse(f"1.{minor}"))
    with pytest.raises(ValueError, match="has no resource"):
        Release.parse(f"1.{OLDEST.minor - 1}")


def test_older_release_error_names_required_release() -> None:
    with pytest.raises(ConfigurationError, match=f"upgrade the cluster to Kubernetes {OLDEST} or newer"):
        require_v1(["v1beta1"], OLDEST.before)


def test_sandbox_uses_newest_release() -> None:
    assert SandboxSettings().release == Release.of(DEFAULT)
    assert NEWEST.published.startswith(f"v{NEWEST}.")


def test_models_support_all_releases() -> None:
    told = f"Kubernetes {OLDEST} to {NEWEST}"
    assert told in (ROOT / "dra_kit" / "kubernetes" / "resource" / "v1.py").read_text()
    assert f"Supported: {told} (" in (ROOT / "README.md").read_text()


def test_chart_requires_oldest_release() -> None:
    assert f'kubeVersion: ">={OLDEST}.0-0"' in (ROOT / "charts" / "dra-driver" / "Chart.yaml").read_text()
