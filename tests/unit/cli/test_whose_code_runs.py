"""Which commands run code of the project or folder that they are called in, and which do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dra_kit.cli.app import cli

DRA_KIT = str(Path(sys.executable).with_name("dra-kit"))
SAFE = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
DRIVER = """
import os, pathlib
import dra_kit as dra

pathlib.Path(os.environ["RAN"]).touch()


class Oven(dra.DeviceProvider):
    def discover(self):
        yield [dra.Device(name="oven")]


class Waiter(dra.Preparer):
    def prepare(self, claim, device):
        return dra.Prepared()


driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file that is there once the project's code has run."""
    return tmp_path / "ran"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "pizza"
    (folder / "stories" / "one").mkdir(parents=True)
    (folder / "pizzeria.py").write_text(DRIVER)
    (folder / "conftest.py").write_text(DRIVER)
    (folder / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "pizzeria:driver"\n')
    (folder / "claim.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: guest}\n")
    (folder / "stories" / "one" / "expect.yaml").write_text(
        "targets: [../../pizzeria.py]\npods: {guest: {phase: Running}}\n"
    )
    return folder


def dra_kit(folder: Path, ran: Path, *arguments: str, **variables: str) -> str:
    """What a command prints that is called in a folder, in the process of the tests."""
    runner = CliRunner(env={"RAN": str(ran), "XDG_RUNTIME_DIR": str(folder.parent), **variables})
    with chdir(folder):
        result = runner.invoke(cli, arguments, prog_name="dra-kit", catch_exceptions=False)
    return result.output


HELP = [
    "chart",
    "check",
    "controller",
    "dev",
    "dev --color pizzeria",
    "dev --nodes 2",
    "drain",
    "explain",
    "lint",
    "node",
    "node --color pizzeria",
    "node --color pizzeria:driver",
    "policy",
    "sandbox",
    "sandbox --color pizzeria",
    "sandbox --story stories/one",
    "template",
    "decommission",
    "update",
    "webhook",
]


@pytest.mark.parametrize("command", [*(f"{words} --help" for words in HELP), "dev -h", "sandbox -h"])
def test_help_runs_no_code_of_the_project(command: str, project: Path, ran: Path) -> None:
    assert "Usage: dra-kit" in dra_kit(project, ran, *command.split())
    assert not ran.exists()


@pytest.mark.parametrize("command", ["dev .", "dev ./pizzeria.py", "sandbox .", "node pizzeria", "lint --driver ."])
def test_help_loads_a_target_that_is_named(command: str, project: Path, ran: Path) -> None:
    assert "Usage: dra-kit" in dra_kit(project, ran, *command.split(), "--help")
    assert ran.exists()


@pytest.mark.parametrize("command", ["chart", "check", "controller", "dev", "lint", "node", "sandbox", "webhook"])
def test_help_explains_that_it_loads_the_target(command: str, project: Path, ran: Path) -> None:
    shown = " ".join(dra_kit(project, ran, command, "--help").split())
    if command == "chart":  # it has no settings of a driver to show
        assert "show this message" not in shown
    else:
        assert "with a TARGET, load it" in shown


@pytest.mark.parametrize(
    "command",
    [
        *("chart", "lint claim.yaml", "update", "explain pod guest --from claim.yaml", "completion bash"),
        pytest.param("sbom", marks=pytest.mark.processes),  # no process, but it reads all packages
    ],
)
def test_a_command_without_a_target_runs_no_code_of_the_project(command: str, project: Path, ran: Path) -> None:
    assert dra_kit(project, ran, *command.split())
    assert not ran.exists()


@pytest.mark.parametrize(
    "words", ["dra-kit dev ", "dra-kit dev --", "dra-kit sandbox . --", "dra-kit lint --driver . --"]
)
def test_completion_runs_no_code_of_the_project(words: str, project: Path, ran: Path) -> None:
    number = str(len(words.split()) - (not words.endswith(" ")))
    shown = dra_kit(project, ran, COMP_WORDS=words, COMP_CWORD=number, _DRA_KIT_COMPLETE="bash_complete")
    assert shown
    assert not ran.exists()


# -- modules of the working directory


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with a file for each module that Python could look for, which says that it ran."""
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in sorted({*sys.stdlib_module_names, *packages_distributions(), "tests"} - {"dra_kit"}):
        if name.isidentifier():
            text = f"open({str(tmp_path)!r} + '/ran-' + __name__, 'w')\nraise SystemExit(3)\n"
            (folder / f"{name}.py").write_text(text)
    return folder


def modules_that_ran(planted: Path) -> list[str]:
    return sorted(path.name.removeprefix("ran-") for path in planted.parent.glob("ran-*"))


@pytest.mark.processes
@pytest.mark.parametrize("start", [[DRA_KIT], [sys.executable, "-m", "dra_kit"]], ids=["command", "module"])
def test_no_module_of_the_working_directory_is_imported(start: list[str], planted: Path, project: Path) -> None:
    if "-m" in start:
        # Python itself imports some modules of its own before any code of dra-kit
        for name in sys.stdlib_module_names - {"asyncio", "json", "logging", "subprocess", "tempfile"}:
            (planted / f"{name}.py").unlink(missing_ok=True)
    command = [*start, "lint", str(project / "claim.yaml")]
    done = subprocess.run(command, cwd=planted, env=SAFE, capture_output=True, text=True, check=False)
    assert modules_that_ran(planted) == []
    assert "claim.yaml" in done.stdout, done.stderr


@pytest.mark.processes
def test_a_module_named_as_target_is_taken_from_the_working_directory_by_the_module_command(
    project: Path, ran: Path
) -> None:
    command = [sys.executable, "-m", "dra_kit", "node", "pizzeria:driver", "--help"]
    subprocess.run(command, cwd=project, env={**SAFE, "RAN": str(ran)}, capture_output=True, check=True)
    assert ran.exists()


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = Path(tmp_path_factory.mktemp("r"))
    yield place
    env = {**SAFE, "XDG_RUNTIME_DIR": str(place)}
    subprocess.run([DRA_KIT, "sandbox", "down", "--all"], env=env, capture_output=True, check=False)
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.processes
def test_a_sandbox_in_the_background_imports_no_module_of_the_working_directory(
    planted: Path, project: Path, ran: Path, runtime: Path
) -> None:
    done = subprocess.run(
        [DRA_KIT, "sandbox", str(project), "--detach", "--kubeconfig", str(runtime / "kubeconfig")],
        cwd=planted,
        env={**SAFE, "RAN": str(ran), "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert modules_that_ran(planted) == []
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((runtime / "kubeconfig").read_text())["kind"] == "Config"


@pytest.mark.processes
def test_a_driver_that_a_test_kills_imports_no_module_of_the_working_directory(planted: Path, tmp_path: Path) -> None:
    code = (
        "from functools import partial\n"
        "from pathlib import Path\n"
        "from dra_kit.sandbox.drivers.process_role import KillableProcess\n"
        "if __name__ == '__main__':\n"
        f"    process = KillableProcess(Path({str(tmp_path / 'plan')!r}), partial(print, 'works', flush=True))\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    (tmp_path / "script").write_text(code)  # started as the installed command is: its own folder is where Python looks
    command = [sys.executable, str(tmp_path / "script")]
    done = subprocess.run(command, cwd=planted, env=SAFE, capture_output=True, text=True, check=False)
    assert modules_that_ran(planted) == []
    assert done.stdout == "works\n", done.stderr
