"""Tests that read and change any object of the cluster, in their namespace and in others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.client.resources import CONFIG_MAPS, NAMESPACES
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.stories.runner import run_story
from dra_kit.sandbox.stories.story import load_story
from dra_kit.testing import Harness, Invalid, NotFound, TestBed, sandbox
from tests.unit.testing.bakery import ORDER, write_files, write_project

SHOP = """\
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: menu, namespace: shop, labels: {app: oven}}
data: {bread: rye}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: guest, namespace: shop}
spec:
  nodeSelector: {garden: "yes"}
  containers: [{name: eater, image: busybox, command: [sleep, "60"]}]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("bakery"), {"tests/shop.yaml": SHOP})


@pytest.fixture(scope="module")
def bed(project: Path) -> Iterator[TestBed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        with sandbox(".", time_scale=60, timeout=60) as bed:
            patch.undo()
            yield bed


@pytest.fixture
def dra(bed: TestBed, project: Path) -> Iterator[Harness]:
    with bed.harness("objects", directory=project / "tests") as harness:
        yield harness


def test_get_returns_any_object(dra: Harness) -> None:
    dra.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "menu"}, "data": {"bread": "rye"}})

    assert dra.get("ConfigMap/menu")["data"] == {"bread": "rye"}
    assert dra.get("ConfigMap/menu", api_version="v1")["metadata"]["namespace"] == dra.namespace
    assert dra.get("Node/node-1")["kind"] == "Node"
    assert dra.get("DeviceClass/bread")["apiVersion"] == "resource.k8s.io/v1"
    assert dra.get("ServiceAccount/kube-system/default")["metadata"]["namespace"] == "kube-system"
    with pytest.raises(NotFound):
        dra.get("ConfigMap/wine-list")


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("ConfigMop/menu", r'kind ConfigMop is not served; did you mean "ConfigMap"\?'),
        ("menu", r"'menu' is not a reference of an object; write <kind>/<name>"),
        ("Node/shop/node-1", r"Node/shop/node-1: Node is cluster-scoped; leave out the namespace"),
    ],
)
def test_an_invalid_reference_is_reported(dra: Harness, reference: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        dra.get(reference)


def test_list_returns_objects_of_this_namespace_of_another_or_of_all(dra: Harness) -> None:
    dra.apply(
        "shop.yaml",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "wine", "labels": {"app": "oven"}}},
    )

    def names(namespace: str | None) -> list[str]:
        return sorted(item["metadata"]["name"] for item in dra.list("ConfigMap", namespace=namespace,
                                                                    label_selector="app=oven"))  # fmt: skip

    assert (names(None), names("shop"), names("")) == (["wine"], ["menu"], ["menu", "wine"])
    assert [item["spec"]["driver"] for item in dra.list("ResourceSlice")] == ["bread.example"]


def test_patch_changes_an_object_until_the_test_ends(bed: TestBed, project: Path) -> None:
    with bed.harness("patches", directory=project) as dra:
        dra.patch("Node/node-1", {"metadata": {"labels": {"zone": "garden"}}})
        assert dra.get("Node/node-1")["metadata"]["labels"]["zone"] == "garden"
        dra.patch("Node/node-1", {"status": {"nodeInfo": {"kernelVersion": "7.1"}}}, subresource="status")
        assert dra.get("Node/node-1")["status"]["nodeInfo"]["kernelVersion"] == "7.1"
        with pytest.raises(Invalid):
            dra.patch("Node/node-1", {"spec": {"unschedulable": "maybe"}})
    with bed.harness("patches", directory=project) as dra:
        assert "zone" not in dra.get("Node/node-1")["metadata"]["labels"]


MENU = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "menu", "namespace": "default"}}


def test_an_object_that_replaced_a_patched_one_stays_unchanged(bed: TestBed, project: Path) -> None:
    client, call = bed.cluster.client, bed.background.call
    call(client.create(CONFIG_MAPS, MENU))
    with bed.harness("replaced", directory=project) as dra:
        dra.patch("ConfigMap/default/menu", {"data": {"bread": "rye"}})
        call(client.delete(CONFIG_MAPS, "menu", "default"))
        call(client.create(CONFIG_MAPS, {**MENU, "data": {"bread": "wheat"}}))
    assert call(client.get(CONFIG_MAPS, "menu", "default"))["data"] == {"bread": "wheat"}
    call(client.delete(CONFIG_MAPS, "menu", "default"))


def test_a_change_that_cannot_be_undone_is_reported(bed: TestBed, project: Path) -> None:
    client, call = bed.cluster.client, bed.background.call
    call(client.create(CONFIG_MAPS, MENU))
    problem = r"ConfigMap default/menu did not get its former content: .*field is immutable"
    with pytest.raises(AssertionError, match=problem), bed.harness("frozen", directory=project) as dra:
        dra.patch("ConfigMap/default/menu", {"immutable": True})
    assert not [item for item in call(client.list(NAMESPACES)).items if "frozen" in item["metadata"]["name"]]
    call(client.delete(CONFIG_MAPS, "menu", "default"))


def test_objects_are_created_in_the_namespace_that_they_name(bed: TestBed, project: Path) -> None:
    with bed.harness("shops", directory=project / "tests") as dra:
        dra.apply("shop.yaml", POD)
        assert dra.get("ConfigMap/shop/menu")["data"] == {"bread": "rye"}
        dra.apply(SHOP.replace("rye", "wheat"))
        assert dra.get("ConfigMap/shop/menu")["data"] == {"bread": "wheat"}
        dra.wait("shop/guest", phase="Pending", message="didn't match Pod's node affinity")
        with pytest.raises(AssertionError, match="pod shop/host does not exist"):
            dra.wait("shop/host")
        dra.delete("ConfigMap/shop/menu")
        dra.delete("Pod/shop/guest")
    with bed.harness("shops", directory=project) as dra, pytest.raises(NotFound):
        dra.get("Namespace/shop")


def test_claims_are_found_in_other_namespaces(dra: Harness) -> None:
    claim = ORDER.partition("---")[0].replace("name: loaf", "name: loaf, namespace: shop")
    dra.apply("shop.yaml", claim)

    assert dra.claim("shop/loaf")["metadata"]["namespace"] == "shop"


def test_the_kubeconfig_leads_other_programs_to_the_cluster(dra: Harness) -> None:
    dra.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "menu"}})
    command = [str(Path(sys.executable).with_name("dra-kit")), "check", "--kubeconfig", str(dra.kubeconfig)]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "Kubernetes 1.37" in found.stdout


def test_sandbox_env_finds_a_test_bed(dra: Harness) -> None:
    found = CliRunner().invoke(cli, ["sandbox", "env", "--json", "--kubeconfig", str(dra.kubeconfig)])
    assert found.exit_code == 0, found.output
    assert json.loads(found.output)["NODE_NAME"] == "node-1"


STORY = """\
steps:
- apply: [shop.yaml, order.yaml]
  pods: {shop/guest: {phase: Pending, message: node affinity}}
  claims: {shop/loaf: {devices: []}}
- delete: [ConfigMap/shop/menu]
  gone: [ConfigMap/shop/menu]
"""


def test_a_story_has_objects_in_a_namespace_that_they_name(bed: TestBed, project: Path) -> None:
    claim = ORDER.partition("---")[0].replace("name: loaf", "name: loaf, namespace: shop")
    write_files(project / "story", {"expect.yaml": STORY, "shop.yaml": SHOP, "order.yaml": f"{claim}---\n{POD}"})

    result = bed.background.call(run_story(load_story(project / "story"), bed.cluster, timeout=60))

    assert result.passed, result.report()
