from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.client.api import discover_release, require_v1, server_version
from dra_kit.errors import ConfigurationError, KubeError, Unavailable
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.slices.planning import selects_pools, separates_counters
from tests.unit.client.wire import answer, served, status


def group(*versions: str) -> dict[str, object]:
    return {"kind": "APIGroup", "versions": [{"version": version} for version in versions]}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ({"major": "1", "minor": "34"}, (1, 34)),
        ({"major": "1", "minor": "36+"}, (1, 36)),
        ({"major": "1", "minor": "37", "emulationMajor": "1", "emulationMinor": "36"}, (1, 36)),
    ],
)
def test_a_version_is_read(version: dict[str, str], expected: tuple[int, int]) -> None:
    assert server_version(version) == expected


@pytest.mark.parametrize("version", [{}, {"major": "1", "minor": ""}, {"major": None, "minor": "x"}])
def test_response_without_a_version_raises_kube_error(version: dict[str, str]) -> None:
    with pytest.raises(KubeError, match="contains no version"):
        server_version(version)


@pytest.mark.parametrize(
    ("minor", "separate_counter_slices", "pool_name_selector"),
    [(34, False, False), (35, True, False), (36, True, False), (37, True, True), (38, True, True)],
)
def test_features_of_releases(minor: int, separate_counter_slices: bool, pool_name_selector: bool) -> None:
    version = KubernetesVersion(1, minor)
    assert separates_counters(version) is separate_counter_slices
    assert selects_pools(version) is pool_name_selector


@given(st.sets(st.sampled_from(["v1", "v1beta2", "v1beta1", "v1alpha3", "v2"])), st.integers(30, 40))
def test_v1_is_required(served_versions: set[str], minor: int) -> None:
    if "v1" in served_versions:
        require_v1(served_versions, KubernetesVersion(1, minor))
    else:
        with pytest.raises(ConfigurationError) as caught:
            require_v1(served_versions, KubernetesVersion(1, minor))
        assert all(version in str(caught.value) for version in served_versions)


async def test_a_server_is_discovered_in_two_requests() -> None:
    answers = answer({"major": "1", "minor": "35"}), answer(group("v1", "v1beta2"))
    async with served(*answers) as wire, wire.client() as client:
        assert await discover_release(client) == KubernetesVersion(1, 35)
    assert wire.paths == ["/version", "/apis/resource.k8s.io"]


async def test_an_old_server_must_be_upgraded() -> None:
    answers = answer({"major": "1", "minor": "33"}), answer(group("v1beta1", "v1beta2"))
    async with served(*answers) as wire, wire.client() as client:
        with pytest.raises(ConfigurationError, match=r"1\.33\) serves .* as v1beta1, v1beta2, .* upgrade the cluster"):
            await discover_release(client)


async def test_a_server_without_the_group_must_be_reconfigured() -> None:
    answers = answer({"major": "1", "minor": "34"}), status(404, "NotFound", "the server could not find it")
    async with served(*answers) as wire, wire.client() as client:
        with pytest.raises(ConfigurationError, match=r"does not serve resource\.k8s\.io, .* --runtime-config"):
            await discover_release(client)


async def test_unavailable_server_is_not_reported_as_lacking_dra() -> None:
    answers = answer({"major": "1", "minor": "34"}), status(503, "ServiceUnavailable", "starting")
    async with served(*answers) as wire, wire.client() as client:
        with pytest.raises(Unavailable):
            await discover_release(client)
