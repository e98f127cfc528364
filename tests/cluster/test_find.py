"""Where the cluster tests look for a Kubernetes, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.find import CONTROL_PLANE, NotFound, find
from tests.cluster.plane import remove_leftovers

pytestmark = pytest.mark.any_release  # nothing is started


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return _executable(tmp_path / "cluster")


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    folder = tmp_path / "assets"
    folder.mkdir()
    for name in CONTROL_PLANE:
        _executable(folder / name)
    return folder


def _executable(path: Path) -> Path:
    path.touch(mode=0o755)
    return path


def test_the_named_tool_comes_first(tool: Path, assets: Path, tmp_path: Path) -> None:
    other = _executable(tmp_path / "other")

    found = find({"DRA_KIT_CLUSTER": str(tool), "KUBEBUILDER_ASSETS": str(assets)}, other)

    assert (found.tool, found.assets) == (tool, None)


def test_the_last_place_comes_before_bare_binaries(tool: Path, assets: Path) -> None:
    found = find({"KUBEBUILDER_ASSETS": str(assets)}, tool)

    assert (found.tool, found.assets) == (tool, None)


def test_bare_binaries_have_no_node(assets: Path, tmp_path: Path) -> None:
    found = find({"KUBEBUILDER_ASSETS": str(assets)}, tmp_path / "nothing")

    assert (found.tool, found.assets, found.node) == (None, assets, False)


def test_a_running_cluster_is_used_only_when_it_is_named(tool: Path, tmp_path: Path) -> None:
    environment = {"DRA_KIT_CLUSTER": str(tool)}

    assert find(environment).running is None
    assert find({**environment, "DRA_KIT_CLUSTER_DIR": str(tmp_path)}).running == tmp_path


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({}, "no Kubernetes to test with: DRA_KIT_CLUSTER"),
        ({"DRA_KIT_CLUSTER": "/nowhere/cluster"}, "/nowhere/cluster, which is not an executable file"),
        ({"KUBEBUILDER_ASSETS": "/nowhere"}, "etcd, kube-apiserver, kubectl is not in it"),
    ],
)
def test_missing_parts_are_reported(environment: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        find(environment, tmp_path / "nothing")

    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "removed"),
    [(["plugins"], True), (["plugins", "plugins_registry"], True), (["plugins", "pods"], False), ([], False)],
)
def test_only_what_a_driver_left_in_the_kubelets_directory_is_removed(
    entries: list[str], removed: bool, tmp_path: Path
) -> None:
    for name in entries:
        (tmp_path / "kubelet" / name / "dra.pizza").mkdir(parents=True)

    assert remove_leftovers(tmp_path / "kubelet") is removed
    assert (tmp_path / "kubelet").exists() is (not removed and bool(entries))
