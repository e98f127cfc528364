"""``dra-kit controller``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from dra_kit.cli.options import RoleCommand, common, complete_target
from dra_kit.process import logging as process_logging


@click.command(cls=RoleCommand)
@click.argument("target", shell_complete=complete_target)
@common
@click.pass_context
def command(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str,
    kubeconfig: Path | None,
    probe_address: str,
    log_format: Any,
    log_level: str,
) -> None:
    """Run TARGET's controller: Events on claims and pods when claims are allocated, reserved and released.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs (.yaml). One process
    serves the whole cluster.
    """
    del target
    process_logging.configure(log_format, log_level.upper())
    from dra_kit.controller.agent import ControllerSettings, run_controller

    settings = ControllerSettings(kubeconfig=kubeconfig, probe_address=probe_address)
    ctx.exit(asyncio.run(run_controller(ctx.meta["driver"], settings)))
