"""The releases that are named as supported are those that the code knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.apiserver import discovery
from dra_kit.client.server_version import ServerFeatures, choose_version
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import NEWEST, OLDEST
from dra_kit.sandbox.control_plane import VERSION
from dra_kit.sandbox.kubelet.node import KUBELET_VERSION

ROOT = Path(__file__).parents[4]


def test_the_allocator_knows_all_of_them_and_none_before() -> None:
    for minor in range(OLDEST.minor, NEWEST.minor + 1):
        AllocatorRules.of(f"1.{minor}")
    with pytest.raises(ValueError, match="no Kubernetes release"):
        AllocatorRules.of(f"1.{OLDEST.minor - 1}")


def test_who_runs_an_older_one_is_told_which_is_needed() -> None:
    with pytest.raises(ConfigurationError, match=f"upgrade the cluster to Kubernetes {OLDEST} or newer"):
        choose_version(["v1beta1"], ServerFeatures(1, OLDEST.minor - 1))


def test_the_sandbox_is_the_newest() -> None:
    assert str(NEWEST) == VERSION
    assert discovery.VERSION.startswith(f"v{NEWEST}.")
    assert KUBELET_VERSION == discovery.VERSION


def test_the_models_are_those_of_all_of_them() -> None:
    told = f"Kubernetes {OLDEST} to {NEWEST}"
    assert told in (ROOT / "dra_kit" / "kubernetes" / "resource" / "v1.py").read_text()
    assert f"Supported: {told}," in (ROOT / "README.md").read_text()


def test_the_chart_is_installed_in_none_before() -> None:
    assert f'kubeVersion: ">={OLDEST}.0-0"' in (ROOT / "charts" / "dra-driver" / "Chart.yaml").read_text()
