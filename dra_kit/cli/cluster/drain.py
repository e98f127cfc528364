"""``dra-kit drain``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec import to_builtins

from dra_kit.cli.cluster.source_options import credentials_of
from dra_kit.cli.options.common import path
from dra_kit.values.aligned import aligned
from dra_kit.values.nearest import did_you_mean
from dra_kit.values.printable import printable

if TYPE_CHECKING:
    from dra_kit.drain.holders import Holders

HELD: Final = 3
"""The exit code where somebody holds devices."""


@click.command
@click.option("--driver", required=True, envvar="DRA_DRIVER", show_envvar=True, help="its name")
@click.option("--node", help="only devices of this node  [default: of all nodes]")
@click.option(
    "--wait",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0.0),
    help="seconds to wait until nobody holds any device",
)
@click.option("-o", "--output", default="text", show_default=True, type=click.Choice(["text", "json"]))
@click.option("--context", help="context of the kubeconfig  [default: its current one]")
@click.option(
    "--kubeconfig",
    type=path(),
    envvar="DRA_KUBECONFIG",
    show_envvar=True,
    help="default: $KUBECONFIG, in a pod its service account, else ~/.kube/config",
)
@click.pass_context
def command(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    driver: str,
    node: str | None,
    wait: float,
    output: str,
    context: str | None,
    kubeconfig: Path | None,
) -> None:
    """Tell who still holds devices of a driver, before it is removed or a node is emptied.

    Pods whose claims have devices of a driver can only end while the driver runs. The exit code is 0 when there are
    none, and 3 when there are some; nothing is changed. The one right needed is to list resourceclaims.
    """
    from dra_kit.drain.live import wait_drained

    def show_waiting(found: Holders) -> None:
        if wait and output == "text" and found.held:
            click.echo(f"waiting for {_amount(len(found.held), 'claim')}", err=True)

    async def ask() -> Holders:
        return await wait_drained(
            await credentials_of(kubeconfig, context), driver, node, wait=wait, changed=show_waiting
        )

    found = asyncio.run(ask())
    if output == "json":
        click.echo(json.dumps(to_builtins(found), indent=2))
    else:
        for line in _lines(found, driver, node):
            click.echo(printable(line))
    ctx.exit(HELD if found.held else 0)


def _lines(found: Holders, driver: str, node: str | None) -> list[str]:
    where = f"driver {driver}" + (f" on node {node}" if node else "")
    lines = []
    if found.held:
        rows = [["NODE", "POD", "CLAIM", "DEVICES"]]
        for item in found.held:
            users = ", ".join(f"{item.namespace}/{user}" for user in item.users)
            rows.append([item.node or "-", users, f"{item.namespace}/{item.claim}", ", ".join(item.devices)])
        lines += aligned(rows)
        lines.append(
            f"{where}: {_amount(len(found.held), 'claim')} in use; delete the pods, or wait until they have ended, "
            "before the driver is removed"
        )
    else:
        wrong = "" if found.idle else did_you_mean(driver, found.others)  # its pods would be overlooked
        lines.append(f"{where}: nobody uses a device{wrong}")
    if found.idle:
        names = ", ".join(f"{item.namespace}/{item.claim}" for item in found.idle)
        lines.append(f"allocated and not in use: {names}; a pod that uses one later would wait for the driver")
    return lines


def _amount(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
