"""The dra-kit command. Every command imports what it needs when it runs, so that --help stays fast."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the ``dra-kit`` script."""
    from dra_kit.cli.app import cli

    sys.exit(cli(prog_name="dra-kit"))  # also of python -m dra_kit
