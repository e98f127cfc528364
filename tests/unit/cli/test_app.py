"""``dra-kit`` itself: what it says of itself, of commands that there are not, and to a shell that completes words."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import dra_kit
from dra_kit.cli import main
from dra_kit.cli.app import COMMANDS, cli
from dra_kit.cli.dev import dev

ROLES = {"node", "controller", "admission"}
"""The rooms of the roles."""
SHARED = {"dra_kit.node.settings"}
"""Modules of a role's room that the command's options need in all roles."""

BASH = """
source completion.bash
compopt() { echo "compopt $2"; }  # bash has it only while a key is pressed
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_dra_kit_completion dra-kit
printf '%s\\n' "${COMPREPLY[@]}"
"""


def told(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, arguments, prog_name="dra-kit")
    assert result.exit_code == code, result.output
    return result.output


def test_version_lists_supported_releases() -> None:
    python = platform.python_version()
    assert told("--version") == f"dra-kit {dra_kit.__version__} (Kubernetes 1.34 to 1.38, Python {python})\n"


def test_without_arguments_it_lists_its_commands() -> None:
    listed = told(code=2)
    assert [name for name in COMMANDS if f"\n  {name} " not in listed] == []
    assert "dra-kit new NAME" in listed


def test_help_is_also_a_command() -> None:
    assert told("help") == told("--help")
    assert told("help", "lint") == told("lint", "--help")
    assert "No such command 'lnt'; did you mean \"lint\"?" in told("help", "lnt", code=2)


def loaded(code: str) -> list[str]:
    """The modules that a program has loaded at its end."""
    program = f"{code}\nimport sys; print(*sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    return output.stdout.splitlines()[-1].split()


def test_help_loads_no_command() -> None:
    modules = loaded("from dra_kit.cli.app import cli; cli(['--help'], standalone_mode=False)")

    assert [name for name in modules if name.startswith("dra_kit.cli.")] == ["dra_kit.cli.app"]
    assert sorted({"aiohttp", "asyncio", "grpc", "kopf", "pydantic", "yaml"} & set(modules)) == []


@pytest.mark.parametrize("role", sorted(ROLES))
def test_a_role_loads_nothing_of_another_role_and_no_cluster(role: str) -> None:
    modules = loaded(f"import dra_kit.cli.roles, dra_kit.{role}.agent")

    assert f"dra_kit.{role}.agent" in modules
    others = tuple(f"dra_kit.{room}." for room in (*(ROLES - {role}), "sandbox", "apiserver", "diagnosis"))
    assert [name for name in modules if name.startswith(others) and name not in SHARED] == []


def test_unknown_command_lists_all_commands() -> None:
    assert f"No such command 'apply'; the commands are {', '.join(sorted(COMMANDS))}" in told("apply", code=2)


def test_target_instead_of_command_suggests_sandbox(tmp_path: Path) -> None:
    assert f"to run a driver, use: dra-kit sandbox {tmp_path}" in told(str(tmp_path), code=2)
    assert "to run a driver, use: dra-kit sandbox ./driver.py" in told("./driver.py", code=2)


def test_module_uses_the_name_of_the_script() -> None:
    command = [sys.executable, "-m", "dra_kit", "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    assert output.startswith("Usage: dra-kit [OPTIONS]")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the scripts, and dra-kit on the PATH."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "dra-kit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dra_kit "$@"\n')
    program.chmod(0o755)
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(root))
    for name in ("bash", "zsh", "fish"):
        (tmp_path / f"completion.{name}").write_text(told("completion", name))
    return tmp_path


def completed(shell: Path, *words: str) -> list[str]:
    """What bash makes of some words when the tabulator key is pressed behind the last one."""
    command = ["bash", "--norc", "-c", BASH, "bash", *words]
    done = subprocess.run(command, cwd=shell, capture_output=True, text=True, check=True, timeout=240)
    return done.stdout.split("\n")[:-1]


def test_bash_completes_commands(shell: Path) -> None:
    assert completed(shell, "dra-kit", "s") == ["sandbox", "sbom", "snapshot", "status", "support-bundle"]
    assert completed(shell, "dra-kit", "") == sorted(COMMANDS)


@pytest.mark.processes
def test_bash_completes_files(shell: Path) -> None:
    assert completed(shell, "dra-kit", "lint", "cl") == ["compopt default", ""]


def offered(*words: str) -> list[str]:
    """What dra-kit offers a shell for the last of some words, without its kind."""
    variables = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), "_DRA_KIT_COMPLETE": "bash_complete"}
    shown = CliRunner(env=variables).invoke(cli, prog_name="dra-kit", catch_exceptions=False).stdout
    lines = [line for line in shown.splitlines() if line]
    assert [line for line in lines if not re.match("(plain|file),", line)] == []
    return [line if line.startswith("file") else line.partition(",")[2] for line in lines]


def test_options_and_their_values_are_completed() -> None:
    assert offered("dra-kit", "lint", "--dr") == ["--driver"]
    assert offered("dra-kit", "lint", "--format", "") == ["text", "github", "json"]
    assert offered("dra-kit", "completion", "") == ["bash", "zsh", "fish"]


def test_subcommands_and_kinds_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its files and folders would be TARGETs
    assert offered("dra-kit", "sandbox", "do") == ["down"]
    assert offered("dra-kit", "explain", "p") == ["pod"]
    assert offered("dra-kit", "explain", "pod", "p") == []
    assert offered("dra-kit", "sandbox", ".", "do") == ["file,do"]
    assert offered("dra-kit", "node", "./dr") == ["file,./dr"]


def test_folders_next_to_subcommands_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert offered("dra-kit", "sandbox", "d") == ["down", "demo"]


def test_completion_does_not_load_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "driver.py").write_text("raise SystemExit('it was loaded')\n")
    assert "--node-name" in offered("dra-kit", "node", "./driver.py", "--n")


def test_commands_are_completed_without_importing_them() -> None:
    code = (
        "import sys; from dra_kit.cli.app import cli\n"
        "from click.shell_completion import ShellComplete\n"
        "ShellComplete(cli, {}, 'dra-kit', '').get_completions([], 's')\n"
        "print(sorted(name for name in sys.modules if name.startswith('dra_kit.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "['dra_kit.cli.app']\n"


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands(shell: Path) -> None:
    code = "source completion.fish; complete -C 'dra-kit s'"
    command = ["fish", "-c", code]
    done = subprocess.run(command, cwd=shell, capture_output=True, text=True, check=True, timeout=240)
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == ["sandbox", "snapshot"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_accepts_the_completion_script(shell: Path) -> None:
    code = "autoload -Uz compinit && compinit -D -u && source completion.zsh && print $_comps[dra-kit]"
    command = ["zsh", "-f", "-c", code]
    done = subprocess.run(command, cwd=shell, capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "_dra_kit_completion\n"


def test_help_of_dev_names_no_option_that_it_lacks() -> None:
    text = told("dev", "--help")

    assert "serve a page" in text
    assert "simulate this release" in text
    named = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", text))
    assert named <= {word for param in dev.params for word in (*param.opts, *param.secondary_opts)} | {"--help"}
    assert "stories" not in text


def test_full_disk_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as end:
            cli.main(["completion", "bash"], prog_name="dra-kit")

    assert end.value.code == 1
    assert capsys.readouterr().err == (
        "error: output cannot be written: No space left on device; free space, or write elsewhere\n"
    )


def test_closed_output_changes_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("a: [")
    monkeypatch.setattr(sys, "argv", ["dra-kit", "lint", str(file)])
    monkeypatch.setattr(sys, "stdout", None)

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 1


@pytest.mark.parametrize("command", ["explain --html", "sandbox --report", "sandbox --record", "conformance --junit"])
def test_file_to_write_cannot_be_standard_output(command: str) -> None:
    assert "- is not standard output here; name a file." in told(*command.split(), "-", code=2)
