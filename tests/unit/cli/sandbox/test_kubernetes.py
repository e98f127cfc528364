"""The release of Kubernetes that a user names with ``--kubernetes``, a story, or a saved cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_kit.apiserver.api import RuntimeConfig
from dra_kit.cli.app import cli
from dra_kit.cli.options import InvalidRelease, Releases
from dra_kit.cli.sandbox import sandbox_settings
from dra_kit.cli.sandbox_drivers import release_of_stories
from dra_kit.client.resources import DEVICE_TAINT_RULES, NODES, RESOURCE_CLAIMS
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import DEFAULT, NEWEST, OLDEST, SUPPORTED, KubernetesVersion, Release
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.cluster_copy import ClusterCopy
from dra_kit.sandbox.run.session import with_copy
from tests.support import saved_cluster as saved
from tests.unit.cli.kitchen import Kitchen, pod
from tests.unit.cli.sandbox.test_node_options import story

OLD = KubernetesVersion(1, 35)
OPTIONS = {
    "nodes": 1, "alpha": False, "feature_gates": "", "runtime_config": "", "time_scale": 1.0, "kubeconfig": None,
    "webhook": True, "network_namespaces": False, "capacity": (), "labels": (), "containers": "process",
    "node_namespaces": None, "node_files": (),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1.33", "Kubernetes 1.33 has no resource.k8s.io/v1; use 1.34 to "),
        ("1.99", "Kubernetes 1.99 is newer than what dra-kit knows; use 1.34 to "),
        ("foo", "'foo' is not a Kubernetes release; use 1.34 to "),
        ("1.35x", "'1.35x' is not a Kubernetes release; use 1.34 to "),
        ("", "'' is not a Kubernetes release; use 1.34 to "),
    ],
)
@pytest.mark.parametrize("command", ["sandbox", "lint", "explain", "dev"])
def test_a_release_that_is_not_supported_is_one_line(command: str, text: str, problem: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path)] if command == "lint" else []
    result = CliRunner().invoke(cli, [command, *arguments, "--kubernetes", text])

    assert result.exit_code == 2
    assert result.output.startswith(f"Error: --kubernetes: {problem}")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("text", ["1.35", "v1.35", "1.35.4", "v1.35.2-gke.1000+build"])
def test_a_release_is_named_as_clusters_name_it(text: str) -> None:
    assert Releases().convert(text, None, None) == (OLD,)


def test_a_range_has_all_releases_from_the_first_to_the_last() -> None:
    assert Releases(several=True).convert(f"{OLDEST}..{NEWEST}", None, None) == SUPPORTED
    with pytest.raises(InvalidRelease, match=r"1\.36\.\.1\.35 ends before it begins; use 1\.35\.\.1\.36"):
        Releases(several=True).convert("1.36..1.35", None, None)
    with pytest.raises(InvalidRelease, match=r"'1\.35\.\.1\.36' is not a Kubernetes release"):
        Releases().convert("1.35..1.36", None, None)


def test_gates_are_switched_on_top_of_the_release() -> None:
    gate = "DRAConsumableCapacity"

    settings = sandbox_settings({**OPTIONS, "kubernetes": OLD})
    switched = sandbox_settings({**OPTIONS, "kubernetes": OLD, "feature_gates": f"{gate}=true"})

    assert settings.release == Release.of(OLD)
    assert switched.release == Release.of(OLD).also(gate)
    assert sandbox_settings({**OPTIONS, "kubernetes": None}).release == Release.of(DEFAULT)
    with pytest.raises(ConfigurationError, match=r"not a feature gate of Kubernetes 1\.35: it came with 1\.37"):
        sandbox_settings({**OPTIONS, "kubernetes": OLD, "feature_gates": "DRADerivedAttributes=true"})


def test_a_story_names_the_release_that_it_needs(tmp_path: Path) -> None:
    any_release = story(tmp_path / "any")
    needs = story(tmp_path / "old", kubernetes="1.35")
    other = story(tmp_path / "other", kubernetes="1.36")

    assert release_of_stories(None, [any_release]) is None
    assert release_of_stories(None, [any_release, needs]) == OLD
    assert release_of_stories(OLD, [needs]) == OLD
    with pytest.raises(ConfigurationError, match=r"story other needs Kubernetes 1\.36, but story old needs 1\.35; run"):
        release_of_stories(None, [needs, other])
    with pytest.raises(
        ConfigurationError, match=r"story old needs Kubernetes 1\.35, but --kubernetes names 1\.37; run"
    ):
        release_of_stories(KubernetesVersion(1, 37), [needs])
    with pytest.raises(ConfigurationError, match=r"expect\.yaml: kubernetes: Kubernetes 1\.99 is newer"):
        story(tmp_path / "wrong", kubernetes="1.99")


@pytest.mark.parametrize(("number", "written"), [(1.35, ': "1.35"'), (1.4, ', like "1.36"'), (2, ', like "1.36"')])
def test_a_release_of_a_story_that_is_a_number_is_to_be_quoted(tmp_path: Path, number: float, written: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        story(tmp_path / "story", kubernetes=number)

    assert str(caught.value).endswith(f"expect.yaml: kubernetes: write it in quotes{written}")


def test_a_story_that_needs_another_release_than_the_saved_cluster_is_refused(tmp_path: Path) -> None:
    (folder := tmp_path / "saved").mkdir()
    saved.write(folder / "objects.json", saved.full_cluster())
    (folder / "snapshot.json").write_text(json.dumps({"version": "1.35"}))
    story(tmp_path / "new", kubernetes="1.36")
    options = ["--from", str(folder), "--story", str(tmp_path / "new"), "--plugin", "true"]

    result = CliRunner().invoke(cli, ["sandbox", *options])

    assert result.exit_code == 2
    assert (
        "story new needs Kubernetes 1.36, but the saved cluster has 1.35; run it separately, with --kubernetes 1.36"
        in result.output
    )


def test_a_saved_cluster_of_an_unknown_release_says_so(tmp_path: Path) -> None:
    saved.write(tmp_path / "objects.json", saved.full_cluster())
    (tmp_path / "snapshot.json").write_text(json.dumps({"version": "1.99"}))

    assert ClusterCopy.read(tmp_path).notes[0] == (
        "it is of Kubernetes 1.99, whose rules apply as far as dra-kit knows them: it supports releases up to "
        f"{NEWEST}; --kubernetes {NEWEST} simulates that one"
    )


def test_a_saved_cluster_is_judged_by_its_release_or_as_if_it_had_been_upgraded(tmp_path: Path) -> None:
    saved.write(tmp_path / "objects.json", saved.full_cluster())
    (tmp_path / "snapshot.json").write_text(json.dumps({"version": "1.35"}))

    same = with_copy(SandboxSettings(), tmp_path, "", alpha=False)
    named = with_copy(SandboxSettings(), tmp_path, "", alpha=False, version=OLD)
    upgraded = with_copy(SandboxSettings(), tmp_path, "", alpha=False, version=KubernetesVersion(1, 36))

    assert same == named
    assert same.release == Release.of(OLD)
    assert upgraded.release == Release.of(KubernetesVersion(1, 36))
    assert upgraded.copy is not None
    assert upgraded.copy.version == "1.35"
    assert (
        upgraded.copy.notes[0] == "--kubernetes: Kubernetes 1.36 judges them, as if the cluster had been changed to it"
    )
    assert not any("--kubernetes" in note for note in ClusterCopy.read(tmp_path, OLD).notes)


@pytest.mark.parametrize(
    ("minor", "config", "stored", "note"),
    [
        (36, "", None, "left out, because the API server does not serve them: 1 DeviceTaintRule; see --runtime-config"),
        (36, "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta2", ""),
        (37, "", "resource.k8s.io/v1", ""),
    ],
)
async def test_a_copy_has_the_objects_that_its_release_serves(
    tmp_path: Path, minor: int, config: str, stored: str | None, note: str
) -> None:
    taint = {"key": "cold", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    rule = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "cold"},
            "spec": {"deviceSelector": {"driver": "dra.pizza"}, "taint": taint}}  # fmt: skip
    path = saved.write(tmp_path / "saved.json", [*saved.full_cluster(), rule])
    settings = SandboxSettings(nodes=0, runtime_config=RuntimeConfig.parse(config))

    settings = with_copy(settings, path, "", alpha=False, version=KubernetesVersion(1, minor))

    assert settings.copy is not None
    assert ([text for text in settings.copy.notes if "does not serve" in text] or [""]) == [note]
    async with Sandbox([], settings) as sandbox:
        rules = [dict(item) for item in sandbox.informers.objects(DEVICE_TAINT_RULES).values()]
    assert [item["apiVersion"] for item in rules] == ([stored] if stored else [])


async def test_all_parts_of_the_cluster_are_of_the_release() -> None:
    async with Sandbox([], SandboxSettings(release=Release.of(OLD))) as sandbox:
        version = await sandbox.client.get_path("/version")
        node = await sandbox.client.get(NODES, "node-1")
        exactly = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "1Gi"}}}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        claim = await sandbox.client.create(RESOURCE_CLAIMS, {"metadata": {"name": "a"}, "spec": spec}, "default")

    assert (version["major"], version["minor"]) == ("1", "35")
    assert node["status"]["nodeInfo"]["kubeletVersion"] == version["gitVersion"] == OLD.published
    assert "capacity" not in claim["spec"]["devices"]["requests"][0]["exactly"]


@pytest.mark.processes
def test_a_driver_runs_in_an_older_release_and_its_pods_are_explained_by_it(kitchen: Kitchen) -> None:
    kitchen.order(pod("guest", "true"))

    shown = kitchen.call("./pizzeria.py", "--kubernetes", "1.34", "-f", "order.yaml", "--record", "r")

    assert "all pods succeeded" in shown
    assert kitchen.call("./pizzeria.py", "--kubernetes", "1.99", code=2).splitlines()[-1].startswith("Error: --kuber")
