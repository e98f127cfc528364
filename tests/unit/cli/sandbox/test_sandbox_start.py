"""``dra-kit sandbox`` says what it does before it imports what that needs, and imports what it needs alone."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

DRIVER = """
    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self):
            yield [dra.Device(name="{name}-0")]


    class Waiter(dra.Preparer):
        def prepare(self, claim, device):
            return dra.Prepared()


    driver = dra.Driver("dra.{name}", provider=Oven(), preparer=Waiter())
"""
POD = """
    apiVersion: v1
    kind: Pod
    metadata: {name: guest}
    spec:
      restartPolicy: Never
      containers: [{name: eater, image: x, command: ["true"]}]
"""
COMMAND = """
    import sys

    class Without:
        def find_spec(self, name, path=None, target=None):
            if name in without:
                sys.exit(f"imports {name}")

    class Output:
        def write(self, text):
            if "has started" in text and (loaded := sorted(late & {*sys.modules})):
                sys.exit(f"has imported {', '.join(loaded)}")
            return stream.write(text)

        def __getattr__(self, name):
            return getattr(stream, name)

    without, late = (set(names.split(",")) for names in sys.argv[1].split(";"))
    sys.meta_path.insert(0, Without())
    stream, sys.stdout = sys.stdout, Output()
    from dra_kit.cli import main
    sys.argv = ["dra-kit", "sandbox", *sys.argv[2:]]
    main()
"""
CLUSTER = ("dra_kit.sandbox.run.session", "dra_kit.apiserver", "dra_kit.explain", "kopf")
DRIVERS = ("pydantic", "dra_kit.author", "dra_kit.resource.v1", "dra_kit.sandbox.driver.drivers", "asyncio")
UNUSED = (
    "dra_kit.explain",
    "dra_kit.controller",
    "dra_kit.webhook",
    "kopf",
)
"""What nothing of a driver and a pod without anything special needs."""
LATE = (
    "dra_kit.apiserver.admission.policies.plugin",
    "dra_kit.apiserver.admission.webhooks",
    "dra_kit.apiserver.requests.pod_log",
    "dra_kit.author.cluster",
    "dra_kit.author.config.cost",
    "dra_kit.author.config.problems",
    "dra_kit.author.devices.health",
    "dra_kit.author.devices.policy",
    "dra_kit.author.effects.child_process",
    "dra_kit.author.effects.cluster_object",
    "dra_kit.author.models.wording",
    "dra_kit.author.observing",
    "dra_kit.cel.admission",
    "dra_kit.cel.functions.authorization",
    "dra_kit.cel.functions.time",
    "dra_kit.cel.functions.urls",
    "dra_kit.manifests.positions",
    "dra_kit.node.children",
    "dra_kit.node.effects.without_class",
    "dra_kit.node.objects",
    "dra_kit.node.operation.readings",
    "dra_kit.node.undertaking",
    "dra_kit.operation.who.device_use",
    "dra_kit.plugin.health",
    "dra_kit.process.metrics.families",
    "dra_kit.proto.dra_health_v1_pb2",
    "dra_kit.resource.v1.status",
    "dra_kit.resource.v1.taints",
    "dra_kit.resource.v1alpha3",
    "dra_kit.sandbox.cluster.controllers.workloads.plan",
    "dra_kit.sandbox.cluster.pod_log",
    "dra_kit.sandbox.driver.roles.process_role",
    "dra_kit.sandbox.stories.expectations.facts",
    "dra_kit.sandbox.stories.story_file",
    "dra_kit.sandbox.stories.story_model",
    "dra_kit.sandbox.timeline.report.report",
    "multiprocessing",
    "prometheus_client",
    "tomllib",
)
"""What is loaded once there is something that needs it: before a first pod runs there is not."""


def sandbox(
    folder: Path, without: Sequence[str], *arguments: str, late: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run without some modules at all, and without others until a container has started."""
    for name in ("pizza", "beer"):
        (folder / f"{name}.py").write_text(textwrap.dedent(DRIVER.format(name=name)))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COMMAND), f"{','.join(without)};{','.join(late)}", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def entries(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What is printed, without the seconds."""
    return [line[9:] if line[6:9] == " s " else line for line in ended.stdout.splitlines()]


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        (["./pizza.py"], "loading ./pizza.py"),
        (["./pizza.py", "./beer.py"], "loading ./pizza.py"),
        ([], "a cluster in this process starts, without a driver"),
    ],
)
@pytest.mark.processes
def test_the_first_line_comes_before_what_a_driver_is_made_of(tmp_path: Path, targets: list[str], line: str) -> None:
    ended = sandbox(tmp_path, DRIVERS, *targets)

    assert (entries(ended), ended.returncode) == ([line], 1), ended.stderr


@pytest.mark.processes
def test_the_drivers_are_named_before_the_cluster_is_imported(tmp_path: Path) -> None:
    ended = sandbox(tmp_path, CLUSTER, "./pizza.py", "./beer.py")

    assert entries(ended) == [
        "loading ./pizza.py",
        "loading ./beer.py",
        "a cluster in this process starts, with drivers dra.pizza and dra.beer",
    ], ended.stderr
    assert ended.returncode == 1


@pytest.mark.processes
def test_the_project_here_is_not_called_a_dot(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "pizza"\n')

    assert entries(sandbox(tmp_path, DRIVERS)) == ["loading the driver of this project"]


@pytest.mark.processes
def test_help_needs_no_driver_and_says_nothing_else(tmp_path: Path) -> None:
    ended = sandbox(tmp_path, DRIVERS, "--help")

    assert (ended.stdout.split(" [")[0], ended.returncode) == ("Usage: dra-kit sandbox", 0), ended.stderr


@pytest.mark.processes
def test_a_pod_runs_without_what_it_does_not_need(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(textwrap.dedent(POD))

    ended = sandbox(tmp_path, UNUSED, "./pizza.py", "-f", "pod.yaml", late=LATE)

    assert (entries(ended)[-1].split(":")[0], ended.returncode) == ("left over", 0), ended.stdout + ended.stderr


def test_what_a_pod_does_not_need_has_these_names() -> None:
    assert [name for name in (*LATE, *UNUSED) if find_spec(name) is None] == []
