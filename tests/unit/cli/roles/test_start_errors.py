"""How roles refuse to start: by name, and as JSON where they log JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dra_kit.cli.app import cli

ROLES = ("node", "controller", "webhook", "decommission")


def arguments(role: str, target: object, tmp_path: Path) -> list[str]:
    """A command line of a role that is whole; it would fail for want of a cluster."""
    more = {
        "node": ["--node-name", "node-a", "--kubelet-dir", str(tmp_path / "kubelet")],
        "controller": [],
        "webhook": ["--cert", str(tmp_path / "tls.crt"), "--key", str(tmp_path / "tls.key")],
        "decommission": ["--node-name", "node-a", "--kubelet-dir", str(tmp_path / "kubelet")],
    }[role]
    places = [str(tmp_path / "state"), str(target)] if role == "decommission" else [str(target)]
    return [role, *places, "--kubeconfig", str(tmp_path / "none"), *more]


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, words, prog_name="dra-kit", env=environment)


def lines(result: Result) -> list[dict[str, Any]]:
    """The lines on standard error, each of which is JSON; nothing is on standard output."""
    assert result.stdout == ""
    found = [json.loads(line) for line in result.stderr.splitlines()]
    assert found
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in found)
    return found


@pytest.mark.parametrize("role", ROLES)
def test_driver_with_unexpected_name_is_rejected(role: str, target: Path, tmp_path: Path) -> None:
    result = run(*arguments(role, target, tmp_path), DRA_DRIVER="kitchen.pizza.example")

    assert result.exit_code == 2
    assert (
        "TARGET is driver dra.pizza, but --driver (DRA_DRIVER; driverName in the chart's values) is "
        "kitchen.pizza.example; set driverName to dra.pizza, or correct TARGET"
    ) in result.stderr
    assert not (tmp_path / "kubelet").exists(), "nothing was made for it"


@pytest.mark.parametrize("role", ROLES)
def test_a_driver_of_the_charts_name_goes_on(role: str, target: Path, tmp_path: Path) -> None:
    result = run(*arguments(role, target, tmp_path), DRA_DRIVER="dra.pizza", DRA_LOG_FORMAT="json")

    assert "driverName" not in result.stderr


@pytest.mark.parametrize("by", ["flag", "equals", "environment"])
@pytest.mark.parametrize("role", ROLES)
def test_an_error_of_the_configuration_is_a_line_of_json(role: str, by: str, target: Path, tmp_path: Path) -> None:
    words = arguments(role, target, tmp_path)
    words += {"flag": ["--log-format", "json"], "equals": ["--log-format=json"], "environment": []}[by]
    environment = {"DRA_LOG_FORMAT": "json"} if by == "environment" else {}
    result = run(*words, DRA_DRIVER="kitchen.pizza.example", **environment)

    [line] = lines(result)
    assert result.exit_code == 2
    assert (line["level"], line["message"], line["code"]) == ("ERROR", "process ends", "configuration")
    assert "TARGET is driver dra.pizza" in line["error"]


@pytest.mark.parametrize("role", ROLES)
def test_arguments_that_are_refused_are_a_line_of_json(role: str, target: Path, tmp_path: Path) -> None:
    result = run(*arguments(role, target, tmp_path), "--log-format", "json", "--no-such-option")

    [line] = lines(result)
    assert result.exit_code == 2
    assert line["code"] == "usage"
    assert "--no-such-option" in line["error"]


@pytest.mark.parametrize("role", ROLES)
def test_a_target_that_is_missing_or_fails_is_a_line_of_json(role: str, target: Path, tmp_path: Path) -> None:
    [line] = lines(run(*arguments(role, tmp_path / "none.py", tmp_path), "--log-format=json"))
    assert line["code"] == "invalid-target"

    target.write_text("raise RuntimeError('first line\\nsecond line')\n")
    [line] = lines(run(*arguments(role, target, tmp_path), "--log-format=json"))
    assert line["code"] == "invalid-target"
    assert "second line" in line["error"]


def test_unexpected_error_is_logged_as_json_with_traceback(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("dra_kit.cli.roles.check_name", fails)
    result = run(*arguments("controller", target, tmp_path), "--log-format=json")

    [line] = lines(result)
    assert result.exit_code == 1
    assert "ZeroDivisionError: a mistake of ours" in line["traceback"]


def test_warnings_and_threads_of_the_drivers_code_are_lines_of_json(target: Path, tmp_path: Path) -> None:
    target.write_text(
        "import threading, warnings\n"
        "warnings.simplefilter('always')\n"
        "warnings.warn('this oven is old', stacklevel=1)\n"
        "thread = threading.Thread(target=lambda: 1 / 0, name='baker')\n"
        "thread.start()\n"
        "thread.join()\n"
        "raise RuntimeError('no gas')\n"
    )
    warning, thread, error = lines(run(*arguments("controller", target, tmp_path), "--log-format=json"))

    assert "this oven is old" in warning["message"]
    assert "ZeroDivisionError" in thread["traceback"]
    assert "no gas" in error["error"]


@pytest.mark.parametrize("role", ROLES)
def test_without_json_errors_are_text(role: str, target: Path, tmp_path: Path) -> None:
    result = run(*arguments(role, target, tmp_path), DRA_DRIVER="kitchen.pizza.example", DRA_LOG_FORMAT="text")
    assert result.stderr.startswith("error: TARGET is driver dra.pizza")

    result = run(*arguments(role, target, tmp_path), "--log-format=xml", DRA_LOG_FORMAT="json")
    assert result.stderr.startswith("Usage: "), "the format that was asked for is none"
