"""Capacity and labels of nodes: options of ``dra-kit sandbox``, and keys of a story."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.cli.sandbox_drivers import node_shapes, shapes_with_stories
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.kubelet.environment import NodeShape
from dra_kit.sandbox.stories.story import Story, load_story
from tests.unit.cli.kitchen import Kitchen, pod


def big(name: str = "guest", **node_selector: str) -> dict[str, Any]:
    """A pod that no machine of a developer has room for."""
    made = pod(name, "true")
    del made["spec"]["resourceClaims"]
    requests = {"cpu": "9000", "example.com/widgets": "2"}
    made["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": {"example.com/widgets": "2"}}
    return {**made, "spec": {**made["spec"], "nodeSelector": node_selector}}


def story(folder: Path, **file: Any) -> Story:
    folder.mkdir()
    (folder / "expect.yaml").write_text(yaml.safe_dump({"pods": {"guest": {"phase": "Succeeded"}}, **file}))
    return load_story(folder)


@pytest.mark.parametrize("command", ["sandbox", "dev"])
def test_containers_cannot_be_run_by_docker(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--containers", "docker"], prog_name="dra-kit")

    assert result.exit_code == 2
    assert (
        "Invalid value for '--containers': docker cannot be used: its daemon starts containers outside" in result.output
    )
    assert "Use podman, which runs the same images" in result.output


@pytest.mark.processes
def test_pod_runs_on_the_node_that_has_its_capacity_and_labels(tmp_path: Path) -> None:
    kitchen = Kitchen(tmp_path)
    kitchen.order(big(zone="b"))

    shown = kitchen.call(
        "./pizzeria.py", "--nodes", "2", "-f", "order.yaml", "--node-capacity", "cpu=9001,example.com/widgets=2",
        "--node-capacity", "node-1:cpu=1", "--node-labels", "zone=a", "--node-labels", "node-2:zone=b",
    )  # fmt: skip

    assert "all pods succeeded" in shown


@pytest.mark.processes
def test_story_runs_on_nodes_with_the_capacity_that_it_needs(tmp_path: Path) -> None:
    kitchen = Kitchen(tmp_path)
    story(tmp_path / "big", nodes={"*": {"capacity": {"cpu": 9001, "example.com/widgets": 2}, "labels": {"zone": "b"}}})
    (tmp_path / "big" / "pod.yaml").write_text(yaml.safe_dump(big(zone="b")))

    assert "story big passed" in kitchen.call("./pizzeria.py", "--story", "big")


def test_option_for_one_node_overrides_that_for_all() -> None:
    shapes = node_shapes(["cpu=8,memory=32Gi", "node-2:cpu=4"], ["node-1:zone=a"])

    assert shapes == {
        "*": NodeShape(capacity={"cpu": "8", "memory": "32Gi"}),
        "node-2": NodeShape(capacity={"cpu": "4"}),
        "node-1": NodeShape(labels={"zone": "a"}),
    }


@pytest.mark.parametrize("text", ["cpu", "cpu=1,", "=1", ":cpu=1", "node-1:", ""])
def test_option_of_another_form_is_rejected(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not NAME=VALUE; use for example --node-capacity cpu=8"):
        node_shapes([text], [])


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"node2": NodeShape()}, r"unknown node 'node2'; did you mean \"node-2\"\? nodes of the sandbox: node-1"),
        ({"*": NodeShape(capacity={"cpu": "8 cores"})}, "capacity cpu=8 cores of every node is invalid: use a"),
        ({"node-1": NodeShape(capacity={"cpu": "-1"})}, "capacity cpu=-1 of node node-1 is invalid: it must not"),
        ({"node-3": NodeShape()}, "nodes of the sandbox: node-1, node-2; --nodes gives it more"),
        ({"*": NodeShape(capacity={"cpus": "8"})}, r"has no resource cpus; did you mean \"cpu\"\? use cpu, me"),
        ({"*": NodeShape(capacity={"a.example/b": "1.5"})}, "b=1.5 of every node is invalid: it must be an integer"),
        ({"*": NodeShape(capacity={"a b": "1"})}, "capacity a b=1 of every node is invalid: name part"),
        ({"*": NodeShape(labels={"zone": "a b"})}, "label zone=a b of every node is invalid: a valid label"),
    ],
)  # fmt: skip
def test_invalid_profile_of_a_node_is_rejected(shapes: dict[str, NodeShape], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Sandbox([], SandboxSettings(nodes=2, shapes=shapes))


def test_capacity_of_each_kind_is_accepted() -> None:
    capacity = {"cpu": "7500m", "memory": "1e9", "pods": "250", "hugepages-2Mi": "1Gi", "example.com/widgets": "0"}

    Sandbox([], SandboxSettings(shapes={"*": NodeShape(capacity=capacity)}))


def test_options_override_what_a_story_needs(tmp_path: Path) -> None:
    needs = story(tmp_path / "a", nodes={"*": {"capacity": {"cpu": 8, "memory": "1Gi"}}})

    found = shapes_with_stories({"*": NodeShape(capacity={"cpu": "4"})}, [needs])

    assert found == {"*": NodeShape(capacity={"cpu": "4", "memory": "1Gi"})}


def test_stories_that_need_different_nodes_do_not_run_together(tmp_path: Path) -> None:
    stories = [story(tmp_path / name, nodes={"*": {"labels": {"zone": name}}}) for name in ("a", "b")]

    with pytest.raises(ConfigurationError, match=r"story b needs other capacity or labels of node \* than a story"):
        shapes_with_stories({}, stories)


def test_options_for_all_nodes_override_what_a_story_needs_of_one(tmp_path: Path) -> None:
    needs = story(tmp_path / "a", nodes={"node-1": {"capacity": {"cpu": 8, "memory": "1Gi"}}})

    found = shapes_with_stories({"*": NodeShape(capacity={"cpu": "4"})}, [needs])

    assert found["node-1"] == NodeShape(capacity={"cpu": "4", "memory": "1Gi"})


def test_needs_of_one_node_and_of_all_are_compared(tmp_path: Path) -> None:
    every = story(tmp_path / "every", nodes={"*": {"capacity": {"cpu": 64}}})
    one = story(tmp_path / "one", nodes={"node-1": {"capacity": {"cpu": 8}}})

    for stories in ([every, one], [one, every]):
        with pytest.raises(ConfigurationError, match=rf"story {stories[1].name} needs other .* of node node-1 than"):
            shapes_with_stories({}, stories)
