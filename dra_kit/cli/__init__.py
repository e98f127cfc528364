"""The dra-kit command. Every command imports what it needs when it runs, so that --help stays fast."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Run the ``dra-kit`` script."""
    from dra_kit.cli.app import cli

    # the caller may have closed them, as with >&-
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the process exits
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.exit(cli(prog_name="dra-kit"))  # also of python -m dra_kit
