"""Upgrades by the commands of the documentation: from an older chart, and from a release whose values are null.

The commands name release ``pizza`` in namespace ``pizza-system``. The nodes' image is never started here.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import DEPLOYED, NAMESPACE, RELEASE
from tests.charts.test_null_values import COLLECTIONS, merged, values
from tests.cluster.access import CHART
from tests.cluster.documented import commands, run_command
from tests.cluster.find import REPOSITORY
from tests.cluster.plane import Plane

OLD_CHART = REPOSITORY / "tests" / "data" / "charts" / "dra-driver-older.tar.xz"
"""The chart of commit 971f69d9. Only ``node.decommission`` has its present name, as helm rejects unknown values."""
PAGES = ("docs/how-to/real-cluster.md", "docs/how-to/remove-a-driver.md")
UPGRADES = [command for page in PAGES for command in commands(page, "helm upgrade")]
UNWATCHED: Mapping[str, Any] = {"controller": {"enabled": False}}
"""Without workloads that would wait for a node."""
NULLS = merged(
    *(values(path, None) for path in COLLECTIONS),
    *(
        values(path, None)
        for path in (("logging", "level"), ("node", "stateDir"), ("node", "cdiDir"), ("configPolicy",))
    ),
    {"monitoring": None, "networkPolicy": None},
)
"""All that a values file can set to null."""
pytestmark = pytest.mark.any_release  # helm decides how values are reused


@pytest.fixture(scope="module")
def in_namespace(helm_plane: Plane) -> Iterator[Plane]:
    """The plane with the namespace, one for all tests: it takes Kubernetes at least five seconds to delete one."""
    helm_plane.kubectl("create", "namespace", NAMESPACE)
    yield helm_plane
    helm_plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def folder(in_namespace: Plane, tmp_path: Path) -> Iterator[Path]:
    """Where a reader is: with a certificate, in a cluster with the namespace and without the release."""
    plane = in_namespace
    key = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=pizza-webhook -keyout tls.key -out tls.crt"
    assert run_command(plane, key, tmp_path).returncode == 0
    with tarfile.open(OLD_CHART) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    try:
        yield tmp_path
    finally:
        removal = f"helm uninstall {RELEASE} -n {NAMESPACE} --no-hooks --ignore-not-found --wait"
        removed = run_command(plane, removal, tmp_path)
    assert removed.returncode == 0, removed.stderr


def install(plane: Plane, folder: Path, chart: Path, given: Mapping[str, Any]) -> None:
    (folder / "values.yaml").write_text(json.dumps(merged(DEPLOYED, UNWATCHED, given)), encoding="utf-8")
    result = run_command(plane, f"helm install {RELEASE} {chart} -n {NAMESPACE} -f values.yaml", folder)
    assert result.returncode == 0, result.stderr


def daemon_set(plane: Plane) -> Any:
    return plane.get("daemonset", f"{RELEASE}-node", "--namespace", NAMESPACE)


def test_the_documentation_has_upgrades() -> None:
    assert len(UPGRADES) >= 3


@pytest.mark.parametrize("command", UPGRADES)
def test_a_release_of_an_older_chart_is_upgraded(command: str, plane: Plane, folder: Path) -> None:
    install(plane, folder, folder / "old" / "dra-driver", {"node": {"nodeSelector": {"oven": "hot"}}})
    result = run_command(plane, command, folder)
    assert result.returncode == 0, result.stderr
    assert daemon_set(plane)["spec"]["template"]["spec"]["nodeSelector"] == {"oven": "hot"}


@pytest.mark.parametrize("command", UPGRADES)
def test_a_release_whose_values_are_null_is_upgraded(command: str, plane: Plane, folder: Path) -> None:
    install(plane, folder, CHART, NULLS)
    result = run_command(plane, command, folder)
    assert result.returncode == 0, result.stderr
    assert "tolerations" not in daemon_set(plane)["spec"]["template"]["spec"], "null removes the default for good"


@pytest.mark.parametrize(("chart", "given"), [("old", {}), ("", NULLS)], ids=["older chart", "null"])
def test_a_release_is_upgraded_with_the_flag_of_other_helms(
    chart: str, given: Mapping[str, Any], plane: Plane, folder: Path
) -> None:
    """``--reuse-values``, which neither takes new defaults nor drops what is null; helm before 3.14 has no other."""
    install(plane, folder, folder / "old" / "dra-driver" if chart else CHART, given)
    result = run_command(plane, UPGRADES[-1].replace("--reset-then-reuse-values", "--reuse-values"), folder)
    assert result.returncode == 0, result.stderr
    (container,) = daemon_set(plane)["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "decommission"


def test_the_decommission_of_an_upgraded_release_begins_on_all_nodes_at_once(plane: Plane, folder: Path) -> None:
    install(plane, folder, folder / "old" / "dra-driver", {})
    assert run_command(plane, UPGRADES[-1], folder).returncode == 0
    assert daemon_set(plane)["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": "100%", "maxUnavailable": 0}
