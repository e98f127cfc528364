"""``dra-kit sandbox`` says what it does before it imports what that needs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
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
COMMAND = """
    import sys

    class Without:
        def find_spec(self, name, path=None, target=None):
            if name in without:
                sys.exit(f"imports {name}")

    without = set(sys.argv[1].split(","))
    sys.meta_path.insert(0, Without())
    from dra_kit.cli import main
    sys.argv = ["dra-kit", "sandbox", *sys.argv[2:]]
    main()
"""
CLUSTER = ("dra_kit.sandbox.run.session", "dra_kit.apiserver", "dra_kit.diagnosis.explain", "kopf")
DRIVERS = (
    "pydantic",
    "dra_kit.author.driver",
    "dra_kit.kubernetes.resource.v1",
    "dra_kit.sandbox.drivers.sandbox_driver",
    "asyncio",
)


def sandbox(folder: Path, without: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``dra-kit sandbox``, which ends when it imports one of these modules."""
    for name in ("pizza", "beer"):
        (folder / f"{name}.py").write_text(textwrap.dedent(DRIVER.format(name=name)))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COMMAND), ",".join(without), *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def entries(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What is printed, without the seconds."""
    return [line[9:] if line[6:9] == " s " else line for line in ended.stdout.splitlines()]


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        (["./pizza.py"], "loading ./pizza.py"),
        (["./pizza.py", "./beer.py"], "loading ./pizza.py"),
        ([], "starting a cluster in this process, without a driver"),
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
        "starting a cluster in this process, with drivers dra.pizza and dra.beer",
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
