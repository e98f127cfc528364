"""``dra-kit controller``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.cli.options.common import check_name, common, complete_target, expected_driver
from dra_kit.cli.options.role_command import RoleCommand
from dra_kit.process import logging as process_logging


@click.command(cls=RoleCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--lease-namespace",
    envvar="DRA_LEASE_NAMESPACE",
    show_envvar=True,
    help="namespace of the Lease that makes one replica the active one  [default: the pod's, or the kubeconfig's]",
)
@click.option(
    "--lease-name",
    envvar="DRA_LEASE_NAME",
    show_envvar=True,
    help="its name  [default: <driver>-controller]",
)
@click.option(
    "--leader-election/--no-leader-election",
    default=True,
    show_default=True,
    envvar="DRA_LEADER_ELECTION",
    show_envvar=True,
    help="without it this process is the active one at once, and must be the only one",
)
@click.option(
    "--cluster-role",
    envvar="DRA_CLUSTER_ROLE",
    show_envvar=True,
    help="ClusterRole that owns what the controller makes in the cluster, slices of no node and taint rules, so that "
    "it goes when that is deleted  [default: it stays]",
)
@expected_driver
@common
@click.pass_context
def command(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str,
    lease_namespace: str | None,
    lease_name: str | None,
    leader_election: bool,
    cluster_role: str | None,
    expected: str | None,
    kubeconfig: Path | None,
    probe_address: str,
    log_format: Any,
    log_level: str,
) -> None:
    """Run TARGET's controller: Events on claims and pods, the driver's own hooks, and what it does for the cluster.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs (.yaml). Several replicas may
    run: one of them, elected by a Lease, is the active one and serves the whole cluster; the others stand by.
    """
    del target
    driver: Driver[Any, Any] = ctx.meta["driver"]
    check_name(driver, expected)
    process_logging.configure(log_format, log_level.upper())
    from dra_kit.controller.agent import ControllerSettings, run_controller

    settings = ControllerSettings(
        kubeconfig=kubeconfig,
        probe_address=probe_address,
        election=leader_election,
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        cluster_role=cluster_role,
        # where nothing of the author's asks for them they may name files and hardware that only nodes have
        author=author_settings(driver, ctx.meta.get("driver_settings", {})) if driver.has_controller_code else None,
    )
    ctx.exit(asyncio.run(run_controller(driver, settings)))
