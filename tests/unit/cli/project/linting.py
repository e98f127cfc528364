"""``dra-kit lint``, and the project that is linted."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from dra_kit.cli.app import cli

PIZZA = Path(__file__).resolve().parents[4] / "examples" / "pizza-driver"


def lint(*arguments: object, code: int, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(cli, ["lint", *map(str, arguments)], input=stdin)
    assert result.exit_code == code, result.output
    return result
