"""What a vendor's engineer has: an environment with nothing but the wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Environment:
    """A virtual environment that is active.

    Attributes:
        folder: where it is.
        variables: of the processes in it.
    """

    folder: Path
    variables: dict[str, str]

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"

    def run(self, *command: object, cwd: Path) -> str:
        """Return the output of a command that must succeed, without standard input."""
        words = [str(word) for word in command]
        result = subprocess.run(
            words,
            cwd=cwd,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{' '.join(words)} ended with {result.returncode}:\n{result.stdout}"
        return result.stdout


def build_wheel(folder: Path) -> Path:
    """The wheel of the sources as they are."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(REPOSITORY)], check=True)
    (found,) = folder.glob("*.whl")
    return found


def make_environment(folder: Path) -> Environment:
    """An empty one, in which pip takes the versions that dra-kit is tested with."""
    pins = (REPOSITORY / "requirements" / "dev.txt").read_text(encoding="utf-8")
    constraints = folder / "constraints.txt"
    # pip wants hashes of everything where a constraint has one, also of the wheel
    constraints.write_text("".join(f"{line}\n" for line in re.findall(r"^[a-z0-9-]+==[^\\\n]*", pins, re.MULTILINE)))
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MAKEFLAGS", "MAKELEVEL"}}
    variables = {
        **kept,
        "VIRTUAL_ENV": str(venv),
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "PIP_CONSTRAINT": str(constraints),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "MYPY_CACHE_DIR": str(folder / "mypy"),
    }
    return Environment(venv, variables)
