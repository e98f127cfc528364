"""``dra-kit new``: what it asks, what it makes, and what it never does."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli

DRA_KIT = str(Path(sys.executable).with_name("dra-kit"))


def run(*arguments: object, cwd: Path, code: int = 0) -> str:
    """What a command prints without a terminal."""
    with chdir(cwd):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(cli, [*map(str, arguments)], prog_name="dra-kit")
    assert result.exit_code == code, result.output
    return result.output


def run_on_terminal(*arguments: str, cwd: Path, answers: str) -> str:
    """What a process prints on a terminal, to which script(1) types answers."""
    words = ["script", "--quiet", "--return", "--command", " ".join([DRA_KIT, *arguments]), "/dev/null"]
    result = subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, check=False, input=answers, env={**os.environ, "COLUMNS": "200"}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_new_without_terminal_uses_defaults_and_prints_next_steps(tmp_path: Path) -> None:
    told = run("new", "led", cwd=tmp_path)
    assert "driver led.example.com" in told
    assert told.endswith(
        "Next steps:\n"
        "  cd led\n"
        "  make test       # test that a pod gets a device, in a cluster in one process\n"
        "  make sandbox    # run the same cluster, and show what happens\n"
    )
    assert (tmp_path / "led" / "src" / "led" / "driver.py").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["led"]


def test_flags_are_answers(tmp_path: Path) -> None:
    run(
        *("new", "led", "--driver", "led.acme.example", "--package", "acme_led", "--kind", "shared", "--no-webhook"),
        *("--directory", "made/here"),
        cwd=tmp_path,
    )
    project = tmp_path / "made" / "here"
    assert '"led.acme.example"' in (project / "src" / "acme_led" / "driver.py").read_text()
    assert (
        (project / ".dra-kit.yml")
        .read_text()
        .endswith("project: led\ndriver: led.acme.example\npackage: acme_led\nkind: shared\nwebhook: false\n")
    )


@pytest.mark.processes
def test_new_on_terminal_asks_and_repeats_after_invalid_answer(tmp_path: Path) -> None:
    told = run_on_terminal("new", "led", cwd=tmp_path, answers="led\nled.acme.example\n\nnetwork\nn\n")
    assert "Name of the driver, in a domain that you own; clusters store it, so you cannot change it later" in told
    assert told.count("Name of the driver [led.example.com]:") == 2
    assert "it lacks a domain" in told
    assert "Python package [led]:" in told
    assert "  partitionable  a card is divided into partitions; counters limit their combinations" in told
    assert "Devices (simple, partitionable, modes, shared, network, cpu) [simple]:" in told
    assert "Reject invalid config when it is applied [Y/n]:" in told
    assert "kind: network\nwebhook: false\n" in (tmp_path / "led" / ".dra-kit.yml").read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "led" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    told = run("new", "led", cwd=tmp_path, code=2)
    assert "error: led already exists and is not an empty folder; choose another" in told
    assert [path.name for path in mine.parent.iterdir()] == ["mine.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["led"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "led").symlink_to("elsewhere")
    assert "already exists" in run("new", "led", cwd=tmp_path, code=2)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "led").mkdir()
    run("new", "led", cwd=tmp_path)
    assert (tmp_path / "led" / "pyproject.toml").is_file()


def test_new_reports_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = run("new", "led", "--directory", "file/led", cwd=tmp_path, code=2)
    assert "error: file/led cannot be created: File exists; choose another folder" in told


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["Led"], "error: project name 'Led': it must consist of at most 40 lower-case letters"),
        (["led", "--driver", "led"], "error: driver name 'led': it lacks a domain"),
        (["led", "--package", "class"], "error: package name 'class': it is a keyword of Python"),
        (
            ["led", "--kind", "big"],
            "'big' is not one of 'simple', 'partitionable', 'modes', 'shared', 'network'",
        ),
    ],
)
def test_new_rejects_invalid_answer_and_creates_nothing(arguments: list[str], text: str, tmp_path: Path) -> None:
    assert text in run("new", *arguments, cwd=tmp_path, code=2)
    assert list(tmp_path.iterdir()) == []


def test_chart_command_prints_the_bundled_chart(tmp_path: Path) -> None:
    chart = Path(run("chart", cwd=tmp_path).strip())
    assert (chart / "Chart.yaml").is_file()
