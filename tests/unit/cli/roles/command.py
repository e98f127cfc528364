"""``dra-kit`` with a role, as a call in the process of the tests and as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

from click.testing import CliRunner, Result

from dra_kit.cli.app import cli


class Printed(Protocol):
    """What a command printed."""

    @property
    def stdout(self) -> str: ...

    @property
    def stderr(self) -> str: ...


def dra_kit(*arguments: object, code: int) -> Result:
    """What a command prints that ends by itself, in the process of the tests."""
    result = CliRunner().invoke(cli, [*map(str, arguments)], prog_name="dra-kit", catch_exceptions=False)
    assert result.exit_code == code, result.stderr
    return result


def dra_kit_process(*arguments: object, code: int) -> subprocess.CompletedProcess[str]:
    """What the script prints."""
    command = [str(Path(sys.executable).with_name("dra-kit")), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result
