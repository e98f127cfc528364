"""Whether a pod or claim would fit on a node that does not exist yet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import Result

from tests.unit.cli.cluster.saved import CLASS, Document, claim, node, pod, run, save, slice_of

WANTED = (CLASS, claim("lunch", count=2), pod("guest", claim="lunch", requests={"cpu": "2"}))


def slices(of: str, pizzas: int) -> Document:
    return slice_of(of, **{f"pizza_{number}": "mozzarella" for number in range(pizzas)})


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """One node with one pizza, and who wants two."""
    return save(tmp_path / "cluster.yaml", *WANTED, node("small"), slices("small", 1))


def explain(cluster: Path, subject: str, *templates: Sequence[Document], output: str = "text") -> Result:
    arguments: list[str | Path] = ["explain", subject, "--from", cluster, "-o", output]
    for number, documents in enumerate(templates):
        arguments += ["--template", save(cluster.parent / f"template-{number}.yaml", *documents)]
    return run(*arguments)


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
    found = explain(cluster, "pod/guest", [node("large", cpu="1"), slices("large", 4)])
    assert "no node of a template would help" in found.output


def test_without_the_node_its_devices_count(cluster: Path) -> None:
    found = explain(cluster, "pod/guest", [slices("large", 4)])
    assert "a node like large would have the devices; its other resources are not known" in found.output


def test_programs_are_reported(cluster: Path) -> None:
    found = explain(cluster, "pod/guest", [node("large"), slices("large", 4)], output="json")
    assert json.loads(found.output)["explanations"][0]["fittingTemplates"] == [{"node": "large", "certain": True}]


def test_templates_are_ignored_if_the_claim_fits_anyway(cluster: Path) -> None:
    save(cluster, *WANTED, node("small"), slices("small", 2))
    found = explain(cluster, "pod/guest", [node("large"), slices("large", 4)])
    assert (found.exit_code, "like large" in found.output) == (0, False)


def test_a_template_without_a_node_is_refused(cluster: Path) -> None:
    found = explain(cluster, "pod/guest", [CLASS])
    assert (found.exit_code, found.output) == (
        2,
        "error: the template has neither a Node nor slices of one; use dra-kit template [configuration]\n",
    )
