"""``dra-kit undertake``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dra_kit.author.driver import Driver
from dra_kit.cli.driver_settings import author_settings
from dra_kit.cli.options import RoleCommand, common, complete_target, path, targets_of
from dra_kit.node.settings import NodeSettings
from dra_kit.process import logging as process_logging
from dra_kit.process.target import load_driver


class UndertakeCommand(RoleCommand):
    """Its TARGET, which may be left out, comes after the directory."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """The driver of TARGET."""
        targets = targets_of(own, args)
        return load_driver(targets[1]) if len(targets) > 1 else None


@click.command(cls=UndertakeCommand)
@click.argument("state_dir", type=path(file_okay=False))
@click.argument("target", required=False, shell_complete=complete_target)
@click.option("--driver", "name", envvar="DRA_DRIVER", show_envvar=True, help="its name; with a TARGET, that of it")
@click.option(
    "--node-name", required=True, envvar="DRA_NODE_NAME", show_envvar=True, help="name of this node's Node object"
)
@click.option(
    "--kubelet-dir",
    default="/var/lib/kubelet",
    show_default=True,
    type=path(),
    envvar="DRA_KUBELET_DIR",
    show_envvar=True,
    help="root directory of the kubelet",
)
@click.option(
    "--cdi-dir",
    default="/var/run/cdi",
    show_default=True,
    type=path(),
    envvar="DRA_CDI_DIR",
    show_envvar=True,
    help="where the driver's CDI files are",
)
@click.option(
    "--pod-uid", envvar="DRA_POD_UID", show_envvar=True, help="UID of this pod, so that it may overlap with another"
)
@click.option(
    "--abandon",
    is_flag=True,
    help="without TARGET: forget what only the driver's code could undo, and leave the hardware as it is",
)
@click.option("--stay", is_flag=True, help="go on when nothing is left, as the pod of a DaemonSet must")
@common
@click.pass_context
def command(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    state_dir: Path,
    target: str | None,
    name: str | None,
    node_name: str,
    kubelet_dir: Path,
    cdi_dir: Path,
    pod_uid: str | None,
    abandon: bool,
    stay: bool,
    kubeconfig: Path | None,
    probe_address: str,
    log_format: Any,
    log_level: str,
) -> None:
    """End a driver on this node, so that no pod hangs in Terminating.

    STATE_DIR is where the driver kept its durable state, plugins/<driver> in the kubelet's directory.
    With TARGET, the driver's code undoes all that is in force. Without, programs and objects in the cluster that it
    has made are ended; other effects are named, and kept unless --abandon is given.
    """
    driver: Driver[Any, Any] | None = ctx.meta.get("driver") if target is not None else None
    name = name or (driver.name if driver is not None else None)
    if name is None:
        raise click.UsageError("Missing option '--driver' (DRA_DRIVER): the name of the driver that has ended.")
    if abandon and driver is not None:
        raise click.UsageError("--abandon and TARGET do not go together: the driver's code undoes all that it made.")
    process_logging.configure(log_format, log_level.upper())
    settings = NodeSettings(
        node_name=node_name,
        kubeconfig=kubeconfig,
        kubelet_dir=kubelet_dir.absolute(),
        cdi_dir=cdi_dir.absolute(),
        state_dir=state_dir.absolute(),
        pod_uid=pod_uid,
        probe_address=probe_address,
        author=author_settings(driver, ctx.meta.get("driver_settings", {})) if driver is not None else None,
    )
    import uvloop

    from dra_kit.node.undertaker import run_undertaker

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ctx.exit(runner.run(run_undertaker(name, settings, driver, abandon=abandon, stays=stay)))
