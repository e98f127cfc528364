"""``dra-kit`` as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def dra_kit(*arguments: object, code: int) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("dra-kit")), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result
