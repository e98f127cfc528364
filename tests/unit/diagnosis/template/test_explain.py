"""Whether a pod or claim would fit on a node that does not exist yet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dra_kit.cli.app import cli

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "oven"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "dra.pizza"'}}]},
}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "lunch", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "oven", "exactly": {"deviceClassName": "oven", "count": 2}}]}},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "guest", "namespace": "default"},
    "spec": {
        "resourceClaims": [{"name": "lunch", "resourceClaimName": "lunch"}],
        "containers": [{"name": "eater", "image": "busybox", "resources": {"requests": {"cpu": "4"}}}],
    },
}


def node(name: str, cpu: str = "8") -> dict[str, object]:
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": amounts}}


def slices(of: str, ovens: int) -> dict[str, object]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"00000-{of}"},
        "spec": {
            "driver": "dra.pizza",
            "nodeName": of,
            "pool": {"name": of, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"oven-{number}"} for number in range(ovens)],
        },
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """One node with one oven, and who wants two."""
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all([CLASS, CLAIM, POD, node("small"), slices("small", 1)]))
    return file


def explain(cluster: Path, subject: str, *templates: Sequence[Mapping[str, object]], output: str = "text") -> Result:
    arguments = ["explain", subject, "--from", str(cluster), "-o", output]
    for number, documents in enumerate(templates):
        file = cluster.parent / f"template-{number}.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        arguments += ["--template", str(file)]
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("subject", ["pod/guest", "claim/lunch"])
def test_a_node_that_would_fit_is_named(cluster: Path, subject: str) -> None:
    found = explain(cluster, subject, [node("large"), slices("large", 4)])
    assert "→ a node like large would fit" in found.output
    assert found.exit_code == 3


def test_of_several_those_that_fit_are_named(cluster: Path) -> None:
    found = explain(cluster, "pod/guest", [node("large"), slices("large", 4)], [node("tiny"), slices("tiny", 1)])
    assert "a node like large would fit" in found.output
    assert "tiny" not in found.output


def test_it_is_reported_if_no_template_would_help(cluster: Path) -> None:
    found = explain(cluster, "pod/guest", [node("tiny"), slices("tiny", 1)])
    assert "no node of a template would help" in found.output


def test_other_resources_of_the_node_count(cluster: Path) -> None:
    found = explain(cluster, "pod/guest", [node("large", cpu="2"), slices("large", 4)])
    assert "no node of a template would help" in found.output


def test_without_the_node_its_devices_count(cluster: Path) -> None:
    found = explain(cluster, "pod/guest", [slices("large", 4)])
    assert "a node like large would have the devices; its other resources are not known" in found.output


def test_programs_are_reported(cluster: Path) -> None:
    found = explain(cluster, "pod/guest", [node("large"), slices("large", 4)], output="json")
    assert json.loads(found.output)["explanations"][0]["fittingTemplates"] == [{"node": "large", "certain": True}]


def test_templates_are_ignored_if_the_claim_fits_anyway(cluster: Path) -> None:
    cluster.write_text(yaml.safe_dump_all([CLASS, CLAIM, POD, node("small"), slices("small", 2)]))
    found = explain(cluster, "pod/guest", [node("large"), slices("large", 4)])
    assert (found.exit_code, "like large" in found.output) == (0, False)


def test_a_template_without_a_node_is_refused(cluster: Path) -> None:
    found = explain(cluster, "pod/guest", [CLASS])
    assert (found.exit_code, found.output) == (
        2,
        "error: the template has neither a Node nor slices of one; use dra-kit template [configuration]\n",
    )
