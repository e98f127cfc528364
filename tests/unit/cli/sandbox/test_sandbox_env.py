"""A sandbox without a driver, and ``dra-kit sandbox env`` for a driver that is started manually."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.support import foreign_driver
from tests.unit.cli.kitchen import Kitchen

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "how-to" / "any-driver.md").read_text(encoding="utf-8")


@contextmanager
def empty(kitchen: Kitchen, *arguments: str) -> Iterator[Iterator[str]]:
    """A sandbox without a driver, and what it goes on to tell."""
    with kitchen.start(*arguments) as process:
        assert process.stdout is not None
        try:
            assert any("everything runs until Ctrl-C" in line for line in process.stdout)
            yield process.stdout
        finally:
            process.send_signal(signal.SIGINT)
            process.stdout.read()
    assert kitchen.left_behind() == []


def variables(kitchen: Kitchen, *arguments: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(kitchen.call("env", "--json", *arguments))
    return found


def test_a_driver_in_any_language_runs_with_what_the_environment_says(kitchen: Kitchen) -> None:
    manifests = "---\n".join(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    with empty(kitchen) as told:
        environment = {**kitchen.environment, **variables(kitchen), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, foreign_driver.__file__]
        with subprocess.Popen(command, env=environment) as driver:
            try:
                wait_for(told, "offers 1 device on node-1")
                apply(kitchen, manifests)
                wait_for(told, f"kubelet of node-1 calls {foreign_driver.DRIVER}: NodePrepareResources")
                wait_for(told, "GPU_DEVICE=gpu-0")
                wait_for(told, "Pod trainer is Succeeded")
            finally:
                driver.kill()


def test_the_lines_are_for_a_shell_whatever_the_paths_are(kitchen: Kitchen) -> None:
    folder = kitchen.directory / "it's a $HOME"
    folder.mkdir()
    with empty(kitchen, "--kubeconfig", str(folder / "kube config")):
        lines = kitchen.run("env")
        script = f"{lines}\nprintenv KUBECONFIG; printenv CDI_ROOT"
        run = subprocess.run(["/bin/sh", "-euc", script], capture_output=True, text=True, check=True)
        told = variables(kitchen)
    assert run.stdout.splitlines() == [str(folder / "kube config"), told["CDI_ROOT"]]
    assert all(shlex.split(line)[0] == "export" for line in lines.splitlines())
    assert set(re.findall(r"^export (\w+)=", PAGE, re.MULTILINE)) == told.keys()


def test_of_several_nodes_one_is_named(kitchen: Kitchen) -> None:
    with empty(kitchen, "--nodes", "2"):
        assert "has 2 nodes; choose one with --node: node-1, node-2" in kitchen.call("env", code=2)
        assert 'no such node; did you mean "node-1"?' in kitchen.call("env", "--node", "nod1", code=2)
        assert variables(kitchen, "--node", "node-2")["NODE_NAME"] == "node-2"


def test_of_several_sandboxes_one_is_named(kitchen: Kitchen) -> None:
    assert "no sandbox is running, or it is still starting" in kitchen.call("env", code=2)
    told = kitchen.run("--detach", "--kubeconfig", "one")
    assert told.startswith("a cluster without a driver runs in the background")
    with empty(kitchen, "--kubeconfig", "two"):
        text = kitchen.call("env", code=2)
        assert "2 sandboxes are running; choose one with --kubeconfig" in text
        for name in ("one", "two"):
            kubeconfig = kitchen.directory / name
            assert f"dra-kit sandbox env --kubeconfig {kubeconfig}" in text
            assert variables(kitchen, "--kubeconfig", name)["KUBECONFIG"] == str(kubeconfig)
        assert "the sandbox of no driver has stopped" in kitchen.call("down")
        assert variables(kitchen)["KUBECONFIG"] == str(kitchen.directory / "two")


def test_without_a_target_it_is_the_project_here_and_the_environment_that_of_its_driver(kitchen: Kitchen) -> None:
    kitchen.project("pizzeria:driver")
    assert "dra.pizza runs in a cluster in the background" in kitchen.run("--detach", "--no-webhook")
    try:
        assert (Path(variables(kitchen)["DRA_KUBELET_DIR"]) / "plugins" / "dra.pizza").is_dir()
    finally:
        kitchen.call("down")


def test_a_target_that_is_misspelt_is_still_an_error(kitchen: Kitchen) -> None:
    assert "TARGET pizzera.py" in kitchen.call("pizzera.py", code=2)
    assert 'did you mean "env"?' in kitchen.call("emv", code=2)


def test_a_story_needs_a_driver(kitchen: Kitchen) -> None:
    (kitchen.directory / "expect.yaml").write_text("pods: {guest: {phase: Running}}\n")
    assert "--story requires a driver" in kitchen.call("--story", ".", code=2)


def apply(kitchen: Kitchen, manifests: str) -> None:
    """As kubectl would, which need not be there."""
    environment = variables(kitchen)
    api = foreign_driver.Api(Path(environment["KUBECONFIG"]))
    paths = {
        "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
        "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
        "Pod": "/api/v1/namespaces/default/pods",
    }
    for item in yaml.safe_load_all(manifests):
        api.call(paths[item["kind"]], item)


def wait_for(told: Iterator[str], text: str) -> None:
    assert any(text in line for line in told), text
