"""``dra-kit undertake``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.author.target import load_driver
from dra_kit.cli.options.common import check_name, common, complete_target, path
from dra_kit.cli.options.role_command import RoleCommand, targets_of
from dra_kit.cli.roles.node_options import node_options, node_settings
from dra_kit.process import logging as process_logging


class UndertakeCommand(RoleCommand):
    """Its TARGET, which may be left out, comes after the directory."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of TARGET."""
        targets = targets_of(own, args)
        return load_driver(targets[1]) if len(targets) > 1 else None


@click.command(cls=UndertakeCommand)
@click.argument("state_dir", type=path(file_okay=False))
@click.argument("target", required=False, shell_complete=complete_target)
@click.option("--driver", "name", envvar="DRA_DRIVER", show_envvar=True, help="its name; with a TARGET, that of it")
@node_options
@click.option(
    "--abandon",
    is_flag=True,
    help="without TARGET: forget what only the driver's code could undo, and leave the hardware as it is",
)
@click.option("--stay", is_flag=True, help="go on when nothing is left, as the pod of a DaemonSet must")
@click.option(
    "--pod",
    metavar="NAMESPACE/NAME",
    help="the pod that this runs in: gets the condition dra-kit/Undertaken, which is true when nothing is left; needs "
    "the right to patch pods/status",
)
@common
@click.pass_context
def command(
    ctx: click.Context,
    /,
    state_dir: Path,
    target: str | None,
    name: str | None,
    *,
    abandon: bool,
    stay: bool,
    pod: str | None,
    **options: Any,
) -> None:
    """Remove a driver from this node, so that no pod hangs in Terminating.

    STATE_DIR is where the driver has its durable state, plugins/<driver> in the kubelet's directory.
    With TARGET, the driver's code undoes all that is in force. Without TARGET, programs and objects in the cluster that
    the driver has made are deleted; other effects are listed, and stay unless --abandon is given.
    The exit code is 0 when nothing of the driver is left. With --stay the process runs until SIGTERM, and with --pod
    its pod says when nothing is left: `dra-kit drain --until-removed` waits for that.
    """
    driver: Driver[Any, Any] | None = ctx.meta.get("driver") if target is not None else None
    name = name or (driver.name if driver is not None else None)
    if name is None:
        raise click.UsageError("Missing option '--driver' (DRA_DRIVER): the name of the driver that has ended.")
    if abandon and driver is not None:
        raise click.UsageError("--abandon and TARGET do not go together: the driver's code undoes all that it made.")
    if driver is not None:
        check_name(driver, name)
    author = author_settings(driver, ctx.meta.get("driver_settings", {})) if driver is not None else None
    settings = node_settings(options, state_dir=state_dir, author=author)
    process_logging.configure(options["log_format"], options["log_level"].upper())
    import uvloop

    from dra_kit.node.decommission import run_decommission
    from dra_kit.node.decommissioned import PodName

    where = None if pod is None else PodName.parse(pod)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ctx.exit(runner.run(run_decommission(name, settings, driver, abandon=abandon, stays=stay, pod=where)))
